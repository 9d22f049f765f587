package egress_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// TestFlowsAtOnce: one more than the limit is refused and told, and one that ends makes room.
func TestFlowsAtOnce(t *testing.T) {
	e, c := &echo{}, &refusals{}
	g, at := gate(t, e, egress.Options{Observer: c, Limits: egress.Limits{Flows: 1}}, "a.org:7")
	to := at("a.org", 7)
	first, second, third := newGuest(t), newGuest(t), newGuest(t)
	var wg, more sync.WaitGroup
	wg.Go(func() { g.Connect(to, first) })
	<-first.accepted
	io.WriteString(first.far, "x")
	if _, err := io.ReadFull(first.far, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	io.WriteString(second.far, "x") // what is refused may say what it is first
	more.Go(func() { g.Connect(to, second) })
	if n, err := second.far.Read(make([]byte, 1)); err == nil {
		t.Errorf("one more than the limit got %d bytes", n)
	}
	second.far.Close()
	more.Wait()
	if got := c.all; len(got) != 1 || got[0].Rule != rule.RuleBudget || !strings.Contains(got[0].Reason, "at once") {
		t.Errorf("told %+v", got)
	}
	first.far.Close()
	wg.Wait()
	wg.Go(func() { g.Connect(to, third) })
	<-third.accepted
	third.far.Close()
	wg.Wait()
}

// TestFirstBytesThatStop: a client that begins a request and says no more is refused when its
// time for the first bytes is over, for that reason.
func TestFirstBytesThatStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := &echo{piped: true}, &refusals{}
		g, at := gate(t, e, egress.Options{Observer: c, Limits: egress.Limits{First: 5 * time.Second}}, "a.org")
		near, far := net.Pipe()
		defer far.Close()
		begun := time.Now()
		done := make(chan struct{})
		go func() { g.Connect(at("a.org", 443), pipe{near}); close(done) }()
		io.WriteString(far, "GE")
		<-done
		got := c.all
		if len(got) != 1 || got[0].Stage != egress.StageFirst || !strings.Contains(got[0].Reason, "said nothing") {
			t.Errorf("told %+v", got)
		}
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// question is a DNS question for an address, with its length before it.
func question(t *testing.T, id uint16, name string) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(make([]byte, 2), dnsmessage.Header{ID: id, RecursionDesired: true})
	q := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	if err := errors.Join(b.StartQuestions(), b.Question(q)); err != nil {
		t.Fatal(err)
	}
	msg, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint16(msg, uint16(len(msg)-2))
	return msg
}

// TestDNSOverAStream: each question gets its answer, until one is longer than questions are.
func TestDNSOverAStream(t *testing.T) {
	g, _ := gate(t, &echo{}, egress.Options{}, "a.org")
	o := newGuest(t)
	defer o.far.Close()
	var wg sync.WaitGroup
	wg.Go(func() { g.ServeDNS(o) })
	o.far.SetDeadline(time.Now().Add(time.Minute))
	if _, err := o.far.Write(append(question(t, 1, "a.org."), question(t, 2, "other.org.")...)); err != nil {
		t.Fatal(err)
	}
	want := []dnsmessage.RCode{dnsmessage.RCodeSuccess, dnsmessage.RCodeRefused}
	for i, code := range want {
		size := make([]byte, 2)
		if _, err := io.ReadFull(o.far, size); err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		msg := make([]byte, binary.BigEndian.Uint16(size))
		if _, err := io.ReadFull(o.far, msg); err != nil {
			t.Fatal(err)
		}
		var m dnsmessage.Message
		if err := m.Unpack(msg); err != nil || int(m.ID) != i+1 || m.RCode != code {
			t.Errorf("answer %d: %+v, %v", i, m.Header, err)
		}
	}
	o.far.Write([]byte{0xff, 0xff, 0})
	if n, err := o.far.Read(make([]byte, 1)); err == nil {
		t.Errorf("an endless question got %d bytes", n)
	}
	wg.Wait()
	if g.Flows() != 0 {
		t.Error("questions count as flows")
	}
}

// TestTargetsAreCut: what is told of a refused request is bounded.
func TestTargetsAreCut(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, requests: []string{"GET " + apiHost + "/v1/*"}})
	w.route(apiHost, 80, plainServer(t, http.NotFoundHandler()))
	path := "/" + strings.Repeat("x", 2000)
	do(t, w.client(false), newRequest(t, "GET", "http://"+apiHost+path, nil, nil))
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.refused) != 1 {
		t.Fatalf("told %d times", len(w.refused))
	}
	if got := w.refused[0].Target; got != path[:400]+"..." {
		t.Errorf("told a target of %d bytes", len(got))
	}
}

// TestRefusedRequestIsTold: a client of HTTP hears why its connection is refused, and one that
// speaks anything else gets a reset.
func TestRefusedRequestIsTold(t *testing.T) {
	g, at := gate(t, &echo{}, egress.Options{}, "a.org")
	for said, want := range map[string]string{"GET / HTTP/1.1\r\nHost: other.org\r\n\r\n": "HTTP/1.1 403 ", "SSH-2.0-x\r\n": ""} {
		o := newGuest(t)
		var wg sync.WaitGroup
		wg.Go(func() { g.Connect(at("other.org", 80), o) })
		o.far.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(o.far, said)
		o.far.CloseWrite()
		b, err := io.ReadAll(o.far)
		if want == "" && (len(b) > 0 || err == nil) || !strings.HasPrefix(string(b), want) {
			t.Errorf("%q got %q, %v", said, b, err)
		}
		o.far.Close()
		wg.Wait()
	}
}
