// Package pressure suspends idle sandboxes if the machine is short of memory: those that allow it, and the one that has been
// idle for longest first.
package pressure

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"
)

// Sandbox is one sandbox. Its methods are safe for concurrent use.
type Sandbox interface {
	ID() string
	// IdleSince returns when the sandbox was last used, or false if it is in use, or its processes do not run.
	IdleSince() (time.Time, bool)
	// Suspend suspends the sandbox, unless its creator does not allow that or it is used meanwhile, and reports whether its
	// memory is free.
	Suspend(ctx context.Context) bool
}

// MinIdle is for how long a sandbox has to be idle to be suspended because the machine is short of memory.
const MinIdle = 5 * time.Second

// every is how often the sandboxes are looked at.
const every = 5 * time.Second

// Options are what Run needs.
type Options struct {
	// Sandboxes lists the sandboxes, in any order.
	Sandboxes func() []Sandbox
	// Available returns how much memory of the machine is available, in bytes, or false if that is not known.
	Available func() (int64, bool)
	// Below is how much memory of the machine stays available, in bytes.
	Below  int64
	Logger *slog.Logger
}

// Run suspends sandboxes until the context ends.
func Run(ctx context.Context, o Options) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			o.look(ctx)
		}
	}
}

// idle is a sandbox that is idle.
type idle struct {
	Sandbox
	since time.Time
}

// look suspends sandboxes until enough memory is available.
func (o Options) look(ctx context.Context) {
	if have, ok := o.Available(); !ok || have >= o.Below {
		return
	}
	var all []idle
	for _, s := range o.Sandboxes() {
		if since, ok := s.IdleSince(); ok && time.Since(since) >= MinIdle {
			all = append(all, idle{s, since})
		}
	}
	slices.SortFunc(all, func(a, b idle) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.ID(), b.ID())) })
	for _, s := range all {
		have, ok := o.Available()
		if !ok || have >= o.Below || ctx.Err() != nil {
			return
		}
		if s.Suspend(ctx) {
			o.Logger.Info("suspended because the machine is short of memory", "sandbox", s.ID(), "available", have, "below", o.Below)
		}
	}
}
