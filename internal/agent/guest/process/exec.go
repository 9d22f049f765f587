//go:build linux

package process

import (
	"context"

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
		ps.wg.Go(func() { ps.control(p, proc, nil, at) })
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
