//go:build linux

package sandbox

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
)

// refusingDialer dials no agent.
type refusingDialer struct{}

func (refusingDialer) Dial(context.Context) (net.Conn, error) { return nil, errors.New("refused") }

// What is told of a running sandbox was true when its agent last answered; of another, the
// daemon knows it now.
func TestObservedAt(t *testing.T) {
	for name, c := range map[string]struct {
		state api.State
		asked bool
		old   bool
	}{
		"running, and it answers":         {api.StateRunning, false, false},
		"running, and it does not answer": {api.StateRunning, true, true},
		"paused":                          {api.StatePaused, true, false},
		"stopped":                         {api.StateStopped, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, missed := agentconn.New(agentconn.Options{Dialer: refusingDialer{}}), now()
				for range 2 { // the first time counts
					if c.asked {
						if _, err := conn.Get(t.Context()); err == nil {
							t.Fatal("it answers")
						}
					}
					time.Sleep(time.Minute)
				}
				want := now()
				if c.old {
					want = missed
				}
				if got := (&live{info: api.Sandbox{State: c.state}, agent: conn}).observed().ObservedAt; !got.Equal(want) {
					t.Errorf("observed at %s, want %s", got, want)
				}
			})
		})
	}
}
