package command

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// holdBack is how long a key that may begin the detach keys waits for the next
// one. It is what the first of them costs when it is meant for the process.
const holdBack = 500 * time.Millisecond

// sendAgain is the pause before input is offered again to a connection that is
// being made again.
const sendAgain = 200 * time.Millisecond

// tidyTimeout bounds the removal of the record of a shell that has ended.
const tidyTimeout = 5 * time.Second

// ProcessSession connects a managed process with the streams of this process. The managed process
// keeps running after the session.
type ProcessSession struct {
	app    *CLI
	Conn   *Connection
	Ref    ProcessRef
	remote *client.Attachment
	// write is whether input is passed on; closeStdin whether its end is.
	write, closeStdin bool
	// tidy removes the record when the process has ended.
	Tidy bool
	// tty is set where both sides have a terminal, which is raw then.
	tty    *terminalSize
	cooked *term.State // what it was before
	keys   []byte
	// modes is the output's alone until the output has ended.
	modes   terminal.Modes
	out     Output
	signals chan os.Signal

	leaving sync.Once
	left    *int // the status of leaving; written once before remote is closed
}

// detached is the JSON result of an attach that was left.
type detached struct {
	Detached bool   `json:"detached"`
	Sandbox  string `json:"sandbox"`
	Process  string `json:"process"`
}

// run moves bytes until the process has ended or is left.
func (j *ProcessSession) run(ctx context.Context) error {
	done := make(chan struct{})
	var pumps sync.WaitGroup
	pumps.Go(func() { j.pumpSignals(done) })
	pumps.Go(func() { j.pumpInput(done) })
	res, err := j.pumpOutput()
	err = errors.Join(err, j.out.Flush())
	close(done)
	_ = j.remote.Close()
	pumps.Wait()
	j.restore()
	switch {
	case j.left != nil:
		return j.depart(*j.left)
	case err != nil:
		return err
	}
	if j.Tidy {
		j.forget(ctx)
	}
	if j.app.JSON {
		if err := j.app.PrintJSON(res); err != nil {
			return err
		}
	}
	Explain(j.app, res)
	return Finish(res)
}

// raw makes the terminal raw, where there is one. restore undoes all that was
// done to it.
func (j *ProcessSession) raw() error {
	if j.tty == nil {
		return nil
	}
	old, err := term.MakeRaw(int(j.tty.file.Fd()))
	if err != nil {
		return api.Errorf(api.CodeInternal, "make the terminal raw: %w", err)
	}
	j.cooked = old
	j.app.raw.Store(true)
	return nil
}

// restore may be called more than once, after the output has ended.
func (j *ProcessSession) restore() {
	if j.cooked == nil {
		return
	}
	_, _ = io.WriteString(j.app.Stdio.Out, j.modes.Leave())
	_ = term.Restore(int(j.tty.file.Fd()), j.cooked)
	j.app.raw.Store(false)
	j.cooked = nil
}

// depart says how to come back.
func (j *ProcessSession) depart(status int) error {
	if j.app.JSON {
		if err := j.app.PrintJSON(detached{true, j.Ref.Sandbox, j.Ref.Process}); err != nil {
			return err
		}
	} else {
		if j.tty != nil {
			j.app.newline()
		}
		j.app.Warn("detached; come back with: cloche attach %s", j.Ref)
	}
	if status != exitOK {
		return StatusError(status)
	}
	return nil
}

// leave ends the attach and not the process.
func (j *ProcessSession) leave(status int) {
	j.leaving.Do(func() {
		j.left = &status
		_ = j.remote.Close() // Recv returns, and all else after it
	})
}

func (j *ProcessSession) pumpOutput() (*api.Result, error) {
	a := j.app
	for {
		ev, err := j.remote.Recv()
		switch {
		case err != nil:
			return nil, err
		case ev.Exit != nil:
			return ev.Exit, nil
		case ev.Gap != nil:
			if err := j.out.Flush(); err != nil {
				return nil, err
			}
			a.Note("%d bytes are no longer kept", ev.Gap.Bytes)
			continue
		}
		if err := j.out.Write(ev.Stream, ev.Data); err != nil {
			return nil, err
		}
		if j.tty != nil {
			j.modes.Feed(ev.Data)
		}
	}
}

