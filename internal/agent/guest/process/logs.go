//go:build linux

package process

import (
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/output"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// part is what is to be sent of one process's log.
type part struct {
	p           *process
	from, until int64
}

// Logs sends what the logs hold: process after process.
func (ps *Manager) Logs(p *session.Call, o *wire.Logs) error {
	procs, err := ps.chosen(o.ExecID)
	if err != nil {
		return err
	}
	stream := -1
	if o.Stream != "" {
		if stream = slices.Index(output.StreamNames[:], o.Stream); stream < 0 {
			return api.Invalid("stream", "stream %.20q has no log", string(o.Stream)).WithHint("stdout or stderr")
		}
	}
	parts := make([]part, len(procs))
	for i, proc := range procs {
		end, _ := proc.log.Written()
		parts[i] = part{p: proc, until: end}
	}
	if o.Tail > 0 {
		parts = tail(parts, stream, o.Tail)
	}
	var buf []byte
	for _, part := range parts {
		if e, ok := part.p.log.Dropped(stream); ok && e.Position > part.from {
			e.ExecID = part.p.id
			if err := p.JSON(wire.KindLog, e); err != nil {
				return err
			}
		}
		for from := part.from; ; {
			e, ok := part.p.log.Entry(buf, stream, from, part.until)
			if !ok {
				break
			}
			buf, from = e.Data, e.Position+int64(len(e.Data))
			e.ExecID, e.Data = part.p.id, nil
			if err := p.JSON(wire.KindLog, e); err != nil {
				return err
			}
			if err := p.Bytes(wire.KindData, buf); err != nil {
				return err
			}
		}
	}
	if err := p.End(); err != nil {
		return fmt.Errorf("end logs: %w", err)
	}
	return nil
}

// tail keeps the last n lines of all parts together. A last line without its end
// counts.
func tail(parts []part, stream, n int) []part {
	last := true
	for i := len(parts) - 1; i >= 0; i-- {
		from, found := parts[i].p.log.Tail(stream, parts[i].until, &n, &last)
		if found {
			parts[i].from = from
			return parts[i:]
		}
	}
	return parts
}
