//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/output"
)

func TestFollowFromAnywhere(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("seq 1 2000; echo middle >&2; seq 2001 4000; read x; printf end")
	p.Spec.OpenStdin = true
	in.must(t, p)
	r := until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position == 18893+7 })
	var all bytes.Buffer
	next := int64(0)
	read := func(o agent.FollowOptions) []byte {
		var b bytes.Buffer
		at := o.Since
		if err := in.Follow(within(t, time.Minute), p.ExecID, o, func(k agent.Chunk) error {
			if k.Position != at || k.Gap != 0 || k.Time.IsZero() || k.Offset > k.Position {
				t.Errorf("%+v at %d", k, at)
			}
			at += int64(len(k.Data))
			b.Write(k.Data)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	all.Write(read(agent.FollowOptions{}))
	if int64(all.Len()) != r.Position || bytes.Count(all.Bytes(), []byte("middle\n")) != 1 {
		t.Fatalf("%d bytes", all.Len())
	}
	for ; next < r.Position; next += 97 {
		if got := read(agent.FollowOptions{Since: next}); !bytes.Equal(got, all.Bytes()[next:]) {
			t.Fatalf("from %d: %d bytes", next, len(got))
		}
	}
	if _, err := in.WriteStdin(t.Context(), p.ExecID, 0, []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if got := read(agent.FollowOptions{Since: r.Position, Follow: true, Primary: true}); string(got) != "end" {
		t.Fatalf("%q", got)
	}
	if got := read(agent.FollowOptions{Since: r.Position + 3, Follow: true}); len(got) != 0 {
		t.Fatalf("%q", got)
	}
	stop := errors.New("enough")
	if err := in.Follow(t.Context(), p.ExecID, agent.FollowOptions{}, func(agent.Chunk) error { return stop }); err != stop {
		t.Fatal(err)
	}
	if err := in.Follow(t.Context(), "no-such", agent.FollowOptions{}, nil); !errors.Is(err, api.ErrNotFound) {
		t.Fatal(err)
	}
}

func TestDroppedOutputIsAGap(t *testing.T) {
	in := boot(t, func(c *agent.Config, _ *execCmd) { c.RingBytes = 32 << 10 })
	p := managedShell("seq 1 300000")
	in.must(t, p)
	until(t, in.Client, p.ExecID, ended)
	const total = 1988895
	out, _ := outputOf(t, in.Client, p.ExecID, 1000)
	want := fmt.Sprintf("[gap %d]", total-64<<10-1000)
	// The gap comes first, and the helper writes it after the chunk it came in.
	if !strings.HasPrefix(out, want) || len(out) != len(want)+64<<10 || !strings.HasSuffix(out, "\n300000\n") {
		t.Fatalf("%d bytes: %.60q", len(out), out)
	}
}

func TestBlockWaitsForThePrimary(t *testing.T) {
	in := boot(t, func(c *agent.Config, _ *execCmd) { c.RingBytes = 32 << 10 })
	p := managedShell("seq 1 300000; echo done >&2")
	p.Spec.OnFull = api.OnFullBlock
	in.must(t, p)
	// Readers who are not the primary one change nothing.
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	defer cancel()
	n := int64(0)
	_ = in.Follow(ctx, p.ExecID, agent.FollowOptions{Follow: true}, func(k agent.Chunk) error {
		if n += int64(len(k.Data)); n >= 64<<10 {
			time.AfterFunc(300*time.Millisecond, cancel) // in which more would come
		}
		return nil
	})
	if ps, err := in.Processes(t.Context()); err != nil || !ps[0].Running || n < 64<<10 || n > 64<<10+2*output.BlockBytes {
		t.Fatalf("%d bytes, %+v, %v", n, ps, err)
	}
	// One that comes and goes loses and repeats nothing.
	var all bytes.Buffer
	enough := errors.New("enough")
	for turns := 0; ; turns++ {
		last := all.Len()
		c := in.connect(t)
		err := c.Follow(within(t, time.Minute), p.ExecID, agent.FollowOptions{Since: int64(all.Len()), Follow: true, Primary: true}, func(k agent.Chunk) error {
			if k.Gap != 0 || k.Position != int64(all.Len()) {
				t.Fatalf("%+v at %d", k, all.Len())
			}
			all.Write(k.Data)
			if all.Len()-last > 300_000 {
				return enough
			}
			return nil
		})
		c.Close()
		if err == nil {
			if turns < 4 {
				t.Fatalf("%d turns", turns)
			}
			break
		}
		if err != enough {
			t.Fatal(err)
		}
	}
	if all.Len() != 1988895+5 || !strings.HasSuffix(strings.Replace(all.String(), "done\n", "", 1), "\n300000\n") {
		t.Fatalf("%d bytes", all.Len())
	}
}

func TestBlockedProcessCanBeEnded(t *testing.T) {
	in := boot(t, func(c *agent.Config, _ *execCmd) { c.RingBytes = 32 << 10 })
	p := managedShell("exec yes")
	p.Spec.OnFull = api.OnFullBlock
	in.must(t, p)
	if err := in.SignalProcess(t.Context(), p.ExecID, 9, "", false); err != nil {
		t.Fatal(err)
	}
	if r := until(t, in.Client, p.ExecID, ended); r.Signal != "KILL" {
		t.Fatalf("%+v", r)
	}
	out, _ := outputOf(t, in.Client, p.ExecID, 0)
	if strings.Contains(out, "gap") {
		t.Fatal("something is missing")
	}
}

func TestOutputOfAllKinds(t *testing.T) {
	in := boot(t, nil)
	for name, c := range map[string]struct{ script, want string }{
		"one line of a MiB":  {"head -c 1048576 /dev/zero | tr '\\0' a; echo", strings.Repeat("a", 1<<20) + "\n"},
		"binary":             {`printf '\000\377\033[31m\r\n\200'`, "\x00\xff\x1b[31m\r\n\x80"},
		"no newline at end":  {"printf abc", "abc"},
		"nothing":            {":", ""},
		"written by a child": {"(sleep 0.1; echo child) & wait", "child\n"},
	} {
		p := managedShell(c.script)
		in.must(t, p)
		if out, _ := outputOf(t, in.Client, p.ExecID, 0); out != c.want {
			t.Errorf("%s: %d bytes %.60q", name, len(out), out)
		}
	}
}