// pumpInput passes on what is typed or piped in, and finds the detach keys in
// what is typed.
func (j *ProcessSession) pumpInput(done <-chan struct{}) {
	if j.tty == nil && !j.write {
		return
	}
	input := make(chan []byte)
	// A read of standard input cannot be interrupted on every kind of file, so
	// this goroutine ends with the process, not before.
	go readInput(j.app.Stdio.In, input, done)
	var filter keyFilter
	if j.tty != nil {
		filter.keys = j.keys
	}
	var release <-chan time.Time
	for {
		select {
		case <-done:
			return
		case <-release:
			release = nil
			j.send(filter.flush(), done)
		case p, more := <-input:
			if !more {
				j.send(filter.flush(), done)
				if j.write && j.closeStdin {
					_ = j.remote.CloseWrite()
				}
				return
			}
			pass, detach := filter.feed(p)
			j.send(pass, done)
			if detach || j.tty != nil && !j.write && asksToLeave(p) {
				j.leave(exitOK)
				return
			}
			release = nil
			if len(filter.held) > 0 {
				release = time.After(holdBack)
			}
		}
	}
}

// asksToLeave finds a ctrl-c, which a terminal in raw mode does not turn into a signal.
func asksToLeave(p []byte) bool {
	for _, b := range p {
		if b == 3 {
			return true
		}
	}
	return false
}

// send passes input on, whatever the state of the connection: what cannot be
// taken now is offered again.
func (j *ProcessSession) send(p []byte, done <-chan struct{}) {
	if !j.write {
		return
	}
	for len(p) > 0 {
		n, err := j.remote.Write(p)
		p = p[n:]
		if err == nil {
			continue
		}
		if !AsError(err).Retryable {
			return // the process takes no more, or the attach is over: the output tells
		}
		select {
		case <-done:
			return
		case <-time.After(sendAgain):
		}
	}
}

