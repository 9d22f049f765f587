//go:build linux

package process

import (
	"bytes"
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// framesAhead is how many frames of input are read before they are written. The
// caller sends no more, so word that it gives up is always heard.
const framesAhead = 2

// Stdin gives a process input, until its end, a cancel or the caller's going.
func (ps *Manager) Stdin(p *session.Call, req *wire.Request) error {
	proc, err := ps.find(req.ExecID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	frames := make(chan []byte, framesAhead)
	p.Go(func() {
		defer cancel()
		for ended := false; ; {
			kind, payload, err := p.Next()
			switch {
			case err != nil || kind == wire.KindCancel:
				return
			case kind == wire.KindEnd && !ended:
				ended = true
				close(frames)
			case kind == wire.KindInput && !ended:
				select {
				case frames <- bytes.Clone(payload):
				case <-ctx.Done():
					return
				}
			}
		}
	})
	err = ps.writeInput(ctx, p, proc.input, req, frames)
	if proc.managed != nil {
		proc.feed.soon(proc)
	}
	offset, _ := proc.input.state()
	r := wire.StdinReply{Offset: offset}
	if err != nil {
		e, ok := errors.AsType[*api.Error](err)
		if !ok {
			return err
		}
		r.Fail = e
	}
	return p.JSON(wire.KindReply, r)
}

// writeInput writes the input of a request: what came with it, or the frames that
// follow it, each of which it acknowledges.
func (ps *Manager) writeInput(ctx context.Context, p *session.Call, in *input, req *wire.Request, frames <-chan []byte) error {
	if err := in.hold(ctx); err != nil {
		return err
	}
	defer in.release()
	at := req.Offset
	if len(req.Input) > 0 {
		_, err := in.writeHeld(ctx, at, req.Input)
		return err
	}
	for first := true; ; first = false {
		var data []byte
		var more bool
		select {
		case data, more = <-frames:
		case <-ctx.Done():
			return errAbandoned
		}
		if !more && !first {
			return nil
		}
		offset, err := in.writeHeld(ctx, at, data)
		if err != nil || !more {
			return err
		}
		if at >= 0 {
			at += int64(len(data))
		}
		if err := p.JSON(wire.KindAck, wire.Ack{Position: offset}); err != nil {
			return err
		}
	}
}

// CloseStdin ends the input of a process.
func (ps *Manager) CloseStdin(p *session.Call, req *wire.Request) error {
	proc, err := ps.find(req.ExecID)
	if err != nil {
		return err
	}
	if proc.isDone() {
		return errEnded(req.ExecID)
	}
	if _, err := proc.input.close(p.Attend(nil)); err != nil {
		return err
	}
	if proc.managed != nil {
		proc.feed.changed(proc)
	}
	return p.Done(nil)
}

// Resize changes the terminal of a process, and of its later runs.
func (ps *Manager) Resize(id string, size *api.Size) error {
	if size == nil || size.Rows == 0 || size.Cols == 0 {
		field := "rows"
		if size != nil && size.Rows > 0 {
			field = "cols"
		}
		return api.Invalid(field, "a terminal has at least one row and one column")
	}
	p, err := ps.find(id)
	if err != nil {
		return err
	}
	if !p.hasTTY {
		return api.Errorf(api.CodeState, "process %q has no terminal", id)
	}
	p.mu.Lock()
	p.rows, p.cols = size.Rows, size.Cols
	r, known := p.run, p.known
	p.mu.Unlock()
	if p.isDone() {
		return errEnded(id)
	}
	if known {
		return nil // between two runs: the next one gets it
	}
	if err := resize(r.tty, size.Rows, size.Cols); err != nil && !r.exited() {
		return internal("resize terminal", err)
	}
	return nil
}
