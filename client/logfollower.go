package client

import (
	"time"

	"github.com/cloche-dev/cloche/api"
)

// logFollower is how far a followed log was read, over all its connections.
type logFollower struct {
	asked api.LogOptions
	// next is the byte that comes next of each process: an offset of the chosen
	// stream, or a position.
	next map[string]int64
	// first is the time of the first entry. What a tail cut off before it stays
	// cut off on later connections, which have no tail: skip is true until they
	// have come to where the first one began.
	first time.Time
	skip  bool
	ended bool
}

func newLogFollower(o api.LogOptions) *logFollower {
	return &logFollower{asked: o, next: map[string]int64{}}
}

// options are what the next connection asks for.
func (l *logFollower) options() api.LogOptions {
	o := l.asked
	if len(l.next) == 0 {
		return o
	}
	o.WaitMS = 0
	l.skip = o.Tail > 0
	o.Tail = 0
	if next, ok := l.next[o.ExecID]; ok {
		o.Since, o.SinceTime, l.skip = &next, time.Time{}, false
	}
	// Of all processes, everything is read again and what came before is left out:
	// a time is no place in a log whose processes write at the same time.
	return o
}

// take returns what of an entry is new, and whether anything is.
func (l *logFollower) take(e api.LogEntry) (api.LogEntry, bool) {
	if e.End != "" {
		l.ended = true
		return e, true
	}
	at := e.Position
	if l.asked.Stream != "" {
		at = e.Offset
	}
	next, known := l.next[e.ExecID]
	if l.skip && !known && e.Time.Before(l.first) {
		return e, false
	}
	if known {
		l.skip = false
	}
	end := at + int64(len(e.Data))
	// An entry without bytes, a gap, stands before the byte that it names.
	if known && end <= next {
		return e, false
	}
	if known && e.Gap > 0 {
		e.Gap = min(e.Gap, at-next) // the rest came before
	}
	if cut := next - at; known && cut > 0 {
		e.Data, e.Offset, e.Position = e.Data[cut:], e.Offset+cut, e.Position+cut
	}
	if len(l.next) == 0 {
		l.first = e.Time
	}
	l.next[e.ExecID] = end
	return e, true
}