// readInput reads standard input until it ends or its reader has gone.
func readInput(in io.Reader, to chan<- []byte, done <-chan struct{}) {
	defer close(to)
	for {
		buf := make([]byte, 32<<10)
		n, err := in.Read(buf)
		if n > 0 {
			select {
			case to <- buf[:n]:
			case <-done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pumpSignals follows the terminal's size, and takes a signal that ends this
// process as a wish to leave.
func (j *ProcessSession) pumpSignals(done <-chan struct{}) {
	j.resize() // the size may have changed in the meantime
	for {
		var s os.Signal
		select {
		case <-done:
			return
		case s = <-j.signals:
		}
		switch name := signalName(s); {
		case isResize(s):
			j.resize()
		case name == "INT" || name == "TERM" || name == "HUP" || name == "QUIT":
			j.leave(interrupted(s))
			return
		}
	}
}

func (j *ProcessSession) resize() {
	if j.tty != nil && j.write && j.tty.changed(j.app.Stdio.Out) {
		_ = j.remote.Resize(j.tty.rows, j.tty.cols) // a new connection asks for it too
	}
}

// interrupted is the status of a program that a signal ended.
func interrupted(s os.Signal) int { return ExitSignal + api.SignalNumber(signalName(s)) }

// forget removes the record of a process that has ended. One that is gone, or
// whose sandbox is, needs no removal.
func (j *ProcessSession) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	_ = j.Conn.RemoveProcess(ctx, j.Ref.Sandbox, j.Ref.Process)
}

// Open attaches to a process. On a terminal it first draws the recent screen.
func (j *ProcessSession) Open(ctx context.Context, p api.Process, f AttachFlags) error {
	a := j.app
	if err := j.takeTerminal(p); err != nil {
		return err
	}
	j.keys, j.closeStdin = f.Keys, f.CloseStdin
	j.out = a.Output(f.Raw || j.tty != nil)
	j.write = !f.ReadOnly && !p.State.Ended() && (p.StdinOpen || f.Exclusive) && a.Stdio.In != nil
	req := api.AttachRequest{Since: f.Since, Write: j.write, Exclusive: f.Exclusive && !p.State.Ended()}
	if j.tty != nil && j.write {
		req.Rows, req.Cols = j.tty.rows, j.tty.cols
	}
	var recent history
	if j.tty != nil && f.Since == nil && !p.State.Ended() {
		if at, ok := recent.read(ctx, j.Conn, j.Ref); ok {
			req.Since = &at
		}
	}
	remote, err := j.Conn.Attach(ctx, j.Ref.Sandbox, j.Ref.Process, req)
	if err != nil {
		return j.explainConflict(err, f)
	}
	j.remote = remote
	if err := j.raw(); err != nil {
		_ = remote.Close()
		return err
	}
	if len(recent.output) == 0 {
		return nil
	}
	screen := terminal.RecentScreen(recent.output, recent.cut, int(j.tty.rows), int(j.tty.cols), &j.modes, terminal.DrawTimeout)
	if _, err := a.Stdio.Out.Write([]byte(screen)); err != nil {
		_ = remote.Close()
		return OutputError(err)
	}
	if j.write && (recent.cut || j.modes.Alternate()) {
		j.redraw()
	}
	return nil
}

// redraw makes a full-screen program draw itself: it does so when its terminal
// has another size than it had.
func (j *ProcessSession) redraw() {
	rows, cols := j.tty.rows, j.tty.cols
	if rows > 1 {
		_ = j.remote.Resize(rows-1, cols)
	}
	_ = j.remote.Resize(rows, cols)
}

// takeTerminal finds out whether process and caller both have a terminal.
func (j *ProcessSession) takeTerminal(p api.Process) error {
	_, in := TerminalOf(j.app.Stdio.In)
	_, out := TerminalOf(j.app.Stdio.Out)
	if !p.TTY || !in || !out {
		return nil
	}
	tty, err := j.app.wantTerminal(true)
	j.tty = tty
	return err
}

// explainConflict adds a hint to the error for an input that another client holds.
func (j *ProcessSession) explainConflict(err error, f AttachFlags) error {
	e, ok := errors.AsType[*api.Error](err)
	if ok && e.Code == api.CodeConflict && !f.Exclusive {
		e.Hint = "join it with --read-only, or wait until the other leaves"
	}
	return err
}

// AttachFlags are the flags of "attach".
type AttachFlags struct {
	Exclusive, ReadOnly, CloseStdin, Raw bool
	// since is nil for the present, after what the screen of a terminal shows.
	Since *int64
	Keys  []byte
}

// Attach opens a session with a process and runs it.
func Attach(ctx context.Context, a *CLI, ref ProcessRef, f AttachFlags) error {
	return WithProcessSession(ctx, a, func(ctx context.Context, j *ProcessSession) error {
		p, err := j.Conn.Find(ctx, ref)
		if err != nil {
			return err
		}
		j.Ref = ProcessRef{ref.Sandbox, p.ExecID}
		j.Tidy = ownShell(p)
		if p.State.Ended() && f.Since == nil {
			a.Warn(`process %s has ended; "cloche logs %s" shows its output`, p.ExecID, j.Ref)
		}
		return j.Open(ctx, p, f)
	})
}

// WithProcessSession connects to the daemon, lets open start the session, and runs it until the
// process ends or the user detaches.
func WithProcessSession(ctx context.Context, a *CLI, open func(context.Context, *ProcessSession) error) error {
	signals, giveUp := catchSignals()
	defer giveUp()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	starting := cancelOnSignal(signals, cancel)
	defer starting()
	conn, err := a.Daemon()
	if err != nil {
		return err
	}
	defer conn.Close()
	j := &ProcessSession{app: a, Conn: conn, signals: signals}
	defer j.restore()
	if err := open(ctx, j); err != nil {
		return err
	}
	defer j.remote.Close()
	starting()
	return j.run(ctx)
}

// ownShell reports whether "cloche shell" started a process.
func ownShell(p api.Process) bool {
	return p.Managed && p.TTY && p.Name == ShellName && strings.HasPrefix(p.ExecID, ShellName+"-")
}

// ShellName is the name of the processes that "cloche shell" starts.
const ShellName = "shell"
