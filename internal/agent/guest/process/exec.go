//go:build linux

package process

import (
	"context"
	"io"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Exec runs a program and answers with everything at once.
func (ps *Manager) Exec(p *session.Call, x *wire.Exec) error {
	if x.TTY {
		return api.Invalid("tty", "a collected exec has no terminal").WithHint("stream it")
	}
	if x.Key != "" && p.Session.Version >= 2 {
		return ps.repeatable(p, x)
	}
	x.Key = ""
	proc, err := ps.start(x, nil)
	if err != nil {
		return err
	}
	ps.feedInput(p, proc, x.Input, -1)
	<-proc.done
	res := proc.result()
	proc.forgetCollected()
	return sendResult(p, res)
}

// feedInput gives an exec the input that follows its request, if any does. at is
// the offset of its first byte, -1 for wherever the input ends.
func (ps *Manager) feedInput(p *session.Call, proc *process, follows bool, at int64) {
	if follows {
		// It ends with the stream, which answer closes, or with the program.
		ps.wg.Go(func() { ps.control(p, proc, at) })
	} else {
		_, _ = proc.input.close(context.Background())
	}
}

// sendResult sends a result with its output.
func sendResult(p *session.Call, res api.Result) error {
	stdout, stderr := res.Stdout, res.Stderr
	res.Stdout, res.Stderr = nil, nil
	if err := p.Bytes(wire.KindStdout, stdout); err != nil {
		return err
	}
	if err := p.Bytes(wire.KindStderr, stderr); err != nil {
		return err
	}
	return p.JSON(wire.KindExit, res)
}

// StreamExec runs a program with the caller attached.
func (ps *Manager) StreamExec(p *session.Call, x *wire.Exec) error {
	started := make(chan struct{})
	proc, err := ps.start(x, wire.NewWriter(&gated{w: p.Stream, open: started}))
	if err != nil {
		return err
	}
	err = p.JSON(wire.KindStarted, api.Started{ExecID: x.ID})
	close(started)
	if err != nil {
		proc.sink.detach()
		return err
	}
	ps.wg.Go(func() {
		ps.control(p, proc, -1)
		_, _ = proc.input.close(context.Background())
	})
	<-proc.done
	proc.sink.detach()
	return p.JSON(wire.KindExit, proc.result())
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

// control carries out what the caller sends during an exec, until it goes. at is
// the offset of the first byte of its input, -1 for wherever the input ends.
func (ps *Manager) control(p *session.Call, proc *process, at int64) {
	ctx := context.Background() // input ends with the process at the latest
	for {
		kind, payload, err := p.Next()
		if err != nil {
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
			return
		}
	}
	// The caller is gone. Output that waits for it must not.
	_ = p.Stream.SetWriteDeadline(time.Unix(1, 0))
	proc.sink.detach()
}
