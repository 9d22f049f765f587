package process

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// Records holds a directory for each managed process.
	// Records is the directory for the records and logs of processes, in the directory of their sandbox.
	Records = "processes"
	// maxWait bounds one request that waits for a process.
	maxWait = time.Minute
)

// Table has the processes of one sandbox. [Table.Init] comes before its use. It is safe for concurrent
// use.
type Table struct {
	names   Names
	dir     string // the sandbox's
	sandbox Sandbox
	all     *Runner

	mu   sync.Mutex // guards what follows
	byID map[string]*process
	// execs counts the execs that are under way.
	execs int
	// busy has the ids that are being started or removed; the channel is closed
	// when that is done.
	busy map[string]chan struct{}
	seen seenExecs
	// collectors collects and watches; nil until there is something to watch.
	collectors *collectors
	// followers are told of every process that begins.
	followers map[*follower]struct{}
	// due is when the records of ended ones must be looked at; zero is never.
	due time.Time
}

// get returns the process with an ID, or nil. It returns nil for a process that is not visible yet.
func (t *Table) get(id string) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byID[id]
	if p == nil {
		return nil
	}
	if !p.shown() {
		return nil
	}
	return p
}

// shown reports whether the agent has said that it has the process.
func (p *process) shown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.confirmed
}

// has reports whether an id is a managed process's, shown or not.
func (t *Table) has(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id] != nil
}

// empty reports whether there are no managed processes.
func (t *Table) empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID) == 0
}

// every returns every process, including those that are not visible yet.
func (t *Table) every() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*process, 0, len(t.byID))
	for _, p := range t.byID {
		out = append(out, p)
	}
	return out
}

// records are the processes that may be seen, in the order of their start.
func (t *Table) records() []api.Process {
	var out []api.Process
	for _, p := range t.every() {
		if p.shown() {
			rec, _ := p.snapshot()
			out = append(out, rec)
		}
	}
	slices.SortFunc(out, byStart)
	return out
}

// claim reserves an ID for a start or a removal, once no other call holds it. p is the process that
// has the ID, or nil.
func (t *Table) claim(ctx context.Context, id string) (p *process, free func(), err error) {
	for {
		t.mu.Lock()
		busy := t.busy[id]
		if busy == nil {
			if t.busy == nil {
				t.busy, t.byID = map[string]chan struct{}{}, orEmpty(t.byID)
			}
			done := make(chan struct{})
			t.busy[id] = done
			p := t.byID[id]
			t.mu.Unlock()
			return p, func() {
				t.mu.Lock()
				delete(t.busy, id)
				t.mu.Unlock()
				close(done)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, nil, api.Errorf(api.CodeCanceled, "the call was given up: %w", ctx.Err())
		}
	}
}

// orEmpty is m, or an empty map.
func orEmpty[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return m
}

// add adds a process to the table, if the number of live processes allows it.
func (m *Runner) add(s *Table, p *process) error {
	t := s
	t.mu.Lock()
	defer t.mu.Unlock()
	var err *api.Error
	switch living, read := t.count(); {
	case living >= m.maxLiving:
		err = api.Errorf(api.CodeNoCapacity, "%d managed processes live in sandbox %s, which is the most", m.maxLiving, s.names.Name).
			WithHint("end or remove one, or use another sandbox; those that have ended do not count")
	case read >= m.maxEnded:
		err = api.Errorf(api.CodeNoCapacity, "the logs of %d ended processes of sandbox %s are being read, so none can be removed", read, s.names.Name).
			WithHint("retry when fewer are read, or remove ended processes")
	default:
		// The first processes of a sandbox can have long logs. With thousands of processes, long
		// logs would fill the machine's disk.
		p.logBytes = t.logBytes()
		t.byID[p.id] = p
		return nil
	}
	err.Retryable, err.RetryAfterMS = true, 1000
	return err
}

func (t *Table) drop(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[p.id] == p {
		delete(t.byID, p.id)
	}
}

// logSizes are how much is kept on disk of the output of a process, and of how
// many so much: the rest have 1 MiB each.
func logSizes() []logSize { return []logSize{{64 << 20, 16}, {8 << 20, 112}} }

type logSize struct {
	bytes int64
	most  int
}

// logBytes is how much will be kept of the next process: the largest size that
// not all who may have it have. The caller holds t.mu.
func (t *Table) logBytes() int64 {
	for _, size := range logSizes() {
		n := 0
		for _, p := range t.byID {
			if p.logBytes == size.bytes {
				n++
			}
		}
		if n < size.most {
			return size.bytes
		}
	}
	return 1 << 20
}

// tailBytes is how much of that is kept in memory too.
func tailBytes(logBytes int64) int { return int(min(max(logBytes/256, 16<<10), 256<<10)) }

// noProcess is the error about a process that is not there.
func noProcess(s *Table, id string) *api.Error {
	return api.Errorf(api.CodeNotFound, "sandbox %s has no process %.80q", s.names.Name, id).WithHint("cloche ps %s lists them", s.names.Name)
}

// notManaged is the error for what only a managed process can do.
func notManaged(id string) *api.Error {
	return api.Errorf(api.CodeState, "process %.80s is an exec, not a managed process", id).
		WithHint("start what others are to come back to with: cloche start")
}

// Process returns what is on record about one process.
func (m *Runner) Process(ctx context.Context, caller policy.Caller, ref, id string) (api.Process, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbGet, ref)
	if err != nil {
		return api.Process{}, err
	}
	return m.process(ctx, s, id)
}

