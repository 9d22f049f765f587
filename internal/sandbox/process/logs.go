package process

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/spool"
)

// errEnough ends a reading that has what it wanted.
var errEnough = errors.New("enough was read")

// Logs calls fn with the output of the sandbox's processes that is kept, oldest
// first; of a sandbox that has ended, with what was saved. Data is valid during
// the call. Following all processes it calls fn for one of them at a time, in
// the order in which their output arrives here.
func (m *Runner) Logs(ctx context.Context, caller policy.Caller, ref string, o api.LogOptions, fn func(api.LogEntry) error) error {
	s, err := m.o.Find(ctx, caller, policy.VerbLogs, ref)
	if err != nil {
		return err
	}
	return m.readLogs(ctx, s, o, fn)
}

// readLogs is Logs for a caller that may read the output.
func (m *Runner) readLogs(ctx context.Context, s *Table, o api.LogOptions, fn func(api.LogEntry) error) (err error) {
	if o.Follow || o.WaitMS > 0 {
		defer s.sandbox.Use()()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.o.Context, cancel)()
	if o.Follow {
		var done func()
		ctx, done = s.sandbox.Attended(ctx)
		defer done()
	}
	if o.WaitMS > 0 && !o.Follow {
		err = m.longPoll(ctx, s, o, fn)
	} else {
		err = m.logs(ctx, s, o, fn)
	}
	if err != nil && m.o.Context.Err() != nil {
		return shuttingDown()
	}
	return silenced(ctx, err)
}

// logs chooses by what is asked for.
func (m *Runner) logs(ctx context.Context, s *Table, o api.LogOptions, fn func(api.LogEntry) error) error {
	if o.ExecID == "" {
		return m.allLogs(ctx, s, o, fn)
	}
	if p := s.get(o.ExecID); p != nil {
		return m.processLogs(ctx, p, o, fn)
	}
	return m.execLogs(ctx, s, o, fn)
}

// longPoll is a reading that, where there is nothing, waits for a first entry.
func (m *Runner) longPoll(ctx context.Context, s *Table, o api.LogOptions, fn func(api.LogEntry) error) error {
	any := false
	err := m.logs(ctx, s, o, func(e api.LogEntry) error {
		any = true
		return fn(e)
	})
	if any || err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, min(milliseconds(o.WaitMS), maxWait))
	defer cancel()
	o.Follow = true
	err = m.logs(waiting, s, o, func(e api.LogEntry) error {
		if e.End != "" {
			return errEnough
		}
		if err := fn(e); err != nil {
			return err
		}
		return errEnough
	})
	if errors.Is(err, errEnough) || waiting.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// processLogs reads the log of one managed process.
func (m *Runner) processLogs(ctx context.Context, p *process, o api.LogOptions, fn func(api.LogEntry) error) error {
	log, release, err := p.openLog()
	if err != nil {
		return err
	}
	defer release()
	ro := spool.ReadOptions{Stream: o.Stream, SinceTime: o.SinceTime, TailLines: o.Tail}
	if o.Since != nil {
		ro.Since = *o.Since
	}
	for r := log.Reader(ro); ; {
		rec, err := r.Next(ctx, o.Follow)
		switch {
		case errors.Is(err, io.EOF) && o.Follow:
			reason, _ := log.Finished()
			return fn(api.LogEntry{ExecID: p.id, Position: log.End(), Time: now(), End: reason})
		case errors.Is(err, io.EOF), errors.Is(err, spool.ErrNoMore):
			return nil
		case err != nil && ctx.Err() != nil:
			return CanceledCall(ctx.Err())
		case err != nil:
			return api.Errorf(api.CodeInternal, "the log of process %s cannot be read", p.id).WithCause(err)
		}
		err = fn(api.LogEntry{
			ExecID: p.id, Stream: rec.Stream, Offset: rec.Offset, Position: rec.Position, Time: rec.Time, Data: rec.Data, Gap: rec.Gap,
		})
		if err != nil {
			return err
		}
	}
}

