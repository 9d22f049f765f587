// Package approval is the queue of connections of sandboxes that no rule covers, until an operator
// decides.
package approval

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// Pending is how long a question waits for a word, and Remembered how long an
	// answered one is kept; a no counts as long.
	Pending    = 10 * time.Minute
	Remembered = 10 * time.Minute
	// maxOfSandbox, maxOfTenant and maxAll bound what waits at once; what is over is
	// refused. No tenant can fill the queue of all others.
	maxOfSandbox = 32
	maxOfTenant  = 1024
	maxAll       = 8192
	// maxAnswered bounds what is remembered of each tenant; the oldest go first.
	maxAnswered = 512
)

// Question is what a sandbox wants out.
type Question struct {
	// Sandbox is an id, SandboxName its name, Tenant whose it is.
	Tenant, Sandbox, SandboxName string
	// Name and Port are where it goes, and Rule the smallest rule that lets it out.
	Name string
	Port int
	Rule string
}

// Queue holds the questions of one daemon. It is safe for concurrent use.
type Queue struct {
	notify func(api.Approval)

	mu   sync.Mutex
	list []*entry
}

// entry is one question; all but done is guarded by the queue's lock.
type entry struct {
	a api.Approval
	// done is closed with the word.
	done chan struct{}
	// until is when the entry is forgotten, once it was answered.
	until time.Time
}

// New makes a Queue. Notify is told of each question that begins to wait, and of each
// that waits no more; it must not block. It may be nil.
func New(notify func(api.Approval)) *Queue {
	if notify == nil {
		notify = func(api.Approval) {}
	}
	return &Queue{notify: notify}
}

// Ask puts a question, or joins the one that waits already, and waits for a decision or
// the end of ctx. The question goes on waiting after that. It is true when the connection was
// approved.
func (q *Queue) Ask(ctx context.Context, ask Question) bool {
	e, fresh := q.join(ask, time.Now().UTC())
	if e == nil {
		return false
	}
	if fresh {
		q.notify(q.look(e))
	}
	select {
	case <-e.done:
	case <-ctx.Done():
	}
	return q.look(e).State == api.ApprovalApproved
}

func (q *Queue) look(e *entry) api.Approval {
	q.mu.Lock()
	defer q.mu.Unlock()
	return e.a
}

// join finds the question or adds it; nil if the queue is full.
func (q *Queue) join(ask Question, now time.Time) (_ *entry, fresh bool) {
	q.mu.Lock()
	gone := q.prune(now)
	defer func() {
		q.mu.Unlock()
		for _, a := range gone {
			q.notify(a)
		}
	}()
	waiting, ofTenant, all := 0, 0, 0
	for _, e := range q.list {
		if e.a.State == api.ApprovalPending {
			all++
			if e.a.Tenant == ask.Tenant {
				ofTenant++
			}
		}
		if e.a.Sandbox != ask.Sandbox {
			continue
		}
		if e.a.Rule == ask.Rule && (e.a.State == api.ApprovalPending || e.a.State == api.ApprovalRejected) {
			e.a.Asked++
			return e, false
		}
		if e.a.State == api.ApprovalPending {
			waiting++
		}
	}
	if waiting >= maxOfSandbox || ofTenant >= maxOfTenant || all >= maxAll {
		return nil, false
	}
	e := &entry{done: make(chan struct{}), a: api.Approval{
		ID: api.NewID("ap-"), Tenant: ask.Tenant, Sandbox: ask.Sandbox, SandboxName: ask.SandboxName, Name: ask.Name, Port: ask.Port,
		Rule: ask.Rule, State: api.ApprovalPending, AskedAt: now, Asked: 1, ExpiresAt: now.Add(Pending),
	}}
	q.list = append(q.list, e)
	return e, true
}

// prune ends what has waited too long and forgets what was answered long ago. It
// returns what it ended. The caller holds q.mu.
func (q *Queue) prune(now time.Time) []api.Approval {
	var gone []api.Approval
	for _, e := range q.list {
		if e.a.State == api.ApprovalPending && !now.Before(e.a.ExpiresAt) {
			q.settle(e, api.ApprovalExpired, "", now)
			gone = append(gone, e.a)
		}
	}
	answered := map[string]int{}
	for _, e := range q.list {
		if e.a.State != api.ApprovalPending {
			answered[e.a.Tenant]++
		}
	}
	q.list = slices.DeleteFunc(q.list, func(e *entry) bool {
		if e.a.State == api.ApprovalPending {
			return false
		}
		forget := !now.Before(e.until) || answered[e.a.Tenant] > maxAnswered
		if forget {
			answered[e.a.Tenant]--
		}
		return forget
	})
	return gone
}

// settle ends the wait of an entry. The caller holds q.mu.
func (q *Queue) settle(e *entry, to api.ApprovalState, by string, now time.Time) {
	e.a.State, e.until = to, now.Add(Remembered)
	if by != "" {
		e.a.AnsweredAt, e.a.AnsweredBy = &now, by
	}
	close(e.done)
}

// List returns the questions that sees lets through, oldest first; with all those
// that were answered too.
func (q *Queue) List(all bool, sees func(api.Approval) bool) []api.Approval {
	q.mu.Lock()
	gone := q.prune(time.Now().UTC())
	out := []api.Approval{}
	for _, e := range q.list {
		if (all || e.a.State == api.ApprovalPending) && sees(e.a) {
			out = append(out, e.a)
		}
	}
	q.mu.Unlock()
	for _, a := range gone {
		q.notify(a)
	}
	slices.SortStableFunc(out, func(a, b api.Approval) int {
		return cmp.Or(a.AskedAt.Compare(b.AskedAt), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Get returns one question.
func (q *Queue) Get(id string) (api.Approval, bool) {
	for _, a := range q.List(true, func(a api.Approval) bool { return a.ID == id }) {
		return a, true
	}
	return api.Approval{}, false
}

// Answer decides. False is for a question that does not wait, which is
// returned as it is. A caller that approves puts the rule into force first: the waiting connections
// retry at once.
func (q *Queue) Answer(id string, approve bool, by string) (api.Approval, bool) {
	q.mu.Lock()
	i := slices.IndexFunc(q.list, func(e *entry) bool { return e.a.ID == id })
	if i < 0 || q.list[i].a.State != api.ApprovalPending {
		defer q.mu.Unlock()
		if i < 0 {
			return api.Approval{}, false
		}
		return q.list[i].a, false
	}
	to := api.ApprovalRejected
	if approve {
		to = api.ApprovalApproved
	}
	q.settle(q.list[i], to, by, time.Now().UTC())
	a := q.list[i].a
	q.mu.Unlock()
	q.notify(a)
	return a, true
}

// Forget ends what a sandbox that is no more was waiting for.
func (q *Queue) Forget(sandbox string) {
	q.mu.Lock()
	var gone []api.Approval
	for _, e := range q.list {
		if e.a.Sandbox == sandbox && e.a.State == api.ApprovalPending {
			q.settle(e, api.ApprovalExpired, "", time.Now().UTC())
			gone = append(gone, e.a)
		}
	}
	q.mu.Unlock()
	for _, a := range gone {
		q.notify(a)
	}
}
