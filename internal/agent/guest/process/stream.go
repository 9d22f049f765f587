//go:build linux

package process

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// reattachTime is how long a streamed exec waits for its caller to reattach. A pause does not count.
const reattachTime = 10 * time.Second

// StreamExec runs a program with the caller attached.
func (ps *Manager) StreamExec(p *session.Call, x *wire.Exec) error {
	started := make(chan struct{})
	w := wire.NewWriter(&gated{w: p.Stream, open: started})
	proc, err := ps.start(x, w)
	if err != nil {
		return err
	}
	return ps.serve(p, proc, w, api.Started{ExecID: x.ID}, started, 0)
}

// Reattach continues a StreamExec whose connection was closed.
func (ps *Manager) Reattach(p *session.Call, req *wire.Request) error {
	if req.Reattach == nil {
		req.Reattach = &wire.Reattach{}
	}
	proc, err := ps.find(req.ExecID)
	if err != nil {
		return err
	}
	started := make(chan struct{})
	w := wire.NewWriter(&gated{w: p.Stream, open: started})
	if err := proc.sink.reattach(w, *req.Reattach, proc.isDone()); err != nil {
		return err
	}
	offset, open := proc.input.takes()
	return ps.serve(p, proc, w, wire.Reattached{Input: offset, Ends: int(proc.ends.Load()), Closed: !open}, started, offset)
}

// serve sends the first answer to the caller of a streamed exec, and then its output, until its end. at is the offset of the
// first byte of input that the caller sends.
func (ps *Manager) serve(p *session.Call, proc *process, w *wire.Writer, first any, started chan struct{}, at int64) error {
	if p.Session.Holds != ps.Holds() {
		ps.holdStream(proc)
	}
	err := p.JSON(wire.KindStarted, first)
	close(started)
	if err != nil {
		if proc.sink.detach(w) {
			ps.closeInput(proc)
		}
		return err
	}
	ps.wg.Go(func() {
		if ps.control(p, proc, w, at) {
			ps.closeInput(proc)
		}
	})
	select {
	case <-proc.done:
		proc.sink.detach(w)
		return p.JSON(wire.KindExit, proc.result())
	case <-p.Session.Done():
		return nil // control does the rest
	}
}

// HoldStreams has every streamed exec wait for its caller to reattach, because all sessions are about to be closed. Those that are
// still started on a session of now wait too.
func (ps *Manager) HoldStreams() {
	ps.holds.Add(1)
	for _, p := range ps.all() {
		ps.holdStream(p)
	}
}

// Holds counts the calls of HoldStreams.
func (ps *Manager) Holds() int64 { return ps.holds.Load() }

func (ps *Manager) holdStream(p *process) {
	reattached := p.sink.hold()
	if reattached == nil {
		return
	}
	ps.wg.Go(func() {
		t := ps.clock.timer(reattachTime)
		defer t.stop()
		select {
		case <-reattached:
		case <-t.C:
			ps.releaseStream(p)
		}
	})
}

// releaseStreams gives up the callers of streamed execs that have not reattached.
func (ps *Manager) releaseStreams() {
	for _, p := range ps.all() {
		ps.releaseStream(p)
	}
}

func (ps *Manager) releaseStream(p *process) {
	if p.sink.release() {
		ps.closeInput(p)
	}
}

// closeInput ends the input of a process after what is being written.
func (ps *Manager) closeInput(p *process) {
	ps.wg.Go(func() { _, _ = p.input.close(context.Background()) })
}

func (ps *Manager) all() []*process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Clone(ps.order)
}

// gated is a stream on which nothing is written before open.
type gated struct {
	w    io.Writer
	open <-chan struct{}
}

func (g *gated) Write(b []byte) (int, error) {
	<-g.open
	return g.w.Write(b)
}

// control carries out what the caller at w sends during an exec, until it goes. at is the offset of the first byte of
// its input, -1 for wherever the input ends. It reports whether no caller is left, nor expected to reattach.
func (ps *Manager) control(p *session.Call, proc *process, w *wire.Writer, at int64) bool {
	ctx := context.Background() // input ends with the process at the latest
	for {
		kind, payload, err := p.Next()
		if err != nil || w != nil && !proc.sink.attached(w) { // a caller that reattaches sends it again
			break
		}
		switch kind {
		case wire.KindInput:
			// A program that has closed its input, or ended, wants no more.
			_, _ = proc.input.write(ctx, at, payload)
			if at >= 0 {
				at += int64(len(payload))
			}
		case wire.KindEnd:
			proc.ends.Add(1)
			_, _ = proc.input.close(ctx)
		case wire.KindSignal:
			if s, err := wire.Decode[wire.Signal](payload); err == nil {
				_ = ps.signalRun(proc.present(), s.Number)
			}
		case wire.KindResize:
			if s, err := wire.Decode[api.Size](payload); err == nil {
				if tty := proc.present().tty; tty != nil {
					_ = resize(tty, s.Rows, s.Cols)
				}
			}
		default:
			p.Stream.Close()
			return proc.sink.detach(w)
		}
	}
	// The caller is gone. Output that waits for it must not.
	_ = p.Stream.SetWriteDeadline(time.Unix(1, 0))
	return proc.sink.detach(w)
}