// execLogs reads the output of one exec: from the agent, or what was saved of it.
func (m *Runner) execLogs(ctx context.Context, s *Table, o api.LogOptions, fn func(api.LogEntry) error) error {
	x := execReader{o: o, fn: fn}
	if s.sandbox.Over() {
		if err := s.savedLogs(o, x.entry); err != nil || !o.Follow {
			return err
		}
		return x.end(s)
	}
	switch {
	case o.Since == nil:
		client, err := s.sandbox.Agent(ctx)
		if err == nil {
			err = client.Logs(ctx, api.LogOptions{ExecID: o.ExecID, Stream: o.Stream, Tail: o.Tail}, x.entry)
		}
		switch {
		case err != nil && !s.ends(err):
			return err
		case err != nil && o.Follow:
			return x.end(s)
		case err != nil || !o.Follow:
			return s.sandbox.Explain(err)
		}
	case *o.Since < 0:
		end, err := m.execEnd(ctx, s, o)
		if err != nil {
			return err
		}
		x.at = max(end+*o.Since, 0)
	default:
		x.at = *o.Since
	}
	if err := m.follow(ctx, s, &x, source{id: o.ExecID}); err != nil || !o.Follow {
		return err
	}
	return x.end(s)
}

// execEnd says how much an exec has written: of the chosen stream, or of both.
func (m *Runner) execEnd(ctx context.Context, s *Table, o api.LogOptions) (end int64, err error) {
	client, err := s.sandbox.Agent(ctx)
	if err != nil {
		return 0, err
	}
	err = client.Follow(ctx, o.ExecID, agent.FollowOptions{}, func(c agent.Chunk) error {
		switch {
		case o.Stream == "":
			end = c.Position + int64(len(c.Data))
		case o.Stream == c.Stream:
			end = c.Offset + int64(len(c.Data))
		}
		return nil
	})
	return end, s.sandbox.Explain(err)
}

// execLogs calls fn with what an agent keeps of the output of the chosen exec,
// or of all; o.Tail is of all together, or of each. The output of managed
// processes is not fetched for that.
func (t *Table) execLogs(ctx context.Context, client *agent.Client, o api.LogOptions, each bool, fn func(api.LogEntry) error) error {
	one := func(o api.LogOptions) error {
		return client.Logs(ctx, api.LogOptions{ExecID: o.ExecID, Stream: o.Stream, Tail: o.Tail}, fn)
	}
	if o.ExecID != "" || t.empty() && !each {
		return one(o)
	}
	all, err := client.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if t.has(p.ExecID) {
			continue
		}
		o.ExecID = p.ExecID
		if err := one(o); err != nil && !errors.Is(err, api.ErrNotFound) {
			return err
		}
	}
	return nil
}

// execReader turns the output of an exec into log entries.
type execReader struct {
	o  api.LogOptions
	fn func(api.LogEntry) error
	// at is where reading goes on: in the chosen stream, or in both together.
	at int64
	// failed is the error of fn.
	failed error
}

// entry takes a whole entry.
func (x *execReader) entry(e api.LogEntry) error {
	x.at = max(x.at, own(e, x.o.Stream)+int64(len(e.Data)))
	if e.Time.Before(x.o.SinceTime) {
		return nil
	}
	x.failed = x.fn(e)
	return x.failed
}

// chunk takes what a follow brings, which is of both streams.
func (x *execReader) chunk(c agent.Chunk) error {
	e := api.LogEntry{
		ExecID: x.o.ExecID, Stream: c.Stream, Offset: c.Offset, Position: c.Position, Time: c.Time, Data: c.Data, Gap: c.Gap,
	}
	if x.o.Stream == "" {
		if over := x.at - e.Position; over > 0 {
			e = from(e, min(over, int64(len(e.Data))))
		}
		if len(e.Data) == 0 && e.Gap == 0 {
			return nil
		}
		return x.entry(e)
	}
	if e.Stream != x.o.Stream || len(e.Data) == 0 {
		return nil
	}
	// A gap in both streams is only one in the chosen stream as far as its own
	// offsets say.
	if missing := e.Offset - x.at; missing > 0 {
		gap := e
		gap.Data, gap.Gap = nil, missing
		if err := x.entry(gap); err != nil {
			return err
		}
	} else if -missing >= int64(len(e.Data)) {
		return nil
	} else {
		e = from(e, -missing)
	}
	return x.entry(e)
}

// end tells that there is no more, and why.
func (x *execReader) end(s *Table) error {
	reason := "exited"
	if s.sandbox.Over() {
		reason = s.sandbox.Ending().Reason
	}
	e := api.LogEntry{ExecID: x.o.ExecID, Time: now(), End: reason}
	if x.o.Stream == "" {
		e.Position = x.at
	} else {
		e.Offset = x.at
	}
	return x.fn(e)
}

