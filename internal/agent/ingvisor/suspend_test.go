//go:build linux

package ingvisor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
)

// suspend saves the memory of a sandbox and ends its instance.
func (b *box) suspend(t *testing.T) engine.Memory {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Suspend(ctx, false); err != nil {
		t.Fatal("the agent: ", err)
	}
	began := time.Now()
	complete, err := b.instance.(engine.Suspender).Suspend(ctx, t.TempDir())
	if err != nil {
		t.Fatal("the engine: ", err)
	}
	m, err := complete(ctx)
	if err != nil {
		t.Fatal("the engine: ", err)
	}
	t.Logf("saved %d bytes in %s", m.Bytes, time.Since(began))
	if err := b.instance.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

// resume makes another instance of a saved memory.
func (b *box) resume(t *testing.T, m engine.Memory) {
	t.Helper()
	p := b.plan
	p.ID, p.Dir, p.Memory = api.NewID("sb-"), t.TempDir(), &m
	began := time.Now()
	i, err := b.engine.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("restored in %s", time.Since(began))
	t.Cleanup(func() { i.Close(t.Context()) })
	b.instance = i
	b.Client = b.connect(t)
}

// errRead ends a reader that has what it wants.
var errRead = errors.New("read")

// TestSuspend: programs continue with their memory, their processes and their open files, and what
// they wrote is there.
func TestSuspend(t *testing.T) {
	work := t.TempDir()
	b := bootWith(t, nil, func(p *engine.Plan) { p.Mounts[1].Source = work })
	const program = `
import os, sys, time
secret = os.urandom(16).hex()
open('/root/secret', 'w').write(secret)
f = open('/root/open', 'w+')
f.write(secret); f.flush(); os.unlink('/root/open')
g = open('/work/log', 'a')
print('ready', os.getpid(), flush=True)
for line in sys.stdin:
    f.seek(0)
    g.write(line); g.flush()
    print(line.strip(), f.read() == secret == open('/root/secret').read(), os.getpid(), flush=True)
`
	s := start("python3", "-c", program)
	p, err := b.StartProcess(t.Context(), agent.Process{Start: s, Spec: api.ProcessSpec{OpenStdin: true}})
	if err != nil {
		t.Fatal(err)
	}
	read := func(want string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var out bytes.Buffer
		err := b.Follow(ctx, s.ExecID, agent.FollowOptions{Follow: true}, func(c agent.Chunk) error {
			out.Write(c.Data)
			if strings.Contains(out.String(), want) && bytes.HasSuffix(out.Bytes(), []byte("\n")) {
				return errRead
			}
			return nil
		})
		if !errors.Is(err, errRead) {
			t.Fatalf("it wrote %q, without %q: %v", out.String(), want, err)
		}
		return out.String()
	}
	pid := strings.TrimPrefix(strings.TrimSpace(read("ready")), "ready ")
	b.run(t, "echo kept >/root/kept; echo shared >/tmp/kept")
	at := int64(0)
	for n, word := range []string{"one", "two"} {
		m := b.suspend(t)
		for _, name := range []string{"kernel", "pages", "pages.meta"} {
			if fi, err := os.Stat(filepath.Join(m.Dir, name)); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, fi, err)
			}
		}
		b.resume(t, m)
		if _, err := b.WriteStdin(t.Context(), s.ExecID, at, []byte(word+"\n")); err != nil {
			t.Fatal(err)
		}
		at += int64(len(word) + 1)
		out := read(word)
		if want := word + " True " + pid + "\n"; !strings.Contains(out, want) || strings.Count(out, "ready") != 1 {
			t.Errorf("after %d times it wrote %q", n+1, out)
		}
		if got := b.run(t, "cat /root/kept /tmp/kept"); got != "kept\nshared" {
			t.Errorf("the files have %q", got)
		}
	}
	if log, err := os.ReadFile(filepath.Join(work, "log")); err != nil || string(log) != "one\ntwo\n" {
		t.Errorf("the mount has %q, %v", log, err)
	}
	recs, err := b.Processes(t.Context())
	if err != nil || len(recs) == 0 || recs[0].ExecID != p.ExecID {
		t.Errorf("the agent has %+v, %v", recs, err)
	}
}

// TestForks: one memory continues in several sandboxes. Each agent takes a token and a host name of its own, refuses the old
// token from then on, and has cut off every connection that was made with that.
func TestForks(t *testing.T) {
	b := boot(t, nil)
	b.run(t, "echo kept >/root/kept")
	m := b.suspend(t)
	parents := b.token
	for _, name := range []string{"one", "two"} {
		f := &box{engine: b.engine, plan: b.plan, token: parents}
		f.resume(t, m)
		older := f.connect(t)
		token := agent.NewToken()
		if err := f.Renew(t.Context(), token, name); err != nil {
			t.Fatal(err)
		}
		select {
		case <-older.Done():
		case <-time.After(10 * time.Second):
			t.Error("a connection of before is still open")
		}
		conn, err := f.instance.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c, err := agent.Connect(t.Context(), conn, parents); err == nil {
			c.Close()
			t.Error("the parent's token is still accepted")
		}
		f.token = token
		f.Client = f.connect(t)
		if got := f.run(t, "hostname; cat /root/kept"); got != name+"\nkept" {
			t.Errorf("it has %q", got)
		}
		if err := f.Renew(t.Context(), []byte("short"), ""); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("a short token: %v", err)
		}
	}
}

// A restored sandbox whose agent cannot be reached is an error, and nothing of it is left.
func TestResumeUnreached(t *testing.T) {
	b := boot(t, nil)
	m := b.suspend(t)
	p := b.plan
	p.ID, p.Dir, p.Memory, p.Agent.Port = api.NewID("sb-"), t.TempDir(), &m, 9
	if i, err := b.engine.Create(t.Context(), p); err == nil {
		i.Close(t.Context())
		t.Fatal("it was resumed")
	}
	b.resume(t, m)
	b.run(t, "true")
}
