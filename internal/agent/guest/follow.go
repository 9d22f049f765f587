//go:build linux

package guest

import (
	"context"
	"math"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// batchBytes is how much output is sent with one write: two blocks, so that none
// is cut.
const batchBytes = 2 * (blockBytes + wire.ChunkFrameLen)

// attend reads what the caller sends, for a call to which it has nothing more to
// say but what heard takes. The context ends when the caller is gone, and so does
// a write that waits for it.
func (a *Agent) attend(p *peer, heard func(wire.Kind, []byte)) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	a.wg.Go(func() {
		defer cancel()
		for {
			kind, payload, err := p.Next()
			if err != nil {
				_ = p.stream.SetWriteDeadline(time.Unix(1, 0))
				return
			}
			if heard != nil {
				heard(kind, payload)
			}
		}
	})
	return ctx
}

// follow sends the output of a process from a position on.
func (a *Agent) follow(p *peer, req *wire.Request) error {
	if req.Follow == nil {
		req.Follow = &wire.Follow{}
	}
	proc, err := a.procs.find(req.ExecID)
	if err != nil {
		return err
	}
	l := proc.log
	end, _ := l.written()
	from, until := min(max(req.Follow.Since, 0), end), int64(math.MaxInt64)
	if !req.Follow.Follow {
		until = end
	}
	primary := req.Follow.Primary
	if primary {
		l.take(from)
	}
	gone := a.attend(p, func(kind wire.Kind, payload []byte) {
		if ack, err := wire.Decode[wire.Ack](payload); err == nil && kind == wire.KindAck && primary {
			l.take(ack.Position)
		}
	})
	buf := make([]byte, 0, firstBytes)
	for {
		if buf, from = l.frames(buf[:0], from, until); len(buf) > 0 {
			if _, err := p.stream.Write(buf); err != nil {
				return nil // nobody listens
			}
			if len(buf) > firstBytes/2 && cap(buf) < batchBytes {
				buf = make([]byte, 0, batchBytes)
			}
			continue
		}
		if from >= until {
			return p.End()
		}
		more, over := l.more(from)
		if over {
			return p.End()
		}
		select {
		case <-more:
		case <-gone.Done():
			return nil
		}
	}
}

// start starts a managed process, after it has read its input.
func (a *Agent) start(p *peer, req *wire.Request) error {
	m := req.Managed
	if m == nil {
		m = &wire.Managed{}
	}
	var stdin []byte
	for more := req.Exec.Input; more; {
		kind, payload, err := p.Next()
		switch {
		case err != nil:
			return err
		case kind == wire.KindEnd:
			more = false
		case kind != wire.KindInput:
			return api.Invalid("stdin", "kind %q instead of input", byte(kind))
		case len(stdin)+len(payload) > maxStartInput:
			return api.Errorf(api.CodeTooLarge, "the input of a start is over the limit of %d bytes", maxStartInput)
		}
		stdin = append(stdin, payload...)
	}
	proc, err := a.procs.startManaged(a.attend(p, nil), req.Exec, m, stdin)
	if err != nil {
		return err
	}
	return p.JSON(wire.KindReply, proc.record())
}

// maxStartInput bounds the input that comes with a start.
const maxStartInput = 16 << 20
