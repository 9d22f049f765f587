package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// maxExecs bounds the execs of one sandbox that are under way at once.
const maxExecs = 192

// Exec runs one program to its end and returns what it wrote, bounded at the
// source. The end of ctx leaves the program running, unless its request says
// CancelWithCaller.
func (m *Manager) Exec(ctx context.Context, caller policy.Caller, ref string, permit policy.ExecPermit) (api.Result, error) {
	s, err := m.find(caller, policy.VerbExec, ref)
	if err != nil {
		return api.Result{}, err
	}
	return m.exec(ctx, s, permit)
}

func (m *Manager) exec(ctx context.Context, s *live, permit policy.ExecPermit) (api.Result, error) {
	start, done, err := m.begin(ctx, s, permit)
	if err != nil {
		return api.Result{}, err
	}
	defer done()
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return api.Result{}, err
	}
	before, begun, refusals := m.oomKills(ctx, s), time.Now(), s.refusals()
	m.setDeadline(s, start.ExecID, start.Timeout)
	res, err := client.Exec(ctx, start)
	if start.Repeatable && api.CodeOf(err) == api.CodeUnavailable && !errors.Is(err, agent.ErrSilent) && ctx.Err() == nil && !s.diedWithin(err) {
		// The answer was lost with the connection. It can be asked for again.
		if client, err = m.agentOf(ctx, s); err == nil {
			res, err = client.Exec(ctx, start)
		}
	}
	if err == nil || !unsure(err) {
		m.met(s, start.ExecID)
	}
	if err != nil {
		if s.diedWithin(err) {
			return s.lostResult(start.ExecID, begun), nil
		}
		if ctx.Err() != nil {
			m.callerLeft(s, permit, start.ExecID)
		}
		return api.Result{}, s.hint(err)
	}
	m.judge(ctx, s, &res, before, false)
	res.Adjusted, res.Refusals = permit.Adjusted(), refusals()
	return res, nil
}

// callerLeft kills an exec that its caller does not wait for any more, where that was
// asked for. The agent may not have heard of the start yet; it refuses it then.
func (m *Manager) callerLeft(s *live, permit policy.ExecPermit, id string) {
	if !permit.Request().CancelWithCaller {
		return
	}
	kill := api.SignalRequest{Signal: "KILL", Scope: api.ScopeTree}
	err := m.signal(m.ctx, s, id, kill)
	switch api.CodeOf(err) {
	case "", api.CodeNotFound, api.CodeState: // it is over, or will not begin
	default:
		m.log.Warn("kill an exec whose caller left", "sandbox", s.id, "exec", id, "error", err)
	}
}

// begin turns a permit into what the agent is told, and counts the exec as use
// of the sandbox until done is called.
func (m *Manager) begin(ctx context.Context, s *live, permit policy.ExecPermit) (start agent.Start, done func(), err error) {
	if !permit.Valid() {
		return start, nil, api.Errorf(api.CodeDenied, "no policy has granted this exec")
	}
	if err := s.endpoints.Wait(ctx, permit.Request().WaitEndpoints); err != nil {
		return start, nil, err
	}
	given, err := m.given(ctx, s)
	if err != nil {
		return start, nil, err
	}
	start = s.start(permit, given)
	start.Repeatable = start.ExecID != ""
	if start.Repeatable && s.procs.has(start.ExecID) {
		return start, nil, api.Errorf(api.CodeExists, "%s is a managed process of sandbox %s", start.ExecID, s.name).
			WithHint("choose another exec_id")
	}
	start.ExecID = cmp.Or(start.ExecID, api.NewID("x-"))
	s.mu.Lock()
	if s.execs >= maxExecs {
		s.mu.Unlock()
		err := api.Errorf(api.CodeNoCapacity, "%d execs are under way in sandbox %s, which is the limit", maxExecs, s.name)
		err.Retryable, err.RetryAfterMS = true, 1000
		return start, nil, err
	}
	s.execs++
	s.mu.Unlock()
	s.deadlines.ask(start.ExecID, 1)
	release, over := s.use(), make(chan struct{})
	s.procs.tellFollowers(source{id: start.ExecID, over: over})
	return start, func() {
		close(over)
		release()
		s.deadlines.ask(start.ExecID, -1)
		s.mu.Lock()
		s.execs--
		s.mu.Unlock()
	}, nil
}

// start is what the agent is told of a program; given is what Manager.given returned.
func (s *live) start(permit policy.ExecPermit, given map[string]string) agent.Start {
	s.mu.Lock()
	defer s.mu.Unlock()
	req := permit.Request()
	return agent.Start{
		ExecID: req.ExecID, Argv: permit.Argv(), Env: environment(s.image.Env, given, permit.Env(), s.endpoints.Exports(cmp.Or(req.Phase, api.PhaseRun)), req.Env),
		Cwd: cmp.Or(permit.Cwd(), s.info.Cwd), User: cmp.Or(permit.User(), s.info.User), Stdin: req.Stdin, Timeout: permit.Timeout(),
		MaxOutput: permit.MaxOutput(), Combined: req.Combined, TTY: req.TTY, Rows: req.Rows, Cols: req.Cols,
	}
}

