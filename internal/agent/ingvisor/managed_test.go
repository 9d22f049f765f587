//go:build linux

package ingvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

var errFound = errors.New("found")

// within is a context for what must not hang.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func (b *box) must(t testing.TB, p agent.Process) api.Process {
	t.Helper()
	r, err := b.StartProcess(within(t, time.Minute), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// until watches a process until its record is as wanted.
func (b *box) until(t testing.TB, id string, want func(api.Process) bool) api.Process {
	t.Helper()
	var last api.Process
	err := b.WatchProcesses(within(t, time.Minute), func(p api.Process) error {
		if p.ExecID == id {
			if last = p; want(p) {
				return errFound
			}
		}
		return nil
	})
	if err != errFound {
		t.Fatalf("%v; the last record is %+v", err, last)
	}
	return last
}

func ended(p api.Process) bool { return p.State.Ended() }
func ready(p api.Process) bool { return p.State == api.ProcessReady }

// reader reads a process's output to where something stands in it.
type reader struct {
	b    *box
	id   string
	at   int64
	seen string
}

func (r *reader) expect(t testing.TB, what string) {
	t.Helper()
	check := func() bool {
		i := strings.Index(r.seen, what)
		if i >= 0 {
			r.seen = r.seen[i+len(what):]
		}
		return i >= 0
	}
	if check() {
		return
	}
	err := r.b.Follow(within(t, time.Minute), r.id, agent.FollowOptions{Since: r.at, Follow: true}, func(k agent.Chunk) error {
		r.at += int64(len(k.Data))
		r.seen += string(k.Data)
		if check() {
			return errFound
		}
		return nil
	})
	if err != errFound {
		t.Fatalf("no %q in %q: %v", what, r.seen, err)
	}
}

func TestRestart(t *testing.T) {
	b := boot(t, nil)
	p := managed("echo run; exit 2")
	p.Spec.Restart = &api.Restart{Policy: api.RestartOnFailure, BackoffMS: 200, MaxBackoffMS: 200, MaxRestarts: 3}
	b.must(t, p)
	r := b.until(t, p.ExecID, ended)
	if r.State != api.ProcessFailed || r.Restarts != 3 || *r.ExitCode != 2 || r.Position != 16 {
		t.Fatalf("%+v", r)
	}
	// A run kills what the one before has left, so that the next finds its port free.
	p = managed("(setsid sleep 1000 &) ; echo up; kill -9 $$")
	p.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 200, MaxRestarts: 2}
	b.must(t, p)
	b.until(t, p.ExecID, ended)
	if got := b.run(t, "ps -eo args | grep -c '^sleep 1000' || true"); got != "1" {
		t.Fatalf("%s are left", got)
	}
	if err := b.RemoveProcess(within(t, time.Minute), p.ExecID); err != nil {
		t.Fatal(err)
	}
	if got := b.run(t, "ps -eo args | grep -c '^sleep 1000' || true"); got != "0" {
		t.Fatalf("%s are left", got)
	}
}

func TestReadinessAndPorts(t *testing.T) {
	b := boot(t, nil)
	for name, c := range map[string]struct {
		script string
		ready  api.Readiness
	}{
		"log":    {"sleep 0.2; echo 'listening on 80' >&2; sleep 100", api.Readiness{Log: `^listening on \d+$`}},
		"prompt": {"printf 'ready> '; sleep 100", api.Readiness{Log: "^ready> $"}},
		"port":   {"exec python3 -m http.server --bind 127.0.0.1 8001", api.Readiness{Port: 8001}},
		"http":   {"exec python3 -m http.server --bind 127.0.0.1 --directory /etc 8002", api.Readiness{HTTP: &api.HTTPProbe{Port: 8002, Path: "/passwd"}}},
	} {
		p := managed(c.script)
		p.Spec.Ready = &c.ready
		if r := b.must(t, p); r.ReadyAt != nil && name != "prompt" {
			t.Errorf("%s: ready at once", name)
		}
		b.until(t, p.ExecID, ready)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		var n int
		fmt.Sscan(port, &n)
		return b.DialPort(ctx, n)
	}}
	defer transport.CloseIdleConnections()
	for range 5 {
		resp, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Get("http://localhost:8002/passwd")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !bytes.HasPrefix(body, []byte("root:x:0:0")) {
			t.Fatalf("%d %q %v", resp.StatusCode, body, err)
		}
	}
	if _, err := b.DialPort(t.Context(), 8003); !errors.Is(err, api.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := b.DialPort(t.Context(), agent.Port); !errors.Is(err, api.ErrDenied) {
		t.Fatal(err)
	}
}

