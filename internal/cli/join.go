package cli

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

// join couples a process that outlives this one with this one's streams.
type join struct {
	app    *app
	conn   *connection
	ref    processRef
	remote *client.Attachment
	// write is whether input is passed on; closeStdin whether its end is.
	write, closeStdin bool
	// tidy removes the record when the process has ended.
	tidy bool
	// tty is set where both sides have a terminal, which is raw then.
	tty    *terminalSize
	cooked *term.State // what it was before
	keys   []byte
	// modes is the output's alone until the output has ended.
	modes   terminal.Modes
	out     output
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
func (j *join) run(ctx context.Context) error {
	done := make(chan struct{})
	var pumps sync.WaitGroup
	pumps.Go(func() { j.pumpSignals(done) })
	pumps.Go(func() { j.pumpInput(done) })
	res, err := j.pumpOutput()
	err = errors.Join(err, j.out.flush())
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
	if j.tidy {
		j.forget(ctx)
	}
	if j.app.json {
		if err := j.app.printJSON(res); err != nil {
			return err
		}
	}
	explain(j.app, res)
	return finish(res)
}

// raw makes the terminal raw, where there is one. restore undoes all that was
// done to it.
func (j *join) raw() error {
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
func (j *join) restore() {
	if j.cooked == nil {
		return
	}
	_, _ = io.WriteString(j.app.stdio.Out, j.modes.Leave())
	_ = term.Restore(int(j.tty.file.Fd()), j.cooked)
	j.app.raw.Store(false)
	j.cooked = nil
}

// depart says how to come back.
func (j *join) depart(status int) error {
	if j.app.json {
		if err := j.app.printJSON(detached{true, j.ref.sandbox, j.ref.process}); err != nil {
			return err
		}
	} else {
		if j.tty != nil {
			j.app.newline()
		}
		j.app.warn("detached; come back with: cloche attach %s", j.ref)
	}
	if status != exitOK {
		return statusError(status)
	}
	return nil
}

// leave ends the attach and not the process.
func (j *join) leave(status int) {
	j.leaving.Do(func() {
		j.left = &status
		_ = j.remote.Close() // Recv returns, and all else after it
	})
}

func (j *join) pumpOutput() (*api.Result, error) {
	a := j.app
	for {
		ev, err := j.remote.Recv()
		switch {
		case err != nil:
			return nil, err
		case ev.Exit != nil:
			return ev.Exit, nil
		case ev.Gap != nil:
			if err := j.out.flush(); err != nil {
				return nil, err
			}
			a.note("%d bytes are no longer kept", ev.Gap.Bytes)
			continue
		}
		if err := j.out.write(ev.Stream, ev.Data); err != nil {
			return nil, err
		}
		if j.tty != nil {
			j.modes.Feed(ev.Data)
		}
	}
}

// pumpInput passes on what is typed or piped in, and finds the detach keys in
// what is typed.
func (j *join) pumpInput(done <-chan struct{}) {
	if j.tty == nil && !j.write {
		return
	}
	input := make(chan []byte)
	// A read of standard input cannot be interrupted on every kind of file, so
	// this goroutine ends with the process, not before.
	go readInput(j.app.stdio.In, input, done)
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
func (j *join) send(p []byte, done <-chan struct{}) {
	if !j.write {
		return
	}
	for len(p) > 0 {
		n, err := j.remote.Write(p)
		p = p[n:]
		if err == nil {
			continue
		}
		if !asError(err).Retryable {
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
func (j *join) pumpSignals(done <-chan struct{}) {
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

func (j *join) resize() {
	if j.tty != nil && j.write && j.tty.changed(j.app.stdio.Out) {
		_ = j.remote.Resize(j.tty.rows, j.tty.cols) // a new connection asks for it too
	}
}

// interrupted is the status of a program that a signal ended.
func interrupted(s os.Signal) int { return exitSignal + api.SignalNumber(signalName(s)) }

// forget removes the record of a process that has ended. One that is gone, or
// whose sandbox is, needs no removal.
func (j *join) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	_ = j.conn.RemoveProcess(ctx, j.ref.sandbox, j.ref.process)
}

// open attaches to a process. On a terminal it first draws the recent screen.
func (j *join) open(ctx context.Context, p api.Process, f joinFlags) error {
	a := j.app
	if err := j.takeTerminal(p); err != nil {
		return err
	}
	j.keys, j.closeStdin = f.keys, f.closeStdin
	j.out = a.output(f.raw || j.tty != nil)
	j.write = !f.readOnly && !p.State.Ended() && (p.StdinOpen || f.exclusive) && a.stdio.In != nil
	req := api.AttachRequest{Since: f.since, Write: j.write, Exclusive: f.exclusive && !p.State.Ended()}
	if j.tty != nil && j.write {
		req.Rows, req.Cols = j.tty.rows, j.tty.cols
	}
	var recent history
	if j.tty != nil && f.since == nil && !p.State.Ended() {
		if at, ok := recent.read(ctx, j.conn, j.ref); ok {
			req.Since = &at
		}
	}
	remote, err := j.conn.Attach(ctx, j.ref.sandbox, j.ref.process, req)
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
	if _, err := a.stdio.Out.Write([]byte(screen)); err != nil {
		_ = remote.Close()
		return outputError(err)
	}
	if j.write && (recent.cut || j.modes.Alternate()) {
		j.redraw()
	}
	return nil
}

// redraw makes a full-screen program draw itself: it does so when its terminal
// has another size than it had.
func (j *join) redraw() {
	rows, cols := j.tty.rows, j.tty.cols
	if rows > 1 {
		_ = j.remote.Resize(rows-1, cols)
	}
	_ = j.remote.Resize(rows, cols)
}

// takeTerminal finds out whether process and caller both have a terminal.
func (j *join) takeTerminal(p api.Process) error {
	_, in := terminalOf(j.app.stdio.In)
	_, out := terminalOf(j.app.stdio.Out)
	if !p.TTY || !in || !out {
		return nil
	}
	tty, err := j.app.wantTerminal(true)
	j.tty = tty
	return err
}

// explainConflict adds a hint to the error for an input that another client holds.
func (j *join) explainConflict(err error, f joinFlags) error {
	e, ok := errors.AsType[*api.Error](err)
	if ok && e.Code == api.CodeConflict && !f.exclusive {
		e.Hint = "join it with --read-only, or wait until the other leaves"
	}
	return err
}

// joinFlags say how a process is joined.
type joinFlags struct {
	exclusive, readOnly, closeStdin, raw bool
	// since is nil for the present, after what the screen of a terminal shows.
	since *int64
	keys  []byte
}

// attach joins a process that is on record.
func attach(ctx context.Context, a *app, ref processRef, f joinFlags) error {
	return joined(ctx, a, func(ctx context.Context, j *join) error {
		p, err := j.conn.find(ctx, ref)
		if err != nil {
			return err
		}
		j.ref = processRef{ref.sandbox, p.ExecID}
		j.tidy = ownShell(p)
		if p.State.Ended() && f.since == nil {
			a.warn(`process %s has ended; "cloche logs %s" shows its output`, p.ExecID, j.ref)
		}
		return j.open(ctx, p, f)
	})
}

// joined connects, lets open make the place at a process, and keeps it until the
// process ends or is left.
func joined(ctx context.Context, a *app, open func(context.Context, *join) error) error {
	signals, giveUp := catchSignals()
	defer giveUp()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	starting := cancelOnSignal(signals, cancel)
	defer starting()
	conn, err := a.daemon()
	if err != nil {
		return err
	}
	defer conn.close()
	j := &join{app: a, conn: conn, signals: signals}
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
	return p.Managed && p.TTY && p.Name == shellName && strings.HasPrefix(p.ExecID, shellName+"-")
}

// shellName is the name of the processes that "cloche shell" starts.
const shellName = "shell"
