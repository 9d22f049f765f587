package client

import (
	"time"

	"github.com/cloche-dev/cloche/api"
)

// logFollower is the progress of a followed log over all its connections.
type logFollower struct {
	asked api.LogOptions
	// next is the next byte of each process: an offset in the selected stream, or a position.
	next map[string]int64
	// first is the time of the first entry. What a tail left out before it must stay left out on
	// later connections, which have no tail: skip is true until a connection has reached the
	// entry where the first one began.
	first time.Time
	skip  bool
	ended bool
}

func newLogFollower(o api.LogOptions) *logFollower {
	return &logFollower{asked: o, next: map[string]int64{}}
}

// options returns the options of the next connection.
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
	// For all processes, the connection reads everything again and skips what was delivered: a
	// time is not an exact position in a log that several processes write at once.
	return o
}

// take returns the new part of an entry, and whether there is one.
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
	// A gap, which is an entry without bytes, comes before the byte that it names.
	if known && end <= next {
		return e, false
	}
	if known && e.Gap > 0 {
		e.Gap = min(e.Gap, at-next) // the rest was delivered before
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
