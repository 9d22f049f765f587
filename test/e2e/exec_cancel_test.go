//go:build linux

package e2e_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
)

// connections counts those to a unix socket, also those that were not accepted yet.
func connections(t *testing.T, socket string) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		const listens = "00010000" // among the flags
		if f := strings.Fields(line); len(f) == 8 && f[7] == socket && f[3] != listens {
			n++
		}
	}
	return n
}

// TestCallersThatLeave gives up execs at every moment of their first milliseconds, and
// kills their callers. What was to end has ended, and what was to go on goes on.
func TestCallersThatLeave(t *testing.T) {
	h := fixture.New(t)
	c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb, err := c.Create(t.Context(), api.SandboxSpec{Image: "host"})
	if err != nil {
		t.Fatal(err)
	}
	running := func() (ids []string) {
		t.Helper()
		all, err := c.Processes(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if p.Running {
				ids = append(ids, p.ExecID)
			}
		}
		return ids
	}
	// noticed waits until the daemon is done with the requests of all callers that have left.
	noticed := func(t *testing.T) {
		t.Helper()
		if !fixture.Poll(func() bool {
			_ = c.Close() // its idle connections
			return connections(t, h.Socket()) == 0
		}) {
			t.Fatalf("the daemon has %d connections", connections(t, h.Socket()))
		}
	}
	// none waits until nothing runs, and nothing can come.
	none := func(t *testing.T) {
		t.Helper()
		noticed(t)
		if !fixture.Poll(func() bool { return len(running()) == 0 }) {
			t.Fatalf("execs go on that were given up: %q", running())
		}
	}
	// giveUp asks for execs, each of which it gives up after 0 to 5 ms.
	giveUp := func(t *testing.T, req api.ExecRequest, after func(id string) error) {
		t.Helper()
		var all sync.WaitGroup
		for lane := range 4 {
			all.Go(func() {
				for i := range 25 {
					req := req
					req.ExecID, req.Shell = api.NewID("given-up-"), "sleep 1000"
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*4+lane)*50*time.Microsecond)
					_, err := c.Exec(ctx, sb.ID, req)
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v, want the end of its context", req.ExecID, err)
					}
					if err := after(req.ExecID); err != nil {
						t.Errorf("%s: %v", req.ExecID, err)
					}
				}
			})
		}
		all.Wait()
		none(t)
	}
	t.Run("killed by id", func(t *testing.T) {
		giveUp(t, api.ExecRequest{}, func(id string) error {
			err := c.SignalProcess(t.Context(), sb.ID, id, api.SignalRequest{Signal: "KILL"})
			if api.CodeOf(err) == api.CodeNotFound {
				return nil // it is remembered
			}
			return err
		})
	})
	t.Run("cancel with caller", func(t *testing.T) {
		giveUp(t, api.ExecRequest{CancelWithCaller: true}, func(string) error { return nil })
	})
	for name, json := range map[string]bool{"streamed": false, "collected": true} {
		t.Run("caller killed, "+name, func(t *testing.T) {
			for _, cancels := range []bool{true, false} {
				caller := h.Command("exec", "--json="+strconv.FormatBool(json), "--cancel-with-caller="+strconv.FormatBool(cancels), sb.ID, "--", "sleep", "1000")
				if err := caller.Start(); err != nil {
					t.Fatal(err)
				}
				began := fixture.Poll(func() bool { return len(running()) == 1 })
				_ = caller.Process.Kill()
				_ = caller.Wait()
				if !began {
					t.Fatal("the exec has not begun")
				}
				if cancels {
					none(t)
					continue
				}
				noticed(t)
				left := running()
				if len(left) != 1 {
					t.Fatalf("%q run, want the exec whose caller was killed", left)
				}
				if err := c.SignalProcess(t.Context(), sb.ID, left[0], api.SignalRequest{Signal: "KILL"}); err != nil {
					t.Fatal(err)
				}
				none(t)
			}
		})
	}
	if _, err := c.StartProcess(t.Context(), sb.ID, api.ProcessSpec{ExecRequest: api.ExecRequest{Shell: "true", CancelWithCaller: true}}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a process that is to end with its caller: %v, want invalid", err)
	}
	h.Must("rm", "-f", sb.ID)
}