func (m *Runner) process(ctx context.Context, s *Table, id string) (api.Process, error) {
	if p := s.get(id); p != nil {
		rec, _ := p.snapshot()
		return rec, nil
	}
	execs, err := m.execRecords(ctx, s)
	if err != nil {
		return api.Process{}, err
	}
	i := slices.IndexFunc(execs, func(p api.Process) bool { return p.ExecID == id })
	if i < 0 {
		return api.Process{}, noProcess(s, id)
	}
	return execs[i], nil
}

// Processes lists the processes of a sandbox that are on record, in the order of
// their start: the managed ones, and the execs that its agent, or what was saved
// at its end, knows of. The execs of a paused or suspended sandbox are not listed.
func (m *Runner) Processes(ctx context.Context, caller policy.Caller, ref string) ([]api.Process, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbProcesses, ref)
	if err != nil {
		return nil, err
	}
	execs, at := []api.Process(nil), now()
	if !s.sandbox.Info().State.Held() {
		if execs, at, err = m.lookAtExecs(ctx, s); err != nil {
			return nil, err
		}
	}
	out := append(s.records(), execs...)
	slices.SortStableFunc(out, byStart)
	for i := range out {
		out[i].ObservedAt = at.UTC()
	}
	if out == nil {
		out = []api.Process{}
	}
	return out, nil
}

// lookPatience is how long a list waits for an agent.
const lookPatience = 3 * time.Second

// seenExecs are the execs that the agent last told of.
type seenExecs struct {
	mu    sync.Mutex
	execs []api.Process
	at    time.Time
}

// lookAtExecs is execRecords that does not wait for an agent that does not answer: then
// they are as they were last told of, at that time.
func (m *Runner) lookAtExecs(ctx context.Context, s *Table) ([]api.Process, time.Time, error) {
	asked := now()
	looking, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	execs, err := m.execRecords(looking, s)
	seen := &s.seen
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if err == nil {
		seen.execs, seen.at = execs, asked
		return slices.Clone(execs), asked, nil
	}
	if !unanswered(err) || ctx.Err() != nil {
		return nil, asked, err
	}
	at := seen.at
	if at.IsZero() {
		at = s.sandbox.Info().CreatedAt // there were none
	}
	return slices.Clone(seen.execs), at, nil
}

// unanswered reports whether err says that an agent did not answer.
func unanswered(err error) bool {
	switch api.CodeOf(err) {
	case api.CodeTimeout, api.CodeUnavailable, api.CodeSandboxLost:
		return true
	}
	return false
}

