//go:build linux

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
)

const (
	// rollouts are run in each half of the test, so many at a time.
	rollouts, rolloutsAtOnce = 32, 6
	rolloutTime              = 4 * time.Minute
	// killEvery is how often a member of the pool is killed. On a busy machine a member takes most of a second to be made.
	killEvery = 2500 * time.Millisecond
)

// poolWork is one test with its daemon.
type poolWork struct {
	*fixture.Fixture
	client *client.Client
	next   atomic.Int64
}

// TestPoolUnderWork has a pool serve 64 sessions that compute, serve, run out of memory, expire and are killed, while
// members of the pool are killed, and across the death of the daemon and an end of it with a full pool. Each session
// gets what it asked for or an error that says what happened, and finds nothing of another.
func TestPoolUnderWork(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it takes a minute")
	}
	w := &poolWork{Fixture: fixture.NotStarted(t)}
	t.Setenv("CLOCHE__POOL__CEILING", "6")
	w.Start()
	w.connect()
	ctx, cancel := context.WithTimeout(t.Context(), rolloutTime)
	defer cancel()

	stays, err := w.client.Create(ctx, api.SandboxSpec{Name: "stays"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stays.Exec(ctx, "sh", "-c", "echo kept > /workspace/kept"); err != nil {
		t.Fatal(err)
	}
	w.half(ctx)
	w.filled()
	w.Kill9()
	w.Revive()
	w.half(ctx)
	w.filled()
	// An ordinary end, as of an upgrade.
	if err := w.Daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = w.Daemon.Wait()
	w.Daemon = nil
	w.Revive()
	if got, err := stays.Exec(ctx, "cat", "/workspace/kept"); err != nil || got.Output() != "kept\n" {
		t.Errorf("the sandbox that stays: %v, %q", err, got.Output())
	}
	if err := stays.Remove(ctx); err != nil {
		t.Error(err)
	}
	left, err := w.client.List(ctx, api.ListOptions{States: []api.State{api.StateRunning}})
	if err != nil || len(left.Sandboxes) != 0 {
		t.Errorf("left: %v, %v", left.Sandboxes, err)
	}
}

func (w *poolWork) connect() {
	c, err := client.New(client.Options{Host: "unix://" + w.Socket()})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = c.Close() })
	w.client = c
}

// filled waits until sandboxes are ready.
func (w *poolWork) filled() {
	w.T.Helper()
	if !fixture.Poll(func() bool { return w.Booted() > 0 }) {
		b, _ := os.ReadFile(w.Log())
		w.T.Fatalf("no sandbox is ready:\n%s", b[max(0, len(b)-6000):])
	}
}

// half runs rollouts while members of the pool are killed, and wants some of them to come from the pool.
func (w *poolWork) half(ctx context.Context) {
	t := w.T
	t.Helper()
	before := w.counts(ctx)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(killEvery):
			}
			for _, pid := range w.BootedSentries() {
				_ = syscall.Kill(pid, syscall.SIGKILL) // one that has just been taken is as one that is killed
				break
			}
		}
	}()
	work := []func(context.Context, string) error{w.statistics, w.server, w.session, w.outOfMemory, w.expires, w.killed}
	jobs := make(chan int)
	var wg sync.WaitGroup
	for range rolloutsAtOnce {
		wg.Go(func() {
			for i := range jobs {
				id := fmt.Sprintf("token-%d-%d", os.Getpid(), w.next.Add(1))
				err := work[i%len(work)](ctx, id)
				// The test's own kill can hit a sandbox that was taken a moment ago.
				if err != nil && api.CodeOf(err) != api.CodeSandboxLost {
					t.Errorf("rollout %d, %s: %v", i, id, err)
				}
			}
		})
	}
	for i := range rollouts {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	close(stop)
	<-ended
	after := w.counts(ctx)
	n := after.Taken - before.Taken
	t.Logf("%d of %d sandboxes came from the pool: %+v, before %+v", n, rollouts, after, before)
	if n == 0 {
		t.Error("no sandbox came from the pool")
	}
}

