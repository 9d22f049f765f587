package cli

import (
	"context"
	"errors"
	"io"
	"os"
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
