package sandbox

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/engine"
)

// deafInstance is one whose agent takes everything and answers nothing.
type deafInstance struct {
	engine.Instance
	stopped []string
}

func (i *deafInstance) Dial(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, theirs) }() // it ends with ours
	return ours, nil
}

func (i *deafInstance) Stopped() []string { return i.stopped }

// TestCallsShareADial: calls that wait for an agent that does not answer find that out from
// one of them, and do not dial one after the other.
func TestCallsShareADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &agentConn{inst: &deafInstance{stopped: []string{"sentry", "gofer"}}, token: make([]byte, 32)}
		begun := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, err := c.Get(t.Context())
				if api.CodeOf(err) != api.CodeSandboxLost || !strings.Contains(err.Error(), "the sandbox's agent (stopped: its sentry and gofer) does not answer") {
					t.Errorf("%v", err)
				}
			})
		}
		// One that gives up leaves the others.
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		early, notes := await.With(early)
		_, err := c.Get(early)
		if part, _ := notes.Last(); err == nil || part != "the sandbox's agent (stopped: its sentry and gofer)" {
			t.Errorf("%v, waiting for %q", err, part)
		}
		all.Wait()
		if took := time.Since(begun); took > 2*dialTimeout {
			t.Errorf("20 calls took %s", took)
		}
		time.Sleep(time.Second)
		// A later one dials for itself.
		begun = time.Now()
		if _, err := c.Get(t.Context()); time.Since(begun) < dialTimeout {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
	})
}

// TestWantedPrograms: a program that the agent does not know is over, unless a call waits
// for it; then the agent is asked once more.
func TestWantedPrograms(t *testing.T) {
	m, s := &Manager{deadlineGrace: time.Minute, deadlineLook: time.Minute, ctx: t.Context()}, &live{id: "sb", dir: t.TempDir()}
	defer s.deadlines.end()
	s.deadlines.ask("wanted", 1)
	for _, id := range []string{"wanted", "over"} {
		m.setDeadline(s, id, time.Hour)
		d := s.deadlines.byID[id]
		for i, again := range []bool{id == "wanted", false} {
			if got, more := m.wanted(s, d); got != (id == "wanted") || more != again {
				t.Errorf("%s, asked %d times: %t, %t", id, i, got, more)
			}
		}
	}
	s.deadlines.ask("wanted", -1)
	if got, _ := m.wanted(s, s.deadlines.byID["wanted"]); got || len(s.deadlines.asked) != 0 {
		t.Error("a call that has ended waits")
	}
}
