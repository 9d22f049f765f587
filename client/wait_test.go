//go:build linux

package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/mockcore"
)

// waitFor waits for the cat of the box beside the test.
func waitFor(ctx context.Context, c *client.Client, timeout time.Duration) <-chan error {
	got := make(chan error, 1)
	go func() {
		p, err := c.WaitProcess(ctx, "box", "cat", api.WaitRequest{TimeoutMS: timeout.Milliseconds()})
		if err == nil && !p.State.Ended() {
			err = errors.New("it goes on")
		}
		got <- err
	}()
	synctest.Wait()
	return got
}

// TestWaitOverAWireThatBreaks: a wait is for a process, which outlives daemons,
// and so does the wait: as long as its caller says and no longer.
func TestWaitOverAWireThatBreaks(t *testing.T) {
	var notes atomic.Int32
	o := client.Options{OnReconnect: func(error, time.Duration) { notes.Add(1) }}
	bubble(t, 1, o, func(t *testing.T, c *client.Client, w *wire, _ *mockcore.Core) {
		ctx := t.Context()
		if _, err := c.StartProcess(ctx, "box", api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "cat", Argv: []string{"cat"}}, OpenStdin: true}); err != nil {
			t.Fatal(err)
		}
		lost := func() {
			w.set(0, true)
			w.sever()
			c.Close()
		}

		got := waitFor(ctx, c, 0)
		time.Sleep(90 * time.Second) // over more than one request
		lost()
		time.Sleep(10 * time.Minute)
		w.set(0, false)
		time.Sleep(2 * time.Minute) // more than the longest pause between attempts
		if len(got) != 0 {
			t.Fatalf("it ended before its process: %v", <-got)
		}
		if n := notes.Load(); n < 5 {
			t.Errorf("%d attempts in ten minutes, want those of a backoff", n)
		}

		// Where only its caller's time is up, what is wrong is said.
		short, inTime := context.WithTimeout(ctx, time.Minute)
		defer inTime()
		bySelf := waitFor(ctx, c, 2*time.Minute)
		byContext := waitFor(short, c, 0)
		lost()
		if err := <-byContext; api.CodeOf(err) != api.CodeTimeout {
			t.Errorf("when its context ended: %v", err)
		}
		began := time.Now()
		if err := <-bySelf; api.CodeOf(err) != api.CodeUnavailable || time.Since(began) > time.Minute+time.Second {
			t.Errorf("when its time was up after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		if _, err := c.WaitProcess(ctx, "box", "cat", api.WaitRequest{}); !errors.Is(err, api.ErrUnavailable) || time.Since(began) > time.Second {
			t.Errorf("without a daemon from the first: %v after %v", err, time.Since(began))
		}

		w.set(0, false)
		if _, err := c.CloseStdin(ctx, "box", "cat"); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Errorf("after the process ended: %v", err)
		}
		if _, err := c.WaitProcess(ctx, "box", "none", api.WaitRequest{}); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("for no process: %v", err)
		}
	})
}
