package agentconn

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
		c := New(Options{Dialer: &deafInstance{stopped: []string{"sentry", "gofer"}}, Token: make([]byte, 32)})
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
