//go:build linux

package guest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// part is what is to be sent of one process's log.
type part struct {
	p           *process
	from, until int64
}

// logs sends what the logs hold: process after process.
func (a *Agent) logs(p *peer, o *wire.Logs) error {
	procs, err := a.procs.chosen(o.ExecID)
	if err != nil {
		return err
	}
	stream := -1
	if o.Stream != "" {
		if stream = slices.Index(streamNames[:], o.Stream); stream < 0 {
			return api.Invalid("stream", "stream %.20q has no log", string(o.Stream)).WithHint("stdout or stderr")
		}
	}
	parts := make([]part, len(procs))
	for i, proc := range procs {
		end, _ := proc.log.written()
		parts[i] = part{p: proc, until: end}
	}
	if o.Tail > 0 {
		parts = tail(parts, stream, o.Tail)
	}
	var buf []byte
	for _, part := range parts {
		if e, ok := part.p.log.dropped(stream); ok && e.Position > part.from {
			e.ExecID = part.p.id
			if err := p.JSON(wire.KindLog, e); err != nil {
				return err
			}
		}
		for from := part.from; ; {
			e, ok := part.p.log.entry(buf, stream, from, part.until)
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
		from, found := parts[i].p.log.tail(stream, parts[i].until, &n, &last)
		if found {
			parts[i].from = from
			return parts[i:]
		}
	}
	return parts
}

// tail looks for the begin of the last n lines before until, and takes those that
// it sees off n. last says that no byte was seen after.
func (l *outlog) tail(stream int, until int64, n *int, last *bool) (from int64, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.runs) - 1; i >= 0; i-- {
		r := &l.runs[i]
		if stream >= 0 && r.stream != stream || r.pos >= until {
			continue
		}
		end := min(len(r.data), int(until-r.pos))
		if *last && end > 0 {
			*last = false
			if r.data[end-1] == '\n' {
				end-- // this newline ends the last line, it does not begin another
			}
		}
		for {
			nl := bytes.LastIndexByte(r.data[:end], '\n')
			if nl < 0 {
				break
			}
			if *n--; *n == 0 {
				return r.pos + int64(nl) + 1, true
			}
			end = nl
		}
	}
	return 0, false
}