func TestFollowOverReconnects(t *testing.T) {
	b := boot(t, nil)
	p := managed("seq 1 2000000; echo done >&2")
	p.Spec.OnFull = api.OnFullBlock
	b.must(t, p)
	var out, errs bytes.Buffer
	position := func() int64 { return int64(out.Len() + errs.Len()) }
	turns := 0
	for ; ; turns++ {
		last := position()
		c := b.connect(t)
		err := c.Follow(within(t, 60*time.Second), p.ExecID, agent.FollowOptions{Since: position(), Follow: true, Primary: true}, func(k agent.Chunk) error {
			if k.Position != position() || k.Gap != 0 {
				t.Fatalf("%+v at %d", k, position())
			}
			if k.Stream == api.Stderr {
				errs.Write(k.Data)
			} else {
				out.Write(k.Data)
			}
			if position()-last > 3_000_000 {
				c.Close() // as a daemon that is killed
			}
			return nil
		})
		c.Close()
		if err == nil {
			break
		}
		if !errors.Is(err, api.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	var want bytes.Buffer
	for i := 1; i <= 2_000_000; i++ {
		fmt.Fprintln(&want, i)
	}
	if turns < 4 || !bytes.Equal(out.Bytes(), want.Bytes()) || errs.String() != "done\n" {
		t.Fatalf("%d turns, %d bytes, %q", turns, out.Len(), &errs)
	}
	if r := b.until(t, p.ExecID, ended); r.Position != position() {
		t.Fatalf("%+v", r)
	}
}

func TestNobodyReadsAndNothingWaits(t *testing.T) {
	b := boot(t, nil)
	p := managed("head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end")
	b.must(t, p)
	r := b.until(t, p.ExecID, ended)
	var gap, n int64
	if err := b.Follow(within(t, time.Minute), p.ExecID, agent.FollowOptions{Since: 10, Follow: true}, func(k agent.Chunk) error {
		gap += k.Gap
		n += int64(len(k.Data))
		return nil
	}); err != nil || r.Position != 20_000_005 || 10+gap+n != r.Position || n != 2*agent.DefaultRingBytes {
		t.Fatalf("gap %d, %d bytes, %+v, %v", gap, n, r, err)
	}
}

func TestStdinOffsets(t *testing.T) {
	b := boot(t, nil)
	p := managed("exec cat")
	p.Spec.OpenStdin = true
	b.must(t, p)
	data := bytes.Repeat([]byte("0123456789"), 50_000)
	for at := int64(0); at < int64(len(data)); {
		// Every write is sent twice, and reaches into the next.
		piece := data[at:min(at+90_000, int64(len(data)))]
		for range 2 {
			got, err := b.WriteStdin(within(t, time.Minute), p.ExecID, at, piece)
			if err != nil || got != at+int64(len(piece)) {
				t.Fatal(got, err)
			}
		}
		at += int64(len(piece)) * 2 / 3
		if len(piece) < 90_000 {
			break
		}
	}
	if _, err := b.WriteStdin(t.Context(), p.ExecID, int64(len(data))+1, []byte("x")); !errors.Is(err, api.ErrInvalid) {
		t.Fatal(err)
	}
	if err := b.CloseStdin(t.Context(), p.ExecID); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := b.Follow(within(t, time.Minute), p.ExecID, agent.FollowOptions{Follow: true}, func(k agent.Chunk) error {
		got.Write(k.Data)
		return nil
	}); err != nil || !bytes.Equal(got.Bytes(), data) {
		t.Fatalf("%d bytes, %v", got.Len(), err)
	}
}

// foregroundJob is a line for a shell: a job that says "waiting", "continued" at
// SIGCONT, and "interrupted" at SIGINT, with which it ends. It starts no program: on
// every kernel, a ^Z that meets a shell between vfork and exec stops the child alone,
// and the shell, which waits for the exec, is not seen to stop. And it waits for its
// signals by sigwait, so that none comes before a wait begins.
const foregroundJob = `python3 -c 'import signal as s; w = {s.SIGINT, s.SIGCONT}; s.pthread_sigmask(s.SIG_BLOCK, w); print("wait" "ing", flush=True); ` +
	`[print("contin" "ued", flush=True) for _ in iter(lambda: s.sigwait(w), s.SIGINT)]; print("interr" "upted")'` + "\n"

func TestTerminalJobControl(t *testing.T) {
	b := boot(t, nil)
	p := managed("")
	p.Argv = []string{"/bin/bash", "--norc", "-i"}
	p.Env = append(p.Env, "PS1=$ ", "TERM=dumb")
	p.TTY, p.Rows, p.Cols = true, 24, 80
	b.must(t, p)
	say := func(s string) {
		if _, err := b.WriteStdin(within(t, time.Minute), p.ExecID, -1, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	r := &reader{b: b, id: p.ExecID}
	r.expect(t, "$ ")
	say(foregroundJob)
	r.expect(t, "waiting")
	say("\x1a") // ^Z
	r.expect(t, "Stopped")
	say("echo shell $((40+2)); fg\n")
	r.expect(t, "shell 42")
	r.expect(t, "continued") // the job is told so once it is in front
	say("\x03")              // ^C reaches the job alone
	r.expect(t, "interrupted")
	say(foregroundJob)
	r.expect(t, "waiting")
	if err := b.SignalProcess(t.Context(), p.ExecID, int(unix.SIGINT), api.ScopeGroup, false); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "interrupted")
	if err := b.Resize(t.Context(), p.ExecID, 44, 111); err != nil {
		t.Fatal(err)
	}
	say("stty size\n")
	r.expect(t, "44 111")
	// The kernel here does not say who is in front: what has no key is refused
	// while that is not the only group.
	say("sleep 1000\n")
	for end := time.Now().Add(time.Minute); b.run(t, "ps -eo args | grep -c '^sleep 1000' || true") != "1"; {
		if time.Now().After(end) {
			t.Fatal("sleep does not run")
		}
	}
	if err := b.SignalProcess(t.Context(), p.ExecID, int(unix.SIGUSR1), api.ScopeGroup, false); err != nil && !errors.Is(err, api.ErrUnsupported) {
		t.Fatal(err)
	}
	say("\x03")
	say("exit 6\n")
	if rec := b.until(t, p.ExecID, ended); rec.ExitCode == nil || *rec.ExitCode != 6 {
		t.Fatalf("%+v", rec)
	}
}

func TestBlockedProcessIsEnded(t *testing.T) {
	b := boot(t, nil)
	p := managed("exec yes")
	p.Spec.OnFull = api.OnFullBlock
	b.must(t, p)
	full := b.until(t, p.ExecID, func(r api.Process) bool { return r.Position >= 2*agent.DefaultRingBytes })
	if err := b.SignalProcess(t.Context(), p.ExecID, 15, "", false); err != nil {
		t.Fatal(err)
	}
	r := b.until(t, p.ExecID, ended)
	if r.Signal != "TERM" || r.Position > full.Position+1<<20 {
		t.Fatalf("%+v", r)
	}
	n := int64(0)
	if err := b.Follow(within(t, time.Minute), p.ExecID, agent.FollowOptions{Follow: true, Primary: true}, func(k agent.Chunk) error {
		n += int64(len(k.Data))
		return nil
	}); err != nil || n != r.Position {
		t.Fatal(n, r.Position, err)
	}
}
