package cli

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

// attachFlags are the flags that "run" and "exec" share.
type attachFlags struct {
	interactive, tty, quiet, raw bool
}

// terminalSize is set when the command gets a terminal.
type terminalSize struct {
	file       *os.File
	rows, cols uint16
}

// wantTerminal checks -t against what the streams are.
func (a *app) wantTerminal(asked bool) (*terminalSize, error) {
	if !asked {
		return nil, nil
	}
	in, inOK := terminalOf(a.stdio.In)
	out, outOK := terminalOf(a.stdio.Out)
	if !inOK || !outOK {
		return nil, api.Invalid("tty", "--tty needs a terminal on standard input and output").WithHint("leave -t out when input or output is a file or a pipe")
	}
	cols, rows, err := term.GetSize(int(out.Fd()))
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "read the terminal's size: %w", err)
	}
	return &terminalSize{file: in, rows: clampSize(rows), cols: clampSize(cols)}, nil
}

func clampSize(n int) uint16 { return uint16(min(max(n, 0), 1<<16-1)) }

// wantStdin decides whether the command reads this process's input: if it is not a terminal, or if
// the user requested it. A command without intended input must not wait for a terminal.
func (a *app) wantStdin(f attachFlags) bool {
	if a.stdio.In == nil {
		return false
	}
	_, tty := terminalOf(a.stdio.In)
	return f.interactive || f.tty || !tty
}

// attachment couples one streamed command with this process's streams.
type attachment struct {
	app    *app
	stream *client.Stream
	// stdin is whether input is passed on; otherwise the command's is empty.
	stdin bool
	// tty is nil without a terminal.
	tty *terminalSize
	// out is where its output goes.
	out output
	// cancel gives the whole thing up.
	cancel context.CancelFunc
	// signals has been registered before the stream began, so that none is lost.
	signals chan os.Signal
	// starting says that the program runs: from then on signals are its own.
	starting func()
	// again is what goes before a rule to allow what was not let out.
	again string
	// release gives up the signals and the context, in any case at the end.
	release func()
}

// prepare makes what an attached command needs before there is a stream: its
// signals, its terminal, and a context that only they end.
func (a *app) prepare(ctx context.Context, f attachFlags, req *api.ExecRequest) (context.Context, *attachment, error) {
	if a.json && f.tty {
		return nil, nil, api.Invalid("tty", "--tty and --json do not go together").WithHint("leave one of them out")
	}
	signals, giveUp := catchSignals()
	// Signals are the command's: what they cancel elsewhere goes on here.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &attachment{app: a, cancel: cancel, signals: signals, starting: cancelOnSignal(signals, cancel)}
	t.release = func() {
		t.starting()
		cancel()
		giveUp()
	}
	tty, err := a.wantTerminal(f.tty)
	if err != nil {
		t.release()
		return nil, nil, err
	}
	t.out = a.output(f.raw || tty != nil)
	if t.tty = tty; tty != nil {
		req.TTY, req.Rows, req.Cols = true, tty.rows, tty.cols
		passTerm(a, req)
	}
	return ctx, t, nil
}

// catchSignals takes the signals that belong to the command from now on.
func catchSignals() (chan os.Signal, func()) {
	c := make(chan os.Signal, 32)
	signal.Notify(c, append(forwarded(), caught()...)...)
	return c, func() { signal.Stop(c) }
}

// run moves bytes until the command has ended and returns its result.
func (t *attachment) run() (*api.Result, error) {
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
	err = errors.Join(err, t.out.flush())
	close(done)
	_ = t.stream.Close() // ends a signal request that is stuck
	pumps.Wait()
	return res, err
}

func (t *attachment) pumpOutput() (*api.Result, error) {
	for {
		ev, err := t.stream.Recv()
		if err != nil {
			return nil, err
		}
		if ev.Exit != nil {
			return ev.Exit, nil
		}
		if err := t.out.write(ev.Stream, ev.Data); err != nil {
			// Nobody reads any more: end the command as a closed pipe would.
			_ = t.stream.Signal("PIPE")
			return nil, err
		}
	}
}

func (t *attachment) pumpInput() {
	if t.stdin {
		if _, err := io.Copy(t.stream, t.app.stdio.In); err != nil {
			return // the stream has ended, or the input is broken: the output tells
		}
	}
	_ = t.stream.CloseWrite()
}

// pumpSignals passes signals on. A second interrupt within a second kills the
// command, a third gives up waiting for that.
func (t *attachment) pumpSignals(done <-chan struct{}) {
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
			_ = t.stream.Signal(name) // a stream that is broken shows in Recv
		}
	}
}

func (t *attachment) resize() {
	if t.tty != nil && t.tty.changed(t.app.stdio.Out) {
		_ = t.stream.Resize(t.tty.rows, t.tty.cols)
	}
}

// changed looks at the terminal and reports whether it has another size than it
// had when this was last asked.
func (t *terminalSize) changed(stream any) bool {
	out, ok := terminalOf(stream)
	if !ok {
		return false
	}
	width, height, err := term.GetSize(int(out.Fd()))
	rows, cols := clampSize(height), clampSize(width)
	if err != nil || rows == 0 || cols == 0 || rows == t.rows && cols == t.cols {
		return false
	}
	t.rows, t.cols = rows, cols
	return true
}

// outputError classifies a failed write to standard output or error.
func outputError(err error) error {
	if errors.Is(err, io.ErrClosedPipe) || isBrokenPipe(err) {
		return statusError(brokenPipe)
	}
	return fmt.Errorf("write output: %w", err)
}

// copyOut writes what a daemon sends to standard output. An error of the daemon's is
// told as it is.
func copyOut(a *app, r io.Reader) error {
	_, err := io.Copy(a.stdio.Out, r)
	if _, ok := errors.AsType[*api.Error](err); ok || err == nil {
		return err
	}
	return outputError(err)
}

// explain says on standard error what the exit status alone would not.
func explain(a *app, res *api.Result) {
	switch {
	case res.TimedOut:
		a.warn("the command ran into its timeout and was killed")
	case res.OOM:
		a.warn("the command was killed: out of memory")
	case res.SandboxLost:
		a.warn("the sandbox ended under the command%s", because(res.Reason))
	case res.ExitCode == nil && res.Signal == "":
		a.warn("how the command ended is not known%s", because(res.Reason))
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// finish turns a result into what the verb returns.
func finish(res *api.Result) error {
	if status := res.ExitStatus(); status != 0 {
		return statusError(status)
	}
	if !res.OK() {
		return statusError(exitFailed)
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

// passTerm tells a program what kind of terminal is here. Where that is not known, the
// sandbox has a default.
func passTerm(a *app, req *api.ExecRequest) {
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

func (f *attachFlags) register(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on, also from a terminal")
	flags.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	flags.BoolVar(&f.raw, "raw", false, rawUsage)
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "no warnings, only the output of the command")
}
