//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
)

func attach(t *testing.T, m *sandbox.Manager, sb api.Sandbox, id string, r api.AttachRequest) *process.Attachment {
	t.Helper()
	a, err := m.Attach(t.Context(), operator, sb.ID, id, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// drain reads an attach to its end: its output, with gaps as "<n>", and the exit.
func drain(a *process.Attachment) (string, *api.Result, error) {
	var out strings.Builder
	var exit *api.Result
	for {
		ev, err := a.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), exit, nil
		}
		if err != nil {
			return out.String(), exit, err
		}
		if ev.Gap != nil {
			fmt.Fprintf(&out, "<%d>", ev.Gap.Bytes)
		}
		out.Write(ev.Data)
		exit = ev.Exit
	}
}

// The last part of an input may be refused: the writer does not write again to learn of it.
func TestAttachEndsWithItsInput(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("cat"))
	if _, err := m.WriteStdin(t.Context(), operator, sb.ID, "cat", nil, strings.NewReader("abc"), false); err != nil {
		t.Fatal(err)
	}
	a := attach(t, m, sb, "cat", api.AttachRequest{Write: true, StdinOffset: new(int64)})
	if err := a.Write([]byte("abx")); err != nil {
		t.Fatal(err)
	}
	if out, _, err := drain(a); api.CodeOf(err) != api.CodeConflict {
		t.Fatalf("%q, %v", out, err)
	}
	if p, err := m.Process(t.Context(), operator, sb.ID, "cat"); err != nil || p.State.Ended() {
		t.Fatalf("%+v, %v", p, err)
	}
}

// until reads an attach until its output ends with text.
func until(t *testing.T, a *process.Attachment, text string) {
	t.Helper()
	var out strings.Builder
	for !strings.HasSuffix(out.String(), text) {
		ev, err := a.Recv()
		if err != nil {
			t.Fatalf("after %q: %v, want %q", out.String(), err, text)
		}
		if ev.Exit != nil {
			t.Fatalf("after %q: %+v, want %q", out.String(), ev.Exit, text)
		}
		out.Write(ev.Data)
	}
}

func cat(id string) api.ProcessSpec {
	spec := shell(id, "exec cat")
	spec.OpenStdin = true
	return spec
}

func TestAttach(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("cat"))
	a := attach(t, m, sb, "cat", api.AttachRequest{Write: true})
	if err := a.Write([]byte("one\n")); err != nil {
		t.Fatal(err)
	}
	until(t, a, "one\n")
	if rec, err := m.Process(t.Context(), operator, "dev", "cat"); err != nil || rec.Readers != 1 || !rec.Writer {
		t.Errorf("record while attached: %+v, %v", rec, err)
	}
	a.Close()
	if _, err := a.Recv(); code(err) != api.CodeCanceled {
		t.Errorf("Recv after Close: %v", err)
	}
	if err := a.Write([]byte("x")); err == nil {
		t.Error("Write after Close succeeded")
	}
	if rec, err := m.Process(t.Context(), operator, "dev", "cat"); err != nil || rec.Readers != 0 || rec.Writer || rec.State != api.ProcessRunning {
		t.Errorf("record after the detach: %+v, %v", rec, err)
	}

	// A client that comes back sends again what was not acknowledged.
	a = attach(t, m, sb, "cat", api.AttachRequest{Write: true, Since: new(int64(0)), StdinOffset: new(int64(0))})
	if s := a.Started(); s.ExecID != "cat" || s.Position != 0 || s.StdinOffset != 0 {
		t.Errorf("started %+v", s)
	}
	if err := a.Write([]byte("one\ntwo\n")); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var acked int64
	var out strings.Builder
	for {
		ev, err := a.Recv()
		if err != nil {
			t.Fatal(err)
		}
		out.Write(ev.Data)
		if ev.Stdin != nil {
			acked = ev.Stdin.Offset
		}
		if ev.Exit != nil {
			if !ev.Exit.OK() {
				t.Errorf("exit %+v", ev.Exit)
			}
			break
		}
	}
	if out.String() != "one\ntwo\n" || acked != 8 {
		t.Errorf("output %q, input acknowledged up to %d", out.String(), acked)
	}
	if _, err := a.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit: %v", err)
	}
	// An ended process gives what is kept and the record, at once.
	for since, want := range map[int64]string{0: "one\ntwo\n", 4: "two\n", -2: "o\n", 99: ""} {
		a := attach(t, m, sb, "cat", api.AttachRequest{Since: &since, Write: true})
		if got, exit, err := drain(a); err != nil || got != want || !exit.OK() {
			t.Errorf("attach to an ended process from %d: %q, %+v, %v; want %q", since, got, exit, err, want)
		}
	}
	if _, err := m.Attach(t.Context(), operator, "dev", "nobody", api.AttachRequest{}); code(err) != api.CodeNotFound {
		t.Errorf("attach to nobody: %v", err)
	}
}

