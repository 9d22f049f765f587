package process

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
func (m *Runner) Exec(ctx context.Context, caller policy.Caller, ref string, permit policy.ExecPermit) (api.Result, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbExec, ref)
	if err != nil {
		return api.Result{}, err
	}
	return m.exec(ctx, s, permit)
}

func (m *Runner) exec(ctx context.Context, s *Table, permit policy.ExecPermit) (api.Result, error) {
	start, done, err := m.begin(ctx, s, permit)
	if err != nil {
		return api.Result{}, err
	}
	defer done()
	client, err := s.sandbox.Agent(ctx)
	if err != nil {
		return api.Result{}, err
	}
	before, begun, refusals := s.sandbox.OOMKills(ctx), time.Now(), s.sandbox.Refusals()
	s.sandbox.SetDeadline(start.ExecID, start.Timeout)
	res, err := client.Exec(ctx, start)
	for once := !start.Brief; ctx.Err() == nil && (errors.Is(err, agent.ErrSaving) || once && s.lostConnection(err)); {
		// The answer was lost with the connection. It can be asked for again, each time that the memory was saved.
		once = once && errors.Is(err, agent.ErrSaving)
		if client, err = s.sandbox.Agent(ctx); err == nil {
			res, err = client.Exec(ctx, start)
		}
	}
	if err == nil || !unsure(err) {
		s.sandbox.MeetDeadline(start.ExecID)
	}
	if err != nil {
		if s.sandbox.DiedWithin(err) {
			return s.lostResult(start.ExecID, begun), nil
		}
		if ctx.Err() != nil {
			m.callerLeft(s, permit, start.ExecID)
		}
		return api.Result{}, s.hint(err)
	}
	m.judge(ctx, s, &res, before, false)
	m.syncAfter(ctx, s)
	res.Adjusted, res.Refusals = permit.Adjusted(), refusals()
	return res, nil
}

// lostConnection reports whether a call of a sandbox that lives failed because its connection to the agent ended.
func (t *Table) lostConnection(err error) bool {
	return api.CodeOf(err) == api.CodeUnavailable && !errors.Is(err, agent.ErrSilent) && !t.sandbox.DiedWithin(err)
}

// syncAfter carries what a program wrote to the host, before its caller hears of its end. What fails is
// tried again while the sandbox is in use.
func (m *Runner) syncAfter(ctx context.Context, s *Table) {
	if err := s.sandbox.SyncFiles(ctx, true); err != nil {
		m.o.Logger.Warn("synchronize files after a program", "sandbox", s.names.ID, "error", err)
	}
}

// callerLeft kills an exec that its caller does not wait for any more, where that was
// asked for. The agent may not have heard of the start yet; it refuses it then.
func (m *Runner) callerLeft(s *Table, permit policy.ExecPermit, id string) {
	if !permit.Request().CancelWithCaller {
		return
	}
	kill := api.SignalRequest{Signal: "KILL", Scope: api.ScopeTree}
	err := m.signal(m.o.Context, s, id, kill)
	switch api.CodeOf(err) {
	case "", api.CodeNotFound, api.CodeState: // it is over, or will not begin
	default:
		m.o.Logger.Warn("kill an exec whose caller left", "sandbox", s.names.ID, "exec", id, "error", err)
	}
}

// begin turns a permit into what the agent is told, and counts the exec as use
// of the sandbox until done is called.
func (m *Runner) begin(ctx context.Context, s *Table, permit policy.ExecPermit) (start agent.Start, done func(), err error) {
	if !permit.Valid() {
		return start, nil, api.Errorf(api.CodeDenied, "no policy has granted this exec")
	}
	if err := s.sandbox.WaitEndpoints(ctx, permit.Request().WaitEndpoints); err != nil {
		return start, nil, err
	}
	if err := s.sandbox.SyncFiles(ctx, false); err != nil {
		return start, nil, err
	}
	given, err := s.sandbox.SecretEnv(ctx)
	if err != nil {
		return start, nil, err
	}
	start = s.start(permit, given)
	start.Repeatable, start.Brief = true, start.ExecID == ""
	if !start.Brief && s.has(start.ExecID) {
		return start, nil, api.Errorf(api.CodeExists, "%s is a managed process of sandbox %s", start.ExecID, s.names.Name).
			WithHint("choose another exec_id")
	}
	start.ExecID = cmp.Or(start.ExecID, api.NewID("x-"))
	s.mu.Lock()
	if s.execs >= maxExecs {
		s.mu.Unlock()
		err := api.Errorf(api.CodeNoCapacity, "%d execs are under way in sandbox %s, which is the limit", maxExecs, s.names.Name)
		err.Retryable, err.RetryAfterMS = true, 1000
		return start, nil, err
	}
	s.execs++
	s.mu.Unlock()
	s.sandbox.AskDeadline(start.ExecID, 1)
	release, over := s.sandbox.Use(), make(chan struct{})
	s.tellFollowers(source{id: start.ExecID, over: over})
	return start, func() {
		close(over)
		release()
		s.sandbox.AskDeadline(start.ExecID, -1)
		s.mu.Lock()
		s.execs--
		s.mu.Unlock()
	}, nil
}

