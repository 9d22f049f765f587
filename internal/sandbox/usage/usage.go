// Package usage says what sandboxes have used.
package usage

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Last is what an instance had used just before it was ended.
type Last struct {
	Stat engine.Stat
	// Known means that Stat could be read.
	Known bool
	At    time.Time
	Net   api.EgressLimits
}

// Use is what a running sandbox has used; 0 is not measured.
type Use struct {
	ID, Engine      string
	CPU             time.Duration
	MemoryBytes     int64
	NetworkInBytes  int64
	NetworkOutBytes int64
}

// Stat reads what an instance uses. It is false for an engine that cannot say, and after an error.
func Stat(ctx context.Context, inst engine.Instance) (engine.Stat, bool) {
	st, ok := inst.(engine.Statter)
	if !ok {
		return engine.Stat{}, false
	}
	got, err := st.Stat(ctx)
	return got, err == nil
}

// StatIn is Stat for at most a time; what the engine does not know by then is zero.
func StatIn(ctx context.Context, inst engine.Instance, timeout time.Duration) engine.Stat {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, _ := Stat(ctx, inst)
	return got
}

// Measure reads what an instance used, at a time just before its end.
func Measure(ctx context.Context, inst engine.Instance, at time.Time) Last {
	got, ok := Stat(ctx, inst)
	return Last{Stat: got, Known: ok, At: at}
}

// Ending is what was seen of the end of an instance that is dead.
func Ending(inst engine.Instance) engine.Ending {
	if mortal, ok := inst.(engine.Mortal); ok {
		return mortal.Ending()
	}
	return engine.Ending{}
}

// Of returns what the audit log says of a sandbox, since its create, start or resume.
func (l Last) Of(sb api.Sandbox) api.AuditUsed {
	at := l.At
	if sb.StoppedAt != nil && sb.StoppedAt.Before(at) { // it died before the cleanup
		at = *sb.StoppedAt
	}
	began := sb.CreatedAt
	if sb.StartedAt != nil {
		began = *sb.StartedAt
	}
	if sb.ResumedAt != nil && sb.ResumedAt.After(began) {
		began = *sb.ResumedAt
	}
	out := api.AuditUsed{Seconds: max(at.Sub(began), 0).Seconds(), Partial: !l.Known, BytesIn: l.Net.BytesIn, BytesOut: l.Net.BytesOut}
	if l.Known {
		out.CPUSeconds = l.Stat.CPU.Seconds()
	}
	held := !slices.ContainsFunc(sb.Unenforced, func(u api.Unenforced) bool { return u.Field == "limits.memory_bytes" })
	if n := sb.Limits.MemoryBytes; n > 0 && held {
		out.GiBSeconds = float64(n) / (1 << 30) * out.Seconds
	} else {
		out.Partial = true
	}
	return out
}

// Files are counted again after countAge at the earliest, and countShare bounds the time that goes into counting them: one
// part of so many.
const countAge, countShare = 2 * time.Second, 10

// Counter counts the files of a workspace no more often than that, however often it is asked. The zero value is ready to use,
// and safe for concurrent use.
type Counter struct {
	mu    sync.Mutex
	known bool
	bytes int64
	at    time.Time
	took  time.Duration
}

// Bytes returns the size of the files, which count counts, and when they were counted; nil if they cannot be.
func (c *Counter) Bytes(count func() (int64, bool)) (*int64, *time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known || time.Since(c.at) > max(countAge, countShare*c.took) {
		begun := time.Now()
		got, ok := count()
		if !ok {
			return nil, nil
		}
		c.known, c.bytes, c.at, c.took = true, got, time.Now(), time.Since(begun)
	}
	n, at := c.bytes, c.at.UTC()
	return &n, &at
}
