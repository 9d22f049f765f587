package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/spf13/pflag"
)

// insist is how soon after an interrupt a second one means "kill it", and a
// third "give up".
const insist = time.Second

// ExecFlags are the flags that "run" and "exec" share.
type ExecFlags struct {
	Interactive, Tty, Quiet, raw bool
}

// terminalSize is set when the command gets a terminal.
type terminalSize struct {
	file       *os.File
	rows, cols uint16
}

// wantTerminal checks -t against what the streams are.
func (a *CLI) wantTerminal(asked bool) (*terminalSize, error) {
	if !asked {
		return nil, nil
	}
	in, inOK := TerminalOf(a.Stdio.In)
	out, outOK := TerminalOf(a.Stdio.Out)
	if !inOK || !outOK {
		return nil, api.Invalid("tty", "--tty needs a terminal on standard input and output").WithHint("leave -t out when input or output is a file or a pipe")
	}
	cols, rows, err := term.GetSize(int(out.Fd()))
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "read the terminal's size: %w", err)
	}
	return &terminalSize{file: in, rows: ClampSize(rows), cols: ClampSize(cols)}, nil
}

// ClampSize converts a number of rows or columns to what the API takes.
func ClampSize(n int) uint16 { return uint16(min(max(n, 0), 1<<16-1)) }

// WantStdin decides whether the command reads this process's input: if it is not a terminal, or if
// the user requested it. A command without intended input must not wait for a terminal.
func (a *CLI) WantStdin(f ExecFlags) bool {
	if a.Stdio.In == nil {
		return false
	}
	_, tty := TerminalOf(a.Stdio.In)
	return f.Interactive || f.Tty || !tty
}

// ExecSession connects one streamed command with the streams of this process.
type ExecSession struct {
	app    *CLI
	Stream *client.Stream
	// stdin is whether input is passed on; otherwise the command's is empty.
	Stdin bool
	// tty is nil without a terminal.
	tty *terminalSize
	// out is where its output goes.
	out Output
	// cancel gives the whole thing up.
	cancel context.CancelFunc
	// signals has been registered before the stream began, so that none is lost.
	signals chan os.Signal
	// starting says that the program runs: from then on signals are its own.
	Starting func()
	// again is what goes before a rule to allow what was not let out.
	Again string
	// release gives up the signals and the context, in any case at the end.
	Release func()
}

// Prepare sets up the session of a command before its stream starts: the signals, the
// terminal, and a context that only signals cancel.
func (a *CLI) Prepare(ctx context.Context, f ExecFlags, req *api.ExecRequest) (context.Context, *ExecSession, error) {
	if a.JSON && f.Tty {
		return nil, nil, api.Invalid("tty", "--tty and --json do not go together").WithHint("leave one of them out")
	}
	signals, giveUp := catchSignals()
	// Signals are the command's: what they cancel elsewhere goes on here.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &ExecSession{app: a, cancel: cancel, signals: signals, Starting: cancelOnSignal(signals, cancel)}
	t.Release = func() {
		t.Starting()
		cancel()
		giveUp()
	}
	tty, err := a.wantTerminal(f.Tty)
	if err != nil {
		t.Release()
		return nil, nil, err
	}
	t.out = a.Output(f.raw || tty != nil)
	if t.tty = tty; tty != nil {
		req.TTY, req.Rows, req.Cols = true, tty.rows, tty.cols
		PassTerm(a, req)
	}
	return ctx, t, nil
}

// catchSignals takes the signals that belong to the command from now on.
func catchSignals() (chan os.Signal, func()) {
	c := make(chan os.Signal, 32)
	signal.Notify(c, append(forwarded(), caught()...)...)
	return c, func() { signal.Stop(c) }
}

// Run moves bytes until the command has ended and returns its result.
func (t *ExecSession) Run() (*api.Result, error) {
	if t.tty != nil {
		old, err := term.MakeRaw(int(t.tty.file.Fd()))
		if err != nil {
			return nil, api.Errorf(api.CodeInternal, "make the terminal raw: %w", err)
		}
		defer func() { _ = term.Restore(int(t.tty.file.Fd()), old) }()
	}
	done := make(chan struct{})
	var pumps sync.WaitGroup
	pumps.Go(func() { t.pumpSignals(done) })
	// A read of standard input cannot be interrupted on every kind of file, so
	// the goroutine that may sit in it ends with the process, not before.
	go t.pumpInput()
	res, err := t.pumpOutput()
	err = errors.Join(err, t.out.Flush())
	close(done)
	_ = t.Stream.Close() // ends a signal request that is stuck
	pumps.Wait()
	return res, err
}

func (t *ExecSession) pumpOutput() (*api.Result, error) {
	for {
		ev, err := t.Stream.Recv()
		if err != nil {
			return nil, err
		}
		if ev.Exit != nil {
			return ev.Exit, nil
		}
		if err := t.out.Write(ev.Stream, ev.Data); err != nil {
			// The reader is gone: end the command as a closed pipe would.
			_ = t.Stream.Signal("PIPE")
			return nil, err
		}
	}
}

