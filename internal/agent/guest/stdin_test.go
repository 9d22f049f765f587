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

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

func TestStdinOffsets(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("exec cat")
	p.Spec.OpenStdin, p.Stdin = true, []byte("0123")
	in.must(t, p)
	id := p.ExecID
	big := bytes.Repeat([]byte("x"), 300_000)
	for i, c := range []struct {
		offset int64
		data   string
		want   int64
		code   api.Code
	}{
		{4, "45", 6, ""},
		{4, "45", 6, ""},      // a repeat
		{2, "2345678", 9, ""}, // the end of it is new
		{0, "", 9, ""},
		{-1, "9", 10, ""},
		{8, "89", 10, ""},
		{8, "8x", 10, api.CodeConflict},    // another's
		{0, "xyz", 10, api.CodeConflict},   // and of a writer that has written nothing yet
		{9, "other", 10, api.CodeConflict}, // of which nothing is given
		{11, "hole", 10, api.CodeInvalid},
		{11, "", 10, api.CodeInvalid},
		{10, string(big), 10 + 300_000, ""},
		{10, string(big), 10 + 300_000, ""},
		{300_000, "xxxxxxxxxx", 10 + 300_000, ""},
		{300_000, "xxxxxxxxxyyy", 10 + 300_000, api.CodeConflict},
	} {
		got, err := in.WriteStdin(within(t, time.Minute), id, c.offset, []byte(c.data))
		if got != c.want || api.CodeOf(err) != c.code {
			t.Fatalf("%d: %d, %v", i, got, err)
		}
	}
	if err := in.CloseStdin(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := in.WriteStdin(t.Context(), id, -1, []byte("x")); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
	if out, _ := outputOf(t, in.Client, id, 0); out != "0123456789"+string(big) {
		t.Fatalf("%d bytes, %.40q", len(out), out)
	}
	r := until(t, in.Client, id, ended)
	if r.StdinOffset != 300_010 || r.StdinOpen || !(*r.ExitCode == 0) {
		t.Fatalf("%+v", r)
	}
	if _, err := in.WriteStdin(t.Context(), id, -1, []byte("x")); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
}

func TestStdinThatIsNotRead(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("read x; echo first; sleep 0.2; exec cat >/dev/null")
	p.Argv = []string{"/bin/sh", "-c", "kill -STOP $$; exec wc -c"}
	p.Spec.OpenStdin = true
	in.must(t, p)
	big := make([]byte, 3<<20)
	var at int64
	for wait := 300 * time.Millisecond; at == 0 && wait < time.Minute; wait *= 2 { // longer where nothing had come to it
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		var err error
		at, err = in.WriteStdin(ctx, p.ExecID, 0, big)
		cancel()
		if api.CodeOf(err) != api.CodeTimeout || at < 0 || at >= int64(len(big)) {
			t.Fatal(at, err)
		}
	}
	if at == 0 {
		t.Fatal("its pipe holds nothing")
	}
	// Others are not held up by it.
	other := managedShell("exec cat")
	other.Spec.OpenStdin = true
	in.must(t, other)
	if _, err := in.WriteStdin(within(t, time.Minute), other.ExecID, 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := in.SignalProcess(t.Context(), p.ExecID, int(unix.SIGCONT), api.ScopeTree, false); err != nil {
		t.Fatal(err)
	}
	if end, err := in.WriteStdin(within(t, time.Minute), p.ExecID, at, big[at:]); err != nil || end != int64(len(big)) {
		t.Fatal(end, err)
	}
	if err := in.CloseStdin(t.Context(), p.ExecID); err != nil {
		t.Fatal(err)
	}
	if out, _ := outputOf(t, in.Client, p.ExecID, 0); strings.TrimSpace(out) != fmt.Sprint(len(big)) {
		t.Fatalf("%q", out)
	}
}

func TestStdinOverRestarts(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("read x; echo got $x; exit 1")
	p.Spec.OpenStdin, p.Spec.Restart = true, &api.Restart{Policy: api.RestartOnFailure, BackoffMS: 1}
	in.must(t, p)
	for i := range 3 {
		until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Restarts == i && r.Running })
		if at, err := in.WriteStdin(within(t, time.Minute), p.ExecID, int64(2*i), []byte("a\n")); err != nil || at != int64(2*i+2) {
			t.Fatal(at, err)
		}
	}
	until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position == 18 })
}

func TestManagedTerminal(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("")
	p.Argv = []string{"/bin/bash", "--norc", "-i"}
	p.Env = append(p.Env, "PS1=$ ", "TERM=dumb")
	p.TTY, p.Rows, p.Cols = true, 24, 80
	r := in.must(t, p)
	if !r.TTY || !r.StdinOpen {
		t.Fatalf("%+v", r)
	}
	id := p.ExecID
	say := func(s string) {
		if _, err := in.WriteStdin(within(t, time.Minute), id, -1, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	var seen strings.Builder
	at := int64(0)
	expect := func(what string) {
		t.Helper()
		found := errors.New("found")
		err := in.Follow(within(t, time.Minute), id, agent.FollowOptions{Since: at, Follow: true}, func(k agent.Chunk) error {
			at += int64(len(k.Data))
			seen.Write(k.Data)
			if i := strings.Index(seen.String(), what); i >= 0 {
				rest := seen.String()[i+len(what):]
				seen.Reset()
				seen.WriteString(rest)
				return found
			}
			return nil
		})
		if err != found {
			t.Fatalf("no %q in %q: %v", what, seen.String(), err)
		}
	}
	// Before its prompt, readline reads the size and sets it again.
	expect("$ ")
	if err := in.Resize(t.Context(), id, 44, 111); err != nil {
		t.Fatal(err)
	}
	say("stty size\n")
	expect("44 111")
	for _, bad := range []api.Size{{}, {Rows: 1}, {Cols: 1}} {
		if err := in.Resize(t.Context(), id, bad.Rows, bad.Cols); !errors.Is(err, api.ErrInvalid) {
			t.Fatal(err)
		}
	}
	// A signal to the group in front does not reach the shell.
	say("sh -c 'trap \"echo stopped; exit\" INT; echo wait''ing; while :; do sleep 0.02; done'\n")
	expect("waiting")
	if err := in.SignalProcess(t.Context(), id, int(unix.SIGINT), api.ScopeGroup, false); err != nil {
		t.Fatal(err)
	}
	expect("stopped")
	say("echo still $((40+2))\n")
	expect("still 42")
	say("exit 5\n")
	if r := until(t, in.Client, id, ended); r.ExitCode == nil || *r.ExitCode != 5 {
		t.Fatalf("%+v", r)
	}
	if err := in.Resize(t.Context(), id, 10, 10); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
	// A terminal that is started again is a new one of the last size.
	p = managedShell("stty size; read x")
	p.TTY, p.Rows, p.Cols, p.Spec.Restart = true, 10, 20, &api.Restart{Policy: api.RestartAlways, BackoffMS: 1}
	id, at = p.ExecID, 0
	seen.Reset()
	in.must(t, p)
	expect("10 20")
	if err := in.Resize(t.Context(), id, 30, 40); err != nil {
		t.Fatal(err)
	}
	say("x\n")
	expect("30 40")
	if err := in.Resize(t.Context(), in.must(t, managedShell("sleep 100")).ExecID, 10, 10); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
}
