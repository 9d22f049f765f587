//go:build linux

package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/fdstore"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy"
)

func TestMain(m *testing.M) {
	if os.Args[0] == fdstore.Argv0 {
		os.Exit(fdstore.Main())
	}
	os.Exit(m.Run())
}

// grant allows rules, and says that every host of them is on loopback.
func grant(t testing.TB, rules ...string) policy.EgressGrant {
	t.Helper()
	g := policy.EgressGrant{Hosts: map[string][]netip.Addr{}}
	for _, text := range rules {
		r, err := rule.Parse(text + " at 127.0.0.0/8")
		if err != nil {
			t.Fatal(err)
		}
		r.ID = text
		g.Rules = append(g.Rules, r)
		g.Hosts[r.Host] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	}
	return g
}

// told keeps what is told.
type told struct {
	mu   sync.Mutex
	recs []api.EgressRecord
}

func (t *told) tell(rec api.EgressRecord) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recs = append(t.recs, rec)
}

func (t *told) kinds() []api.EgressKind {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []api.EgressKind
	for _, r := range t.recs {
		out = append(out, r.Kind)
	}
	return out
}

// ask asks the resolver of a network for a name.
func ask(t testing.TB, w *Network, name string) (netip.Addr, int) {
	t.Helper()
	q, err := new(dns.Msg).SetQuestion(name+".", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	var a dns.Msg
	if err := a.Unpack(w.gate.Answer(q)); err != nil {
		t.Fatal(err)
	}
	if len(a.Answer) == 0 {
		return netip.Addr{}, a.Rcode
	}
	addr, _ := netip.AddrFromSlice(a.Answer[0].(*dns.A).A.To4())
	return addr, a.Rcode
}

// opening is a connection of a sandbox; far is the sandbox's end.
type opening struct {
	near, far net.Conn
	refused   chan struct{}
}

func newOpening(t testing.TB) *opening {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return &opening{near, far, make(chan struct{})}
}

func (o *opening) Accept() (egress.Conn, error) { return conn{o.near}, nil }
func (o *opening) Refuse()                      { close(o.refused) }

type conn struct{ net.Conn }

func (c conn) CloseWrite() error { return nil }
func (c conn) Reset()            { c.Close() }

// echo is a server on loopback.
func echo(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); io.Copy(c, c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// open makes the network of one sandbox and does with it what a create does.
func open(t testing.TB, ws *Networks, p Place) *Network {
	t.Helper()
	w, err := ws.Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if l := w.Link(); l.Guest == nil || l.Far == nil {
		t.Fatal("the engine would get no link")
	}
	if err := w.Handed(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func newNetworks(t testing.TB, o Options) *Networks {
	t.Helper()
	ws := New(t.Context(), o)
	t.Cleanup(func() {
		if err := ws.Close(); err != nil {
			t.Error(err)
		}
	})
	return ws
}

func TestRefusalsAreTold(t *testing.T) {
	ws := newNetworks(t, Options{})
	seen := &told{}
	dir := filepath.Join(t.TempDir(), "network")
	w := open(t, ws, Place{ID: "sb-1", Name: "box", Hostname: "box", Dir: dir, Grant: grant(t, "web.example"), Tell: seen.tell})
	before := w.Mark()
	if _, code := ask(t, w, "other.example"); code != dns.RcodeRefused {
		t.Errorf("code %d", code)
	}
	again := w.Mark()
	ask(t, w, "other.example")
	o := newOpening(t)
	w.gate.Connect(netip.MustParseAddrPort("8.8.8.8:53"), o)
	<-o.refused
	refused := w.Since(before)
	if len(refused) != 2 || refused[0].Name != "other.example" || refused[0].Rule != rule.RuleName || refused[0].Allow != "other.example" ||
		!strings.Contains(refused[0].Hint, "cloche egress allow box") || refused[1].Name != "8.8.8.8" || refused[1].Port != 53 {
		t.Errorf("refusals %+v", refused)
	}
	// A later caller is told of the second time, although it was the same.
	if refused = w.Since(again); len(refused) != 2 || refused[0].Name != "other.example" {
		t.Errorf("refusals %+v", refused)
	}
	if refused = w.Since(w.Mark()); len(refused) != 0 {
		t.Errorf("refusals %+v", refused)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// The log has the first once, and with the next how many it has not.
	if got := seen.kinds(); !slices.Equal(got, []api.EgressKind{api.EgressRefused, api.EgressRefused}) {
		t.Errorf("told %v", got)
	}
	if n := seen.recs[1].Suppressed; n != 1 {
		t.Errorf("%d were suppressed", n)
	}
	log, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	if err := log.Read(t.Context(), api.EgressLogOptions{}, func(r api.EgressRecord) error {
		names = append(names, fmt.Sprint(r.Seq, " ", r.Name))
		return nil
	}); err != nil || !slices.Equal(names, []string{"1 other.example", "2 8.8.8.8"}) {
		t.Errorf("the log has %v, %v", names, err)
	}
	for name, want := range map[string]string{"resolv.conf": "nameserver 10.88.0.1\n", "hosts": "10.88.0.2\tbox\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.HasSuffix(string(b), want) {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
}

// TestReadLogHasAll: a reader of the log sees all that happened before it came, however
// late the writer is.
func TestReadLogHasAll(t *testing.T) {
	ws := newNetworks(t, Options{})
	late := make(chan struct{})
	w := open(t, ws, Place{
		ID: "sb-1", Name: "box", Hostname: "box", Dir: filepath.Join(t.TempDir(), "network"), Grant: grant(t, "web.example"),
		Tell: func(api.EgressRecord) { <-late },
	})
	for range 3 {
		w.Record(api.EgressRecord{Kind: api.EgressChanged})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.ReadLog(gone, api.EgressLogOptions{}, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	n := 0
	read := make(chan error)
	go func() {
		read <- w.ReadLog(t.Context(), api.EgressLogOptions{}, func(api.EgressRecord) error { n++; return nil })
	}()
	close(late)
	if err := <-read; err != nil || n != 3 {
		t.Errorf("%d records, %v", n, err)
	}
}

// TestNextDaemon: after one daemon the next has the same link, the same names, what
// was used, and the log. When the fd store has gone with the first, it has none.
func TestNextDaemon(t *testing.T) {
	dir := t.TempDir()
	port := echo(t)
	again := func() *Networks {
		return New(t.Context(), Options{Store: fdstore.NewClient(fdstore.Options{Dir: dir})})
	}
	p := Place{ID: "sb-1", Dir: filepath.Join(dir, "network"), Grant: grant(t, fmt.Sprintf("web.example:%d", port), "b.example")}
	first := again()
	w := open(t, first, p)
	b, _ := ask(t, w, "b.example")
	web, _ := ask(t, w, "web.example")
	flow := func(w *Network) {
		t.Helper()
		o := newOpening(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.gate.Connect(netip.AddrPortFrom(web, port), o) })
		io.WriteString(o.far, "hello")
		got := make([]byte, 5)
		if _, err := io.ReadFull(o.far, got); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		o.far.Close()
		wg.Wait()
	}
	flow(w)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := again()
	w, err := second.Adopt(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]netip.Addr{"web.example": web, "b.example": b} {
		if got, _ := ask(t, w, name); got != want {
			t.Errorf("%s is %s and was %s", name, got, want)
		}
	}
	flow(w)
	if u := w.Used(); u.Connections != 2 || u.BytesOut != 10 || u.BytesIn != 10 {
		t.Errorf("used %+v", u)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Adopt(t.Context(), p); !errors.Is(err, ErrLost) {
		t.Errorf("adopt of what was closed: %v", err)
	}
	n := 0
	if err := w.ReadLog(t.Context(), api.EgressLogOptions{Kinds: []api.EgressKind{api.EgressClosed}}, func(r api.EgressRecord) error {
		if n++; r.BytesOut != 5 || r.Addr != "127.0.0.1" || r.ResolvedBy != "rule" || r.Protocol != "tcp" {
			t.Errorf("record %+v", r)
		}
		return nil
	}); err != nil || n != 2 {
		t.Errorf("%d flows in the log, %v", n, err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	third := New(t.Context(), Options{})
	if _, err := third.Adopt(t.Context(), p); !errors.Is(err, ErrLost) {
		t.Errorf("adopt without a holder: %v", err)
	}
}

// TestDamagedNamesAreNoNames: a network whose table cannot be believed is not opened.
func TestDamagedNamesAreNoNames(t *testing.T) {
	dir := t.TempDir()
	ws := New(t.Context(), Options{Store: fdstore.NewClient(fdstore.Options{Dir: dir})})
	p := Place{ID: "sb-1", Dir: filepath.Join(dir, "network"), Grant: grant(t, "a.example")}
	w := open(t, ws, p)
	ask(t, w, "a.example")
	if err := w.Leave(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.Dir, namesFile), []byte("198.18.0.9 a.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ws.Adopt(t.Context(), p); err == nil || errors.Is(err, ErrLost) {
		t.Errorf("adopt: %v", err)
	}
	if err := errors.Join(ws.Sweep(t.Context(), nil), ws.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestRulesChange: those that are set hold at once, those that are temporary end.
func TestRulesChange(t *testing.T) {
	ws := newNetworks(t, Options{})
	w := open(t, ws, Place{ID: "sb-1", Dir: filepath.Join(t.TempDir(), "network")})
	defer w.Close()
	if _, code := ask(t, w, "a.example"); code != dns.RcodeRefused {
		t.Fatalf("an empty grant answers with %d", code)
	}
	g := grant(t, "a.example")
	g.Temporary = []policy.TemporaryRule{
		{Rule: rule.Rule{Host: "b.example"}, ExpiresAt: time.Now().Add(time.Hour)},
		{Rule: rule.Rule{Host: "c.example"}, ExpiresAt: time.Now().Add(time.Hour)},
	}
	if err := w.SetGrant(g); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.example", "b.example", "c.example"} {
		if _, code := ask(t, w, name); code != dns.RcodeSuccess {
			t.Errorf("%s: code %d", name, code)
		}
	}
	g.Temporary = slices.Clone(g.Temporary)
	g.Temporary[0].ExpiresAt = time.Now().Add(50 * time.Millisecond)
	if err := w.SetGrant(g); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		if _, code := ask(t, w, "b.example"); code == dns.RcodeRefused {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the temporary rule does not end")
		}
	}
	for _, name := range []string{"a.example", "c.example"} {
		if _, code := ask(t, w, name); code != dns.RcodeSuccess {
			t.Errorf("%s went with it: code %d", name, code)
		}
	}
	// It is gone, so that no clock that is set back brings it again.
	if left := w.Grant().Temporary; len(left) != 1 || left[0].Rule.Host != "c.example" || len(g.Temporary) != 2 {
		t.Errorf("left are %+v", left)
	}
	if err := w.SetGrant(policy.EgressGrant{Rules: []rule.Rule{{Host: "not a host"}}}); err == nil {
		t.Error("a rule that is none was taken")
	}
	if _, code := ask(t, w, "a.example"); code != dns.RcodeSuccess {
		t.Error("a change that failed has changed something")
	}
}

func TestLog(t *testing.T) {
	dir := t.TempDir()
	l, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 2000)
	const n = 1200
	for i := range n {
		kind := api.EgressOpened
		if i%2 == 1 {
			kind = api.EgressClosed
		}
		if rec, err := l.Append(api.EgressRecord{Kind: kind, Reason: big}); err != nil || rec.Seq != int64(i+1) {
			t.Fatalf("record %d: %v", rec.Seq, err)
		}
	}
	var size int64
	for _, name := range []string{logFile, oldFile} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		size += fi.Size()
	}
	if size > 2*maxLog {
		t.Errorf("it has %d bytes", size)
	}
	read := func(l *Log, o api.EgressLogOptions) (seqs []int64, missed int64) {
		t.Helper()
		if err := l.Read(t.Context(), o, func(r api.EgressRecord) error {
			seqs, missed = append(seqs, r.Seq), missed+r.Missed
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return seqs, missed
	}
	all, _ := read(l, api.EgressLogOptions{})
	if len(all) < 500 || len(all) > 1100 || all[len(all)-1] != n {
		t.Errorf("%d are kept, the last is %d", len(all), all[len(all)-1])
	}
	if got, missed := read(l, api.EgressLogOptions{After: 5}); len(got) != len(all) || missed != all[0]-6 {
		t.Errorf("%d, %d missed", len(got), missed)
	}
	if got, missed := read(l, api.EgressLogOptions{After: n - 3}); !slices.Equal(got, []int64{n - 2, n - 1, n}) || missed != 0 {
		t.Errorf("%v, %d missed", got, missed)
	}
	if got, _ := read(l, api.EgressLogOptions{Tail: 2, Kinds: []api.EgressKind{api.EgressOpened}}); !slices.Equal(got, []int64{n - 3, n - 1}) {
		t.Errorf("%v", got)
	}
	if got, _ := read(l, api.EgressLogOptions{After: -1}); len(got) != 0 {
		t.Errorf("%v", got)
	}
	// What a crash left half written goes with the next record.
	f, err := os.OpenFile(filepath.Join(dir, logFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, `{"seq":77`)
	f.Close()
	if l, err = OpenLog(dir); err != nil {
		t.Fatal(err)
	}
	if rec, err := l.Append(api.EgressRecord{Kind: api.EgressChanged}); err != nil || rec.Seq != n+1 {
		t.Errorf("%+v, %v", rec, err)
	}
	if got, _ := read(l, api.EgressLogOptions{Tail: 2}); !slices.Equal(got, []int64{n, n + 1}) {
		t.Errorf("%v", got)
	}
	// Who follows has each, and ends with the log.
	got := make(chan int64)
	ended := make(chan error)
	go func() {
		ended <- l.Read(t.Context(), api.EgressLogOptions{After: -1, Follow: true}, func(r api.EgressRecord) error {
			got <- r.Seq
			return nil
		})
	}()
	appended := int64(0)
	more := func() {
		t.Helper()
		_, _, changed, _ := l.state()
		rec, err := l.Append(api.EgressRecord{Kind: api.EgressOpened})
		if err != nil {
			t.Fatal(err)
		}
		<-changed
		appended = rec.Seq
	}
	last := int64(0)
	for last == 0 { // until it has begun
		more()
		select {
		case last = <-got:
		case <-time.After(20 * time.Millisecond):
		}
	}
	more()
	more()
	for last < appended {
		seq := <-got
		if seq != last+1 {
			t.Fatalf("followed from %d to %d", last, seq)
		}
		last = seq
	}
	l.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l, err = OpenLog(dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Read(ctx, api.EgressLogOptions{After: -1, Follow: true}, func(api.EgressRecord) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