func (t *ExecSession) pumpInput() {
	if t.Stdin {
		if _, err := io.Copy(t.Stream, t.app.Stdio.In); err != nil {
			return // the stream has ended, or the input is broken: the output tells
		}
	}
	_ = t.Stream.CloseWrite()
}

// pumpSignals passes signals on. A second interrupt within a second kills the
// command, a third gives up waiting for that.
func (t *ExecSession) pumpSignals(done <-chan struct{}) {
	var last time.Time
	interrupts := 0
	t.resize() // the size may have changed in the meantime
	for {
		var s os.Signal
		select {
		case <-done:
			return
		case s = <-t.signals:
		}
		if isResize(s) {
			t.resize()
			continue
		}
		name := signalName(s)
		// What asks for an end and is not heard becomes a kill: timeout(1) sends TERM.
		if name == "INT" || name == "TERM" || name == "HUP" {
			if time.Since(last) > insist {
				interrupts = 0
			}
			last = time.Now()
			if interrupts++; interrupts == 2 {
				name = "KILL"
			} else if interrupts > 2 {
				t.cancel()
				continue
			}
		}
		if name != "" {
			_ = t.Stream.Signal(name) // a stream that is broken shows in Recv
		}
	}
}

func (t *ExecSession) resize() {
	if t.tty != nil && t.tty.changed(t.app.Stdio.Out) {
		_ = t.Stream.Resize(t.tty.rows, t.tty.cols)
	}
}

// changed looks at the terminal and reports whether it has another size than it
// had when this was last asked.
func (t *terminalSize) changed(stream any) bool {
	out, ok := TerminalOf(stream)
	if !ok {
		return false
	}
	width, height, err := term.GetSize(int(out.Fd()))
	rows, cols := ClampSize(height), ClampSize(width)
	if err != nil || rows == 0 || cols == 0 || rows == t.rows && cols == t.cols {
		return false
	}
	t.rows, t.cols = rows, cols
	return true
}

// OutputError classifies a failed write to standard output or error.
func OutputError(err error) error {
	if errors.Is(err, io.ErrClosedPipe) || isBrokenPipe(err) {
		return StatusError(brokenPipe)
	}
	return fmt.Errorf("write output: %w", err)
}

// CopyOut writes what a daemon sends to standard output. It returns the daemon's error
// unchanged.
func CopyOut(a *CLI, r io.Reader) error {
	_, err := io.Copy(a.Stdio.Out, r)
	if _, ok := errors.AsType[*api.Error](err); ok || err == nil {
		return err
	}
	return OutputError(err)
}

// Explain says on standard error what the exit status alone would not.
func Explain(a *CLI, res *api.Result) {
	switch {
	case res.TimedOut:
		a.Warn("the command ran into its timeout and was killed")
	case res.OOM:
		a.Warn("the command was killed: out of memory")
	case res.SandboxLost:
		a.Warn("the sandbox ended under the command%s", Because(res.Reason))
	case res.ExitCode == nil && res.Signal == "":
		a.Warn("how the command ended is not known%s", Because(res.Reason))
	}
}

// Because is a reason as the end of a sentence, or "".
func Because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// Finish turns a result into what the verb returns.
func Finish(res *api.Result) error {
	if status := res.ExitStatus(); status != 0 {
		return StatusError(status)
	}
	if !res.OK() {
		return StatusError(ExitFailed)
	}
	return nil
}

// cancelOnSignal cancels when a signal asks to end while there is no command yet
// to pass it to. The function it returns stops that and waits; it may be called
// more than once.
func cancelOnSignal(signals <-chan os.Signal, cancel context.CancelFunc) func() {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case s := <-signals:
				if name := signalName(s); name == "INT" || name == "TERM" || name == "HUP" || name == "QUIT" {
					cancel()
				}
			}
		}
	}()
	stopped := false
	return func() {
		if !stopped {
			stopped = true
			close(quit)
		}
		<-done
	}
}

// PassTerm tells a program what kind of terminal is here. Where that is not known, the
// sandbox has a default.
func PassTerm(a *CLI, req *api.ExecRequest) {
	if _, given := req.Env["TERM"]; given {
		return
	}
	if v := a.getenv("TERM"); v != "" {
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env["TERM"] = v
	}
}

// Register adds the flags.
func (f *ExecFlags) Register(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.Interactive, "interactive", "i", false, "pass standard input on, also from a terminal")
	flags.BoolVarP(&f.Tty, "tty", "t", false, "give the command a terminal")
	flags.BoolVar(&f.raw, "raw", false, RawUsage)
	flags.BoolVarP(&f.Quiet, "quiet", "q", false, "no warnings, only the output of the command")
}