// execRecords lists the processes that are not managed.
func (m *Runner) execRecords(ctx context.Context, s *Table) ([]api.Process, error) {
	if s.sandbox.Over() {
		return m.savedProcesses(s), nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := s.sandbox.Agent(ctx)
	var all []api.Process
	if err == nil {
		all, err = client.Processes(ctx)
	}
	if err != nil && s.ends(err) {
		return m.savedProcesses(s), nil
	}
	if err != nil {
		return nil, err
	}
	var execs []api.Process
	for _, p := range all {
		if !s.has(p.ExecID) {
			execs = append(execs, m.o.Redacted(saneExec(p)))
		}
	}
	return execs, nil
}

// ends reports whether err is due to the end of the sandbox, which comes within a
// moment if it has not: who finds the agent gone then reads what was saved.
func (t *Table) ends(err error) bool {
	switch t.sandbox.Info().State {
	case api.StateStopping, api.StateDeleting, api.StateStopped, api.StateLost:
	default:
		return t.sandbox.DiedWithin(err)
	}
	timer := time.NewTimer(DeathGrace)
	defer timer.Stop()
	select {
	case <-t.sandbox.Ended():
		return true
	case <-timer.C:
		return false
	}
}

// saneExec keeps of the record of an exec what an agent may say, and fills in
// the state where an older one knew of none.
func saneExec(p api.Process) api.Process {
	p.Reason, p.LastStderr, p.Name = agent.PlainText(p.Reason, MaxSaid), agent.PlainText(p.LastStderr, maxLastStderr), ""
	p.Readers, p.Writer = 0, false
	switch {
	case p.Running:
		p.State = api.ProcessRunning
	case p.State != api.ProcessUnknown && p.State != api.ProcessFailed:
		p.State = api.ProcessExited
	}
	return p
}

// WaitProcess waits until a process has ended, or is ready where that is asked
// for, or the time is up, and returns its record as it is then.
func (m *Runner) WaitProcess(ctx context.Context, caller policy.Caller, ref, id string, w api.WaitRequest) (api.Process, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbWait, ref)
	if err != nil {
		return api.Process{}, err
	}
	defer s.sandbox.Use()()
	wait := maxWait
	if w.TimeoutMS > 0 && w.TimeoutMS < maxWait.Milliseconds() {
		wait = milliseconds(w.TimeoutMS)
	}
	p := s.get(id)
	if p == nil {
		return m.waitExec(ctx, s, id, wait)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	ctx, done := s.sandbox.Attended(ctx)
	defer done()
	for {
		rec, changed := p.snapshot()
		if rec.State.Ended() || w.Ready && rec.State == api.ProcessReady {
			return rec, nil
		}
		if _, gone := p.ended(); gone {
			return api.Process{}, noProcess(s, id)
		}
		select {
		case <-changed:
		case <-timer.C:
			return rec, nil
		case <-ctx.Done():
			return api.Process{}, silenced(ctx, CanceledCall(ctx.Err()))
		case <-m.o.Context.Done():
			return api.Process{}, shuttingDown()
		}
	}
}

// waitExec waits for the end of a process that is not managed.
func (m *Runner) waitExec(ctx context.Context, s *Table, id string, wait time.Duration) (api.Process, error) {
	rec, err := m.process(ctx, s, id)
	if err != nil || !rec.Running {
		return rec, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	client, err := s.sandbox.Agent(waiting)
	if err == nil {
		err = client.Follow(waiting, id, agent.FollowOptions{Since: rec.Position, Follow: true}, func(agent.Chunk) error { return nil })
	}
	switch {
	case ctx.Err() != nil:
		return api.Process{}, CanceledCall(ctx.Err())
	case err != nil && waiting.Err() == nil && !s.sandbox.DiedWithin(err):
		return api.Process{}, err
	}
	return m.process(ctx, s, id)
}

func shuttingDown() error {
	err := api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	err.Retryable = true
	return err
}

// loadProcesses reads what an earlier daemon had on record.
func (m *Runner) loadProcesses(s *Table) error {
	dirs, err := processDirs(filepath.Join(s.dir, Records))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID = orEmpty(s.byID)
	var errs []error
	for _, dir := range dirs {
		p, err := readProcess(dir)
		if errors.Is(err, errNotStarted) || errors.Is(err, fs.ErrNotExist) && hostfile.HasNoFiles(dir) {
			errs = append(errs, workspace.RemoveTree(dir)) // a start that had only begun
			continue
		}
		if err != nil {
			p = m.unreadableProcess(s, dir, err)
		}
		s.byID[p.id] = p
		if at, final := p.endedAt(); final && m.o.Retention.For > 0 {
			if due := at.Add(m.o.Retention.For); s.due.IsZero() || due.Before(s.due) {
				s.due = due
			}
		}
	}
	return errors.Join(errs...)
}

// DeathGrace is how long after its connection broke the death of an instance
// may go unseen.
const DeathGrace = 2 * time.Second