func TestOneWriter(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("cat"))
	try := func(r api.AttachRequest) error {
		a, err := m.Attach(t.Context(), operator, "dev", "cat", r)
		if err == nil {
			a.Close()
		}
		return err
	}
	stdin := func() error {
		_, err := m.WriteStdin(t.Context(), operator, "dev", "cat", nil, strings.NewReader("x"), false)
		return err
	}
	for _, c := range []struct {
		holder                               api.AttachRequest
		reader, writer, exclusive, withInput api.Code
	}{
		{holder: api.AttachRequest{Write: true}, writer: api.CodeConflict, exclusive: api.CodeConflict},
		{holder: api.AttachRequest{Exclusive: true}, writer: api.CodeConflict, exclusive: api.CodeConflict, withInput: api.CodeConflict},
		{holder: api.AttachRequest{}},
	} {
		a := attach(t, m, sb, "cat", c.holder)
		for what, got := range map[string][2]api.Code{
			"a reader":            {code(try(api.AttachRequest{})), c.reader},
			"a writer":            {code(try(api.AttachRequest{Write: true})), c.writer},
			"an exclusive attach": {code(try(api.AttachRequest{Exclusive: true})), c.exclusive},
			"a write of input":    {code(stdin()), c.withInput},
		} {
			if got[0] != got[1] {
				t.Errorf("beside %+v, %s gets %q, want %q", c.holder, what, got[0], got[1])
			}
		}
		a.Close()
	}
	// Every return frees the slot: a context that ends is one.
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := m.Attach(ctx, operator, "dev", "cat", api.AttachRequest{Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	cancel()
	eventually(t, "the input is free", func() bool { return try(api.AttachRequest{Exclusive: true}) == nil })
	if err := try(api.AttachRequest{Write: true, StdinOffset: new(int64(1 << 30))}); code(err) != api.CodeInvalid {
		t.Errorf("an offset that leaves a hole: %v", err)
	}
	if err := try(api.AttachRequest{Write: true, Rows: 3, Cols: 3}); code(err) != api.CodeState {
		t.Errorf("the size of what has no terminal: %v", err)
	}
	if err := try(api.AttachRequest{Exclusive: true}); err != nil {
		t.Errorf("after attaches that failed: %v", err)
	}
	if rec, err := m.Process(t.Context(), operator, "dev", "cat"); err != nil || rec.Readers != 0 || rec.Writer {
		t.Errorf("record after all detached: %+v, %v", rec, err)
	}
}

func TestReadersAreBounded(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, cat("cat"))
	var last *process.Attachment
	for range 1024 {
		last = attach(t, m, sb, "cat", api.AttachRequest{})
	}
	_, err := m.Attach(t.Context(), operator, "dev", "cat", api.AttachRequest{})
	if e, _ := err.(*api.Error); e == nil || e.Code != api.CodeNoCapacity || !e.Retryable {
		t.Errorf("one more: %v", err)
	}
	last.Close()
	attach(t, m, sb, "cat", api.AttachRequest{Write: true})
}

// Who does not read holds up neither the process nor the others.
func TestSlowReadersHoldUpNobody(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	const size = 24 << 20
	start(t, m, sb, shell("flood", fmt.Sprintf("read -r _ || :; head -c %d /dev/zero", size)))
	spec := shell("flood2", fmt.Sprintf("read -r _; head -c %d /dev/zero", size))
	spec.OpenStdin, spec.OnFull = true, api.OnFullBlock
	start(t, m, sb, spec)
	for range 5 {
		attach(t, m, sb, "flood2", api.AttachRequest{Since: new(int64(0))}) // and never reads
	}
	var wg sync.WaitGroup
	for range 5 {
		a := attach(t, m, sb, "flood2", api.AttachRequest{Since: new(int64(0))})
		wg.Go(func() {
			got, exit, err := drain(a)
			if err != nil || len(got) != size || strings.Trim(got, "\x00") != "" || !exit.OK() {
				t.Errorf("a reader got %d bytes, %+v, %v; want %d", len(got), exit, err, size)
			}
		})
	}
	if _, err := m.WriteStdin(t.Context(), operator, "dev", "flood2", nil, strings.NewReader("\n"), false); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if rec := ended(t, m, sb, "flood2"); rec.Position != size {
		t.Errorf("ended %+v", rec)
	}
	ended(t, m, sb, "flood")
}

