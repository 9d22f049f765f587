//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// framesAhead is how many frames of input are read before they are written. The
// caller sends no more, so word that it gives up is always heard.
const framesAhead = 2

// stdin gives a process input, until its end, a cancel or the caller's going.
func (a *Agent) stdin(p *peer, req *wire.Request) error {
	proc, err := a.procs.find(req.ExecID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	frames := make(chan []byte, framesAhead)
	a.wg.Go(func() {
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
	err = a.writeInput(ctx, p, proc.input, req, frames)
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
func (a *Agent) writeInput(ctx context.Context, p *peer, in *input, req *wire.Request, frames <-chan []byte) error {
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

// closeStdin ends the input of a process.
func (a *Agent) closeStdin(p *peer, req *wire.Request) error {
	proc, err := a.procs.find(req.ExecID)
	if err != nil {
		return err
	}
	if proc.isDone() {
		return errEnded(req.ExecID)
	}
	if _, err := proc.input.close(a.attend(p, nil)); err != nil {
		return err
	}
	if proc.managed != nil {
		proc.feed.changed(proc)
	}
	return done(p, nil)
}

// resize changes the terminal of a process, and of its later runs.
func (ps *processes) resize(id string, size *api.Size) error {
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
