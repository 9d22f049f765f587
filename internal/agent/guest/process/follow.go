//go:build linux

package process

import (
	"math"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/output"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Follow sends the output of a process from a position on.
func (ps *Manager) Follow(p *session.Call, req *wire.Request) error {
	if req.Follow == nil {
		req.Follow = &wire.Follow{}
	}
	proc, err := ps.find(req.ExecID)
	if err != nil {
		return err
	}
	l := proc.log
	end, _ := l.Written()
	from, until := min(max(req.Follow.Since, 0), end), int64(math.MaxInt64)
	if !req.Follow.Follow {
		until = end
	}
	primary := req.Follow.Primary
	if primary {
		l.Take(from)
	}
	gone := p.Attend(func(kind wire.Kind, payload []byte) {
		if ack, err := wire.Decode[wire.Ack](payload); err == nil && kind == wire.KindAck && primary {
			l.Take(ack.Position)
		}
	})
	buf := make([]byte, 0, firstBytes)
	for {
		if buf, from = l.Frames(buf[:0], from, until); len(buf) > 0 {
			if _, err := p.Stream.Write(buf); err != nil {
				return nil // the caller is gone
			}
			if len(buf) > firstBytes/2 && cap(buf) < output.BatchBytes {
				buf = make([]byte, 0, output.BatchBytes)
			}
			continue
		}
		if from >= until {
			return p.End()
		}
		more, over := l.More(from)
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

// StartManaged starts a managed process, after it has read its input.
func (ps *Manager) StartManaged(p *session.Call, req *wire.Request) error {
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
	proc, err := ps.startManaged(p.Attend(nil), req.Exec, m, stdin)
	if err != nil {
		return err
	}
	return p.JSON(wire.KindReply, proc.record())
}

// maxStartInput bounds the input that comes with a start.
const maxStartInput = 16 << 20
