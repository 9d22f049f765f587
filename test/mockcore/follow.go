package mockcore

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// publish is called with the lock held.
func (c *Core) publish(sb *sandbox, kind api.EventKind, p *api.Process) {
	ev := api.Event{
		Cursor: int64(len(c.events) + 1), Time: Epoch(), Kind: kind, Tenant: sb.record.Tenant,
		Sandbox: sb.record.ID, Name: sb.record.Name,
	}
	if p != nil {
		rec := *p
		ev.Process = &rec
	}
	c.events = append(c.events, ev)
	c.change()
}

// Events keeps every event. Kinds that it does not know are refused.
func (c *Core) Events(ctx context.Context, caller core.Caller, o api.EventOptions, fn func(api.Event) error) error {
	if slices.Contains(o.Kinds, "nonsense") {
		return api.Invalid("kind", "there is no event %q", "nonsense")
	}
	if err := c.knows(caller, o.Sandbox); err != nil {
		return err
	}
	next := max(0, o.After)
	for {
		c.mu.Lock()
		all, ch := c.events, c.changed
		c.mu.Unlock()
		if o.After < 0 {
			next, o.After = int64(len(all)), 0
		}
		for ; next < int64(len(all)); next++ {
			ev := all[next]
			fits := (len(o.Kinds) == 0 || slices.Contains(o.Kinds, ev.Kind)) && isOf(ev, caller, o.Sandbox)
			if !fits {
				continue
			}
			if err := fn(ev); err != nil {
				return err
			}
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isOf reports whether caller sees an event, and it is of what ref names.
func isOf(ev api.Event, caller core.Caller, ref string) bool {
	return (ev.Tenant == caller.Tenant || caller.Operator) && (ref == "" || ref == ev.Sandbox || ref == ev.Name)
}

// knows refuses what neither a sandbox nor an event has as its name.
func (c *Core) knows(caller core.Caller, ref string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ref == "" || slices.ContainsFunc(c.events, func(ev api.Event) bool { return isOf(ev, caller, ref) }) {
		return nil
	}
	_, err := c.find(caller, ref)
	return err
}

// Logs has the output of every program. A tail of 7 fails after the first entry.
func (c *Core) Logs(ctx context.Context, caller core.Caller, ref string, o api.LogOptions, fn func(api.LogEntry) error) error {
	next := map[string]int64{}
	if o.Since != nil {
		next[o.ExecID] = *o.Since
	}
	deadline := time.After(time.Duration(o.WaitMS) * time.Millisecond)
	for some := false; ; {
		all, end, ch, err := c.logOf(caller, ref, o)
		if err != nil {
			return err
		}
		for _, e := range all {
			e, ok := cutLog(e, o, next)
			if !ok {
				continue
			}
			some = true
			if err := fn(e); err != nil {
				return err
			}
			if o.Tail == 7 {
				return api.Errorf(api.CodeSandboxLost, "the sandbox died")
			}
		}
		if o.Follow && end != "" {
			return fn(api.LogEntry{ExecID: o.ExecID, Stream: api.Stdout, Time: Epoch(), Data: api.Bytes{}, End: end})
		}
		if !o.Follow && (some || o.WaitMS == 0) {
			return nil
		}
		if o.Follow {
			deadline = nil
		}
		select {
		case <-ch:
		case <-deadline:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// logOf is what there is now, and why there will be no more.
func (c *Core) logOf(caller core.Caller, ref string, o api.LogOptions) (all []api.LogEntry, end string, ch chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return nil, "", nil, err
	}
	if sb.record.State == api.StateStopped {
		end = "stopped"
	}
	for _, p := range sb.procs {
		p.mu.Lock()
		if o.ExecID == "" || o.ExecID == p.id {
			all = append(all, p.log...)
		}
		p.mu.Unlock()
	}
	for _, id := range sb.order {
		p := sb.managed[id]
		if p == nil || o.ExecID != "" && o.ExecID != id {
			continue
		}
		all = append(all, p.log...)
		if o.ExecID == id && !p.rec.Running {
			end = "exited"
		}
	}
	return all, end, c.changed, nil
}

// cutLog returns what of an entry was not given yet.
func cutLog(e api.LogEntry, o api.LogOptions, next map[string]int64) (api.LogEntry, bool) {
	at := e.Position
	if o.Stream != "" {
		at = e.Offset
	}
	if o.Stream != "" && e.Stream != o.Stream || e.Time.Before(o.SinceTime) {
		return e, false
	}
	end := at + int64(len(e.Data))
	cut := next[e.ExecID] - at
	if cut >= int64(len(e.Data)) {
		return e, false
	}
	if cut > 0 {
		e.Data, e.Offset, e.Position = e.Data[cut:], e.Offset+cut, e.Position+cut
	}
	next[e.ExecID] = end
	return e, true
}
