package egress_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// talk sends a word over a flow that was let out and wants it back.
func talk(t *testing.T, o *guest) {
	t.Helper()
	o.far.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(o.far, "word"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(o.far, b); err != nil || string(b) != "word" {
		t.Fatalf("%q, %v", b, err)
	}
	o.far.Close()
}

// turnedAway wants the end of a flow that was not let out.
func turnedAway(t *testing.T, o *guest) {
	t.Helper()
	defer o.far.Close()
	o.far.SetDeadline(time.Now().Add(time.Minute))
	if n, err := o.far.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it got %d bytes, %v", n, err)
	}
}

func TestAskedFlowsWait(t *testing.T) {
	e, c := &echo{}, &counter{}
	asked, word := make(chan egress.Asked, 1), make(chan bool)
	g, at := gate(t, e, egress.Options{Observer: c, Ask: func(ctx context.Context, a egress.Asked) bool {
		asked <- a
		select {
		case w := <-word:
			return w
		case <-ctx.Done():
			return false
		}
	}}, "b.org:7")
	var flows sync.WaitGroup
	connect := func(name rule.Name, port uint16) *guest {
		o := newGuest(t)
		flows.Go(func() { g.Connect(at(name, port), o) })
		return o
	}
	// Let out: the rules come first, then the word.
	o := connect("a.org", 7)
	if a := <-asked; a != (egress.Asked{Name: "a.org", Port: 7, Rule: "a.org:7"}) {
		t.Errorf("asked %+v", a)
	}
	if e.dialed.Load() != 0 {
		t.Error("it left before there was a word")
	}
	g.SetRules(compile(t, "a.org:7"))
	talk(t, o) // other rules are as good as a word
	// A yes without a rule lets nothing out.
	o = connect("b.org", 7)
	if a := <-asked; a.Rule != "b.org:7" {
		t.Errorf("asked %+v", a)
	}
	word <- true
	turnedAway(t, o)
	// A no.
	o = connect("a.org", 8)
	<-asked
	word <- false
	turnedAway(t, o)
	// What is denied is not asked about.
	deny := rule.Rule{Host: "a.org", Deny: true}
	s, err := rule.Compile([]rule.Rule{deny})
	if err != nil {
		t.Fatal(err)
	}
	g.SetRules(s)
	o = connect("a.org", 7)
	turnedAway(t, o)
	// The end of the gate is a no as well.
	o = connect("c.org", 7)
	<-asked
	g.Close()
	turnedAway(t, o)
	flows.Wait()
	if e.dialed.Load() != 1 || len(asked) != 0 {
		t.Errorf("%d dialled, %d asked", e.dialed.Load(), len(asked))
	}
}

func TestAskingIsBounded(t *testing.T) {
	var asking sync.WaitGroup
	asking.Add(32)
	g, at := gate(t, &echo{}, egress.Options{Ask: func(ctx context.Context, _ egress.Asked) bool {
		asking.Done()
		<-ctx.Done()
		return false
	}})
	var flows sync.WaitGroup
	for i := range 32 {
		o := newGuest(t)
		flows.Go(func() { g.Connect(at(rule.Name("n"+strconv.Itoa(i)+".org"), 7), o); o.far.Close() })
	}
	asking.Wait()
	o := newGuest(t)
	g.Connect(at("more.org", 7), o)
	turnedAway(t, o)
	g.Close()
	flows.Wait()
}
