//go:build linux

package gvisor_test

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// TestEnding: how an instance died is known to the daemon that made it, and is
// said not to be by one that found it.
func TestEnding(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	for name, c := range map[string]struct {
		signal syscall.Signal
		want   string
	}{
		"killed": {syscall.SIGKILL, "its sentry was killed by signal KILL"},
		"ended":  {syscall.SIGABRT, "its sentry ended with exit code 2"},
	} {
		t.Run(name, func(t *testing.T) {
			i := create(t, newEngine(t, t.TempDir()), im, nil)
			var state struct {
				Sentry struct {
					PID int `json:"pid"`
				} `json:"sentry"`
			}
			if err := json.Unmarshal(i.State(), &state); err != nil {
				t.Fatal(err)
			}
			found, err := newEngine(t, t.TempDir()).Recover(t.Context(), i.State())
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(state.Sentry.PID, c.signal); err != nil {
				t.Fatal(err)
			}
			<-i.Done()
			<-found.Done()
			// Both engines are of one process here, so that either may be the one that
			// hears of the end; a daemon that recovers the instance does not.
			made, later := i.(engine.Mortal).Ending().How, found.(engine.Mortal).Ending().How
			if made != c.want && later != c.want {
				t.Errorf("it ended: %q or %q, want %q", made, later, c.want)
			}
			for _, how := range []string{made, later} {
				if how != "" && how != c.want {
					t.Errorf("an engine that did not hear of the end says %q", how)
				}
			}
			if err := i.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBrief: of a long farewell the cause, which comes first, and the place,
// which comes last, are kept.
func TestBrief(t *testing.T) {
	if got := gvisor.Brief("panic: short"); got != "panic: short" {
		t.Errorf("%q", got)
	}
	long := gvisor.Brief("panic: why\n" + strings.Repeat("x\xff", 40<<10) + "\nexit status 2")
	if !strings.HasPrefix(long, "panic: why\n") || !strings.HasSuffix(long, "\nexit status 2") || len(long) > 5<<10 {
		t.Errorf("%d bytes: %.40q", len(long), long)
	}
}