func (w *poolWork) counts(ctx context.Context) api.PoolCounts {
	d, err := w.client.Doctor(ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, e := range d.Engines {
		if e.Name == "gvisor" && e.Pool != nil {
			return *e.Pool
		}
	}
	w.T.Fatal("gvisor has no pool")
	return api.PoolCounts{}
}

// in runs do in a sandbox of its own that has nothing of another one, and removes it.
func (w *poolWork) in(ctx context.Context, id string, spec api.SandboxSpec, do func(*client.Sandbox) error) (err error) {
	spec.Env = map[string]string{"TOKEN": id}
	sb, err := w.client.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() {
		if rerr := sb.Remove(context.WithoutCancel(ctx)); rerr != nil && api.CodeOf(rerr) != api.CodeNotFound {
			err = rerr
		}
	}()
	got, err := sb.Exec(ctx, "sh", "-c", `echo $TOKEN > /tmp/token; cat /tmp/* /workspace/* /dev/shm/* 2>/dev/null; env; for p in /proc/[0-9]*; do tr '\0' ' ' < $p/environ; done 2>/dev/null`)
	if err != nil {
		return err
	}
	if out := got.Output(); strings.Count(out, "token-") != strings.Count(out, id) || !strings.Contains(out, id) {
		return fmt.Errorf("it sees another's: %q", out)
	}
	return do(sb)
}

// python runs a program that has to print want.
func python(ctx context.Context, sb *client.Sandbox, program, want string) error {
	got, err := sb.Exec(ctx, "python3", "-c", program)
	if err != nil {
		return err
	}
	if got.Output() != want {
		return fmt.Errorf("it printed %q and %q, want %q", got.Output(), got.Stderr, want)
	}
	return nil
}

func (w *poolWork) statistics(ctx context.Context, id string) error {
	return w.in(ctx, id, api.SandboxSpec{}, func(sb *client.Sandbox) error {
		return python(ctx, sb, `
import csv, statistics
with open("/workspace/t.csv", "w", newline="") as f:
    csv.writer(f).writerows([i, i * i % 97] for i in range(5000))
with open("/workspace/t.csv", newline="") as f:
    column = [int(r[1]) for r in csv.reader(f)]
print(len(column), round(statistics.mean(column), 3), max(column))`, "5000 48.019 96\n")
	})
}

func (w *poolWork) server(ctx context.Context, id string) error {
	return w.in(ctx, id, api.SandboxSpec{}, func(sb *client.Sandbox) error {
		return python(ctx, sb, `
import http.server, os, threading, urllib.request
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["TOKEN"].encode())
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
threading.Thread(target=s.serve_forever, daemon=True).start()
print(urllib.request.urlopen("http://127.0.0.1:%d/" % s.server_port).read().decode())`, id+"\n")
	})
}

// session is several turns in one sandbox, as an agent has them.
func (w *poolWork) session(ctx context.Context, id string) error {
	return w.in(ctx, id, api.SandboxSpec{}, func(sb *client.Sandbox) error {
		for turn := range 4 {
			if err := python(ctx, sb, fmt.Sprintf(`
import os
with open("/workspace/turns", "a") as f: print(os.environ["TOKEN"], %d, file=f)
print(len(open("/workspace/turns").read().splitlines()))`, turn), fmt.Sprintln(turn+1)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *poolWork) outOfMemory(ctx context.Context, id string) error {
	if os.Geteuid() != 0 {
		return w.session(ctx, id) // without a cgroup there is no limit
	}
	return w.in(ctx, id, api.SandboxSpec{Limits: api.Limits{MemoryBytes: 256 << 20}}, func(sb *client.Sandbox) error {
		got, err := sb.Exec(ctx, "python3", "-c", "x = b'x' * (1 << 30)")
		if err == nil && got.OK() {
			return fmt.Errorf("1 GiB fits into 256 MiB")
		}
		return err
	})
}

func (w *poolWork) expires(ctx context.Context, id string) error {
	return w.in(ctx, id, api.SandboxSpec{Limits: api.Limits{IdleMS: 1000}}, func(sb *client.Sandbox) error {
		if !fixture.Poll(func() bool {
			got, err := w.client.Get(ctx, sb.ID)
			return err != nil || got.State != api.StateRunning
		}) {
			return fmt.Errorf("it has not expired")
		}
		return nil
	})
}

// killed loses its sentry, and says so.
func (w *poolWork) killed(ctx context.Context, id string) error {
	return w.in(ctx, id, api.SandboxSpec{}, func(sb *client.Sandbox) error {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		hit := false
		for _, name := range all {
			b, err := os.ReadFile(name)
			if err != nil || !strings.HasPrefix(string(b), "cloche-sentry") || !strings.Contains(string(b), sb.ID) {
				continue
			}
			var pid int
			if _, err := fmt.Sscanf(name, "/proc/%d/cmdline", &pid); err != nil {
				return err
			}
			hit = syscall.Kill(pid, syscall.SIGKILL) == nil || hit
		}
		if !hit {
			return fmt.Errorf("it has no sentry")
		}
		got, err := sb.Exec(ctx, "true")
		switch code := api.CodeOf(err); {
		case err == nil && got.OK():
			return errors.New("a program ran after its sentry was killed")
		case err != nil && code != api.CodeSandboxLost && code != api.CodeState:
			return fmt.Errorf("an exec after it was killed: %w", err)
		}
		return nil
	})
}
