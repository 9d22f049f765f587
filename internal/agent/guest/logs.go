//go:build linux

package guest

import (
	"bytes"
	"slices"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// logEntries is what is kept of the chosen output: process after process, and
// within each by time, which both streams share.
func logEntries(procs []*process, o *wire.Logs) []cloche.LogEntry {
	var all []cloche.LogEntry
	for _, p := range procs {
		var mine []cloche.LogEntry
		for i, s := range []cloche.Stream{cloche.Stdout, cloche.Stderr} {
			if o.Stream != "" && o.Stream != s {
				continue
			}
			runs, dropped := p.rings[i].snapshot()
			if dropped > 0 {
				gap := cloche.LogEntry{ExecID: p.id, Stream: s, Offset: dropped, Gap: dropped, Time: p.started}
				if len(runs) > 0 {
					gap.Time = runs[0].at
				}
				mine = append(mine, gap)
			}
			for _, r := range runs {
				mine = append(mine, cloche.LogEntry{ExecID: p.id, Stream: s, Offset: r.offset, Time: r.at, Data: r.data})
			}
		}
		slices.SortStableFunc(mine, func(a, b cloche.LogEntry) int { return a.Time.Compare(b.Time) })
		all = append(all, mine...)
	}
	if o.Tail > 0 {
		all = tail(all, o.Tail)
	}
	return all
}

// tail keeps the last n lines of all entries together. A last line without its
// end counts.
func tail(entries []cloche.LogEntry, n int) []cloche.LogEntry {
	for i := len(entries) - 1; i >= 0; i-- {
		e := &entries[i]
		data := []byte(e.Data)
		end := len(data)
		if i == len(entries)-1 && end > 0 && data[end-1] == '\n' {
			end-- // this newline ends the last line, it does not begin another
		}
		for {
			nl := bytes.LastIndexByte(data[:end], '\n')
			if nl < 0 {
				break
			}
			if n--; n == 0 {
				e.Data = e.Data[nl+1:]
				e.Offset += int64(nl + 1)
				if len(e.Data) == 0 {
					return entries[i+1:]
				}
				return entries[i:]
			}
			end = nl
		}
	}
	return entries
}