func TestAttachInputIsBoundedAndWakes(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	spec := shell("deaf", "exec sleep 600")
	spec.OpenStdin = true
	start(t, m, sb, spec)
	a := attach(t, m, sb, "deaf", api.AttachRequest{Write: true})
	wrote := make(chan error)
	go func() { wrote <- a.Write(make([]byte, 8<<20)) }()
	select {
	case err := <-wrote:
		t.Fatalf("8 MiB were taken for a process that does not read: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	// Signals overtake it.
	if err := a.Signal("TERM"); err != nil {
		t.Error(err)
	}
	if _, exit, err := drain(a); err != nil || exit.Signal != "TERM" {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if err := <-wrote; code(err) != api.CodeState {
		t.Errorf("the write: %v, want wrong_state", err)
	}
	if err := a.Signal("NONSENSE"); code(err) != api.CodeInvalid {
		t.Errorf("no signal: %v", err)
	}

	spec.ExecID = "deaf2"
	start(t, m, sb, spec)
	b := attach(t, m, sb, "deaf2", api.AttachRequest{Write: true})
	go func() { wrote <- b.Write(make([]byte, 8<<20)) }()
	received := make(chan error)
	go func() {
		_, _, err := drain(b)
		received <- err
	}()
	b.Close()
	for what, c := range map[string]chan error{"Write": wrote, "Recv": received} {
		select {
		case err := <-c:
			if err == nil {
				t.Errorf("%s succeeded on a closed attach", what)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s did not return when the attach was closed", what)
		}
	}
}

func TestTerminal(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	spec := shell("sh", "stty -echo; echo ready; while read -r x; do stty size; done; exit 7")
	spec.TTY, spec.Rows, spec.Cols = true, 24, 80
	if p := start(t, m, sb, spec); !p.TTY {
		t.Errorf("started %+v", p)
	}
	a := attach(t, m, sb, "sh", api.AttachRequest{Write: true, Since: new(int64(0))})
	until(t, a, "ready\r\n")
	if err := a.Resize(10, 20); err != nil {
		t.Fatal(err)
	}
	if err := a.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	until(t, a, "10 20\r\n")
	a.Close()
	a = attach(t, m, sb, "sh", api.AttachRequest{Write: true, Rows: 5, Cols: 6, Since: new(int64(-7))})
	until(t, a, "10 20\r\n")
	if err := a.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	until(t, a, "5 6\r\n")
	if err := a.CloseWrite(); err != nil { // an end-of-file character
		t.Fatal(err)
	}
	if _, exit, err := drain(a); err != nil || exit.ExitCode == nil || *exit.ExitCode != 7 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func TestAttachTellsStates(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	spec := shell("x", "read -r _; echo serving; read -r _; exit 1")
	spec.OpenStdin, spec.Ready = true, &api.Readiness{Log: "serving"}
	start(t, m, sb, spec)
	a := attach(t, m, sb, "x", api.AttachRequest{Write: true})
	if err := a.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	var states []api.ProcessState
	for {
		ev, err := a.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Process != nil {
			states = append(states, ev.Process.State)
			if ev.Process.State == api.ProcessReady {
				if err := a.Write([]byte("\n")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if ev.Exit != nil {
			break
		}
	}
	if len(states) != 2 || states[0] != api.ProcessReady || states[1] != api.ProcessExited {
		t.Errorf("states %v, want ready and exited", states)
	}
}

func TestAttachSeesRemovalAndTheEndOfItsSandbox(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	for _, id := range []string{"a", "b"} {
		start(t, m, sb, shell(id, "echo up; exec sleep 600"))
	}
	type outcome struct {
		exit *api.Result
		err  error
	}
	ends := make(chan outcome)
	a, b := attach(t, m, sb, "a", api.AttachRequest{}), attach(t, m, sb, "b", api.AttachRequest{})
	for _, x := range []*process.Attachment{a, b} {
		go func() {
			_, exit, err := drain(x)
			ends <- outcome{exit, err}
		}()
	}
	if err := m.RemoveProcess(t.Context(), operator, "dev", "a"); err != nil {
		t.Fatal(err)
	}
	if got := <-ends; got.err != nil || got.exit == nil || got.exit.OK() || got.exit.SandboxLost {
		t.Errorf("the end of an attach whose process was removed: %+v", got)
	}
	// The id is free at once, also while a client is attached to the old one.
	start(t, m, sb, shell("a", "exec sleep 600"))
	begun := time.Now()
	if err := m.Remove(t.Context(), operator, "dev"); err != nil {
		t.Fatal(err)
	}
	if got := <-ends; got.err != nil || got.exit == nil || !got.exit.SandboxLost || got.exit.ExitCode != nil || got.exit.Reason == "" {
		t.Errorf("the end of an attach whose sandbox was removed: %+v", got)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	w.nothingLeft(m)
}

// An attach that writes says that the sandbox is paused, holds no input afterwards, and
// succeeds when the sandbox runs again.
func TestAttachToAPausedSandbox(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	start(t, m, sb, cat("p"))
	if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Attach(t.Context(), operator, "x", "p", api.AttachRequest{Write: true}); api.CodeOf(err) != api.CodeState {
		t.Errorf("while it is paused: %v, want %s", err, api.CodeState)
	}
	if _, err := m.Resume(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	a := attach(t, m, sb, "p", api.AttachRequest{Write: true})
	if err := a.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, exit, err := drain(a); err != nil || exit == nil || !exit.OK() {
		t.Errorf("when it runs again: %+v, %v", exit, err)
	}
}