// start is what the agent is told of a program; given is what Manager.given returned.
func (t *Table) start(permit policy.ExecPermit, given map[string]string) agent.Start {
	req := permit.Request()
	d := t.sandbox.Defaults(cmp.Or(req.Phase, api.PhaseRun))
	return agent.Start{
		ExecID: req.ExecID, Argv: permit.Argv(), Env: environment(d.Image, given, permit.Env(), d.Exports, req.Env),
		Cwd: cmp.Or(permit.Cwd(), d.Cwd), User: cmp.Or(permit.User(), d.User), Stdin: req.Stdin, Timeout: permit.Timeout(),
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

// judge reports whether the memory limit killed a program that ended: it was killed by a KILL that
// Cloche did not send while the kernel's count increased.
func (m *Runner) judge(ctx context.Context, s *Table, res *api.Result, before int64, sentKill bool) {
	if res.Signal != "KILL" || res.TimedOut || sentKill || s.sandbox.Info().State != api.StateRunning {
		return
	}
	res.OOM = s.sandbox.OOMKills(ctx) > before
}

// lostResult is the outcome of an exec whose sandbox died.
func (t *Table) lostResult(execID string, begun time.Time) api.Result {
	end := t.sandbox.Ending()
	return api.Result{
		SandboxLost: true, OOM: end.OOM, Reason: end.Reason, TerminalReason: end.TerminalReason, ExecID: execID,
		DurationMS: time.Since(begun).Milliseconds(),
	}
}

// Stream is one live exec. Recv and the writing methods may be used from two
// goroutines at once.
type Stream struct {
	// Exited, if set before the first Recv, is called once with the exit. Its error is what Recv
	// returns with the exit.
	Exited func(api.Result) error
	// Closed, if set before the first Recv, is called once: after Exited, or by Close.
	Closed func()

	m *Runner
	s *Table
	// ctx is the one of the call that started it.
	ctx    context.Context
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
	leaving  sync.Once
	closing  sync.Once
}

// ExecStream starts a program and returns when it has been executed. The end of
// ctx ends only the call. The caller closes the Stream, see Close.
func (m *Runner) ExecStream(ctx context.Context, caller policy.Caller, ref string, permit policy.ExecPermit) (*Stream, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbExec, ref)
	if err != nil {
		return nil, err
	}
	return m.execStream(ctx, s, permit)
}

func (m *Runner) execStream(ctx context.Context, s *Table, permit policy.ExecPermit) (*Stream, error) {
	start, done, err := m.begin(ctx, s, permit)
	if err != nil {
		return nil, err
	}
	client, err := s.sandbox.Agent(ctx)
	if err != nil {
		done()
		return nil, err
	}
	st := &Stream{m: m, s: s, ctx: ctx, permit: permit, done: done, before: s.sandbox.OOMKills(ctx), refusals: s.sandbox.Refusals(), begun: time.Now(), id: start.ExecID}
	s.sandbox.SetDeadline(start.ExecID, start.Timeout)
	st.inner, err = client.Stream(ctx, start)
	for errors.Is(err, agent.ErrSaving) && ctx.Err() == nil {
		if client, err = s.sandbox.Agent(ctx); err == nil {
			st.inner, err = client.StreamAgain(ctx, start)
		}
	}
	if err != nil {
		if !unsure(err) {
			s.sandbox.MeetDeadline(start.ExecID)
		}
		if ctx.Err() != nil {
			m.callerLeft(s, permit, start.ExecID)
		}
		done()
		return nil, s.hint(s.sandbox.Explain(err))
	}
	return st, nil
}

// hint adds to the error about a missing program what the image is.
func (t *Table) hint(err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeCommandNotFound && e.Hint == "" {
		e.Hint = t.sandbox.Defaults("").MissingHint
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
	for errors.Is(err, agent.ErrSaving) && t.reattach() {
		ev, err = t.inner.Recv()
	}
	if err != nil {
		if !errors.Is(err, io.EOF) && !t.s.sandbox.DiedWithin(err) {
			return ev, err
		}
		t.ended.Store(true)
		res := t.s.lostResult(t.id, t.begun)
		return t.exit(agent.Event{Exit: &res})
	}
	if ev.Exit != nil {
		t.ended.Store(true)
		t.s.sandbox.MeetDeadline(t.id)
		ctx, cancel := context.WithTimeout(t.m.o.Context, callTimeout)
		defer cancel()
		t.m.judge(ctx, t.s, ev.Exit, t.before, t.sentKill.Load())
		t.m.syncAfter(t.m.o.Context, t.s)
		ev.Exit.Adjusted, ev.Exit.Refusals = t.permit.Adjusted(), t.refusals()
		return t.exit(ev)
	}
	return ev, nil
}

// reattach continues the stream after the memory of the sandbox was saved. It reports false if that is not possible.
func (t *Stream) reattach() bool {
	for {
		client, err := t.s.sandbox.Agent(t.ctx)
		if err == nil {
			err = t.inner.Reattach(t.ctx, client)
		}
		if !errors.Is(err, agent.ErrSaving) {
			return err == nil
		}
	}
}

// exit calls the hooks before the caller sees the exit.
func (t *Stream) exit(ev agent.Event) (agent.Event, error) {
	var err error
	if t.Exited != nil {
		err = t.Exited(*ev.Exit)
	}
	t.closed()
	return ev, err
}

func (t *Stream) closed() {
	t.closing.Do(func() {
		if t.Closed != nil {
			t.Closed()
		}
	})
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
// CancelWithCaller. It returns after Closed has, and may be called twice.
func (t *Stream) Close() error {
	t.leaving.Do(func() {
		if !t.ended.Load() {
			t.m.callerLeft(t.s, t.permit, t.id)
		}
		t.done()
	})
	err := t.inner.Close()
	t.closed()
	return err
}