// environment is the whole environment of a process: later sets win.
func environment(sets ...map[string]string) []string {
	all := map[string]string{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	out := make([]string, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(out, k+"="+all[k])
	}
	return out
}

// oomKills reads the kernel's count of kills for memory, 0 where it is unknown.
func (m *Manager) oomKills(ctx context.Context, s *live) int64 {
	s.mu.Lock()
	inst := s.inst
	s.mu.Unlock()
	if inst == nil {
		return 0
	}
	st, _ := stat(ctx, inst)
	m.sawKills(s, st.OOMKills)
	return st.OOMKills
}

// judge reports whether the memory limit killed a program that ended: it was killed by a KILL that
// Cloche did not send while the kernel's count increased.
func (m *Manager) judge(ctx context.Context, s *live, res *api.Result, before int64, sentKill bool) {
	if res.Signal != "KILL" || res.TimedOut || sentKill || s.snapshot().State != api.StateRunning {
		return
	}
	res.OOM = m.oomKills(ctx, s) > before
}

// lostResult is the outcome of an exec whose sandbox died.
func (s *live) lostResult(execID string, begun time.Time) api.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return api.Result{
		SandboxLost: true, OOM: s.end.oom, Reason: s.end.reason, TerminalReason: cmp.Or(s.info.TerminalReason, s.end.cause()), ExecID: execID,
		DurationMS: time.Since(begun).Milliseconds(),
	}
}

// Stream is one live exec. Recv and the writing methods may be used from two
// goroutines at once.
type Stream struct {
	m      *Manager
	s      *live
	inner  *agent.Stream
	permit policy.ExecPermit
	done   func()
	before int64
	// refusals are what was not let out since it began.
	refusals func() []api.EgressRefusal
	begun    time.Time
	id       string
	ended    atomic.Bool
	// sentKill is set once a KILL has been sent on request.
	sentKill atomic.Bool
	closing  sync.Once
}

// ExecStream starts a program and returns when it has been executed. The end of
// ctx ends only the call. The caller closes the Stream, see Close.
func (m *Manager) ExecStream(ctx context.Context, caller policy.Caller, ref string, permit policy.ExecPermit) (*Stream, error) {
	s, err := m.find(caller, policy.VerbExec, ref)
	if err != nil {
		return nil, err
	}
	return m.execStream(ctx, s, permit)
}

func (m *Manager) execStream(ctx context.Context, s *live, permit policy.ExecPermit) (*Stream, error) {
	start, done, err := m.begin(ctx, s, permit)
	if err != nil {
		return nil, err
	}
	client, err := m.agentOf(ctx, s)
	if err != nil {
		done()
		return nil, err
	}
	st := &Stream{m: m, s: s, permit: permit, done: done, before: m.oomKills(ctx, s), refusals: s.refusals(), begun: time.Now(), id: start.ExecID}
	m.setDeadline(s, start.ExecID, start.Timeout)
	if st.inner, err = client.Stream(ctx, start); err != nil {
		if !unsure(err) {
			m.met(s, start.ExecID)
		}
		if ctx.Err() != nil {
			m.callerLeft(s, permit, start.ExecID)
		}
		done()
		return nil, s.hint(s.explain(err))
	}
	return st, nil
}

// hint adds to the error about a missing program what the image is.
func (s *live) hint(err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeCommandNotFound && e.Hint == "" {
		e.Hint = s.image.MissingHint
	}
	return err
}

// ExecID names the process in the sandbox's logs.
func (t *Stream) ExecID() string { return t.id }

// Recv returns the next output or, last, the exit; after that io.EOF.
func (t *Stream) Recv() (agent.Event, error) {
	if t.ended.Load() {
		return agent.Event{}, io.EOF
	}
	ev, err := t.inner.Recv()
	if err != nil {
		if !errors.Is(err, io.EOF) && !t.s.diedWithin(err) {
			return ev, err
		}
		t.ended.Store(true)
		res := t.s.lostResult(t.id, t.begun)
		return agent.Event{Exit: &res}, nil
	}
	if ev.Exit != nil {
		t.ended.Store(true)
		t.m.met(t.s, t.id)
		ctx, cancel := context.WithTimeout(t.m.ctx, callTimeout)
		defer cancel()
		t.m.judge(ctx, t.s, ev.Exit, t.before, t.sentKill.Load())
		ev.Exit.Adjusted, ev.Exit.Refusals = t.permit.Adjusted(), t.refusals()
	}
	return ev, nil
}

// Write sends input to the program.
func (t *Stream) Write(p []byte) (int, error) { return t.inner.Write(p) }

// CloseWrite ends the program's input.
func (t *Stream) CloseWrite() error { return t.inner.CloseWrite() }

// Resize changes the size of the program's terminal.
func (t *Stream) Resize(rows, cols uint16) error { return t.inner.Resize(rows, cols) }

// Signal sends a signal, named as in api.Result, to the program's process
// group.
func (t *Stream) Signal(name string) error {
	n := api.SignalNumber(name)
	if n == 0 {
		return api.Invalid("signal", "%q is not a signal", name).WithHint("name one like TERM, INT or KILL")
	}
	if name == "KILL" {
		t.sentKill.Store(true)
	}
	return t.inner.Signal(n)
}

// Close ends the Stream and leaves the program running, unless its request says
// CancelWithCaller. It may be called twice.
func (t *Stream) Close() error {
	t.closing.Do(func() {
		if !t.ended.Load() {
			t.m.callerLeft(t.s, t.permit, t.id)
		}
		t.done()
	})
	return t.inner.Close()
}
