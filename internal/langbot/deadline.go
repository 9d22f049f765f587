package langbot

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/await"
)

// Deadlines are how long actions are served. A field that is 0 is its default.
type Deadlines struct {
	// Call is for what only looks, or changes a small thing.
	Call time.Duration
	// Change is for what ends a session or a process, or starts a process.
	Change time.Duration
	// Work is for what may take long, such as a session with its image.
	Work time.Duration
}

func (d Deadlines) filled() Deadlines {
	return Deadlines{Call: cmp.Or(d.Call, time.Minute), Change: cmp.Or(d.Change, 2*time.Minute), Work: cmp.Or(d.Work, 45*time.Minute)}
}

// pace is which deadline an action has.
type pace int

const (
	paceCall pace = iota
	paceChange
	paceWork
	// paceExec is paceWork for the session, and the longest timeout of a command: before
	// that, core ends commands by their own timeouts, and gives up agents that do not answer.
	paceExec
	// paceNone is for what waits for nothing.
	paceNone
)

// of is how long actions of a pace are served; 0 is without an end.
func (d Deadlines) of(p pace) time.Duration {
	switch p {
	case paceCall:
		return d.Call
	case paceChange:
		return d.Change
	case paceWork:
		return d.Work
	case paceExec:
		return d.Work + maxExec*time.Second
	case paceNone:
	}
	return 0
}

// deadlineGrace is how long an action whose deadline has passed may take to return before
// it is answered without it.
const deadlineGrace = 500 * time.Millisecond

// errDeadline is the cause of a context whose action's deadline has passed.
var errDeadline = errors.New("the deadline of the action has passed")

// outcome is what became of an action.
type outcome struct {
	data any
	err  error
}

// within does an action, and returns when its deadline passes, whatever it does: it may go
// on then. done is called when it has ended.
func (p *peer) within(req request, done func()) (any, error) {
	limit := p.s.deadlines.of(actions()[req.action].pace) // what is no action is refused at once
	ctx, notes := await.With(p.ctx)
	cancel := context.CancelFunc(func() {})
	if limit > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errDeadline)
	}
	begun, ended := time.Now(), make(chan outcome, 1)
	p.wg.Go(func() {
		defer done()
		data, err := p.s.do(ctx, p, req)
		ended <- outcome{data, err}
	})
	defer cancel()
	var late <-chan time.Time // never, without a deadline
	if limit > 0 {
		t := time.NewTimer(limit + deadlineGrace)
		defer t.Stop()
		late = t.C
	}
	select {
	case o := <-ended:
		if o.err != nil && errors.Is(context.Cause(ctx), errDeadline) {
			return nil, overdue(begun, notes, o.err)
		}
		return o.data, o.err
	case <-late:
		return nil, overdue(begun, notes, nil)
	}
}

// overdue is the error of an action whose deadline has passed: what did not answer, and
// for how long.
func overdue(begun time.Time, notes *await.Notes, cause error) error {
	if e, ok := errors.AsType[*api.Error](cause); ok && e.Code != api.CodeTimeout && e.Code != api.CodeCanceled && e.Code != api.CodeInternal {
		return e // it ended for a reason of its own in the same moment
	}
	part, since := notes.Last()
	if part == "" {
		part, since = "the daemon's own work", begun
	}
	return api.Errorf(api.CodeTimeout, "the action was not done within %s: %s has not answered for %s", rounded(begun), part, rounded(since)).
		WithHint("what was asked may be done yet; look before you ask again").WithCause(cmp.Or[error](cause, errDeadline))
}

// rounded is the time since t, short enough to be read.
func rounded(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Millisecond) }