// follow reads an exec from x.at on through connections that break, until it has
// ended or its sandbox has; without o.Follow up to what there is now.
func (m *Runner) follow(ctx context.Context, s *Table, x *execReader, src source) error {
	x.o.ExecID = src.id
	var again retry
	for {
		client, err := s.sandbox.Agent(ctx)
		if err == nil {
			// An offset in one stream is never behind the position of the same byte.
			err = client.Follow(ctx, src.id, agent.FollowOptions{Since: x.at, Follow: x.o.Follow}, func(c agent.Chunk) error {
				again.reset()
				return x.chunk(c)
			})
		}
		switch {
		case err == nil || x.failed != nil:
			return x.failed
		case ctx.Err() != nil:
			return CanceledCall(ctx.Err())
		case s.sandbox.Over() || s.sandbox.DiedWithin(err):
			return nil
		case errors.Is(err, api.ErrNotFound) && !src.beginning():
			return err
		case errors.Is(err, api.ErrNotFound), s.sandbox.Info().State.Held():
		case !x.o.Follow || api.CodeOf(err) != api.CodeUnavailable && api.CodeOf(err) != api.CodeSandboxLost:
			return err
		}
		if !again.pause(ctx, s.sandbox.Ended()) && ctx.Err() != nil {
			return CanceledCall(ctx.Err())
		}
	}
}

// allLogs reads the output of every process: the execs', then the managed ones',
// each in the order of their start; and then, where that is asked for, of all as
// it comes.
func (m *Runner) allLogs(ctx context.Context, s *Table, o api.LogOptions, fn func(api.LogEntry) error) error {
	var f *follower
	if o.Follow {
		f = newFollower(m, s, o, fn)
		s.subscribe(f)
		defer s.unsubscribe(f)
	}
	o.Follow = false
	var err error
	if o.Tail > 0 && (f != nil || !s.empty()) {
		err = m.dumpTail(ctx, s, o, f, fn)
	} else {
		err = m.dump(ctx, s, o, f, fn)
	}
	if err != nil || f == nil {
		return err
	}
	return f.run(ctx)
}

// dump reads what there is of every process, and tells f, if there is one, how
// far it came.
func (m *Runner) dump(ctx context.Context, s *Table, o api.LogOptions, f *follower, fn func(api.LogEntry) error) error {
	told := false
	tell := func(e api.LogEntry) error {
		told = true
		if f != nil {
			f.passed(e)
		}
		if e.Time.Before(o.SinceTime) {
			return nil
		}
		return fn(e)
	}
	state := s.sandbox.Info().State
	switch {
	case s.sandbox.Over():
		if err := s.savedLogs(o, tell); err != nil {
			return err
		}
	case !state.Held(): // whose agent says nothing
		client, err := s.sandbox.Agent(ctx)
		if err == nil {
			err = s.execLogs(ctx, client, o, f != nil && o.Tail > 0, tell)
		}
		if err != nil && !s.ends(err) {
			return err
		}
		if err != nil && !told {
			if err := s.savedLogs(o, tell); err != nil {
				return err
			}
		}
	}
	for _, rec := range s.records() {
		p := s.get(rec.ExecID)
		if p == nil {
			continue // removed in this moment
		}
		if err := m.processLogs(ctx, p, o, tell); err != nil {
			return err
		}
	}
	return nil
}

// dumpTail reads the last lines of all processes together, in the order in which
// they were written.
func (m *Runner) dumpTail(ctx context.Context, s *Table, o api.LogOptions, f *follower, fn func(api.LogEntry) error) error {
	var entries []api.LogEntry
	size := 0
	err := m.dump(ctx, s, o, f, func(e api.LogEntry) error {
		if size += len(e.Data); size > maxSavedLogs {
			return api.Errorf(api.CodeTooLarge, "the last %d lines of every process are over %d bytes together", o.Tail, maxSavedLogs).
				WithHint("ask for fewer lines, or for one process")
		}
		e.Data = slices.Clone(e.Data)
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(entries, func(a, b api.LogEntry) int { return a.Time.Compare(b.Time) })
	for _, e := range tail(entries, o.Tail) {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// source is a process whose output is followed together with others.
type source struct {
	id      string
	managed *process
	// over is closed when the exec that was begun with this id is done; nil when
	// the agent has it already.
	over <-chan struct{}
}

// beginning reports whether the agent may not have heard of the process yet.
func (s source) beginning() bool {
	if s.over == nil {
		return false
	}
	select {
	case <-s.over:
		return false
	default:
		return true
	}
}

// followEnd bounds how long, after the end of a sandbox, those who follow all of
// it wait for what each process wrote last.
const followEnd = settleTime + time.Second
