package process

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// StartProcess starts a managed process and returns when it has been executed. On error nothing is
// left of it, with one exception: an agent that is no longer reachable may have started it, and
// then the list shows it. A start that repeats an ID with the same spec returns the existing
// process. A start that has begun is finished even if the caller disconnects.
func (m *Runner) StartProcess(ctx context.Context, caller policy.Caller, ref string, permit policy.ProcessPermit) (api.Process, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbStart, ref)
	if err != nil {
		return api.Process{}, err
	}
	if !permit.Valid() {
		return api.Process{}, api.Errorf(api.CodeDenied, "no policy has granted this process")
	}
	defer s.sandbox.Use()()
	if _, err := s.sandbox.Agent(ctx); err != nil {
		return api.Process{}, err
	}
	if err := s.sandbox.WaitEndpoints(ctx, permit.Request().WaitEndpoints); err != nil {
		return api.Process{}, err
	}
	if err := s.sandbox.SyncFiles(ctx, false); err != nil {
		return api.Process{}, err
	}
	given, err := s.sandbox.SecretEnv(ctx)
	if err != nil {
		return api.Process{}, err
	}
	spec := permit.Spec()
	id := cmp.Or(spec.ExecID, api.NewID("p-"))
	p, free, err := s.claim(ctx, id)
	if err != nil {
		return api.Process{}, err
	}
	defer free()
	release := func() {}
	if p == nil {
		if err := m.makeRoom(ctx, s); err != nil {
			return api.Process{}, s.sandbox.Explain(err)
		}
		if p, release, err = m.prepare(s, permit, id); err != nil {
			return api.Process{}, err
		}
	}
	defer release()
	fresh := !p.shown()
	start := processStart(s, permit, given, id)
	s.sandbox.SetDeadline(id, start.Timeout)
	said, err := m.askStart(ctx, s, agent.Process{Start: start, Spec: spec})
	switch {
	case err == nil:
	case fresh && unsure(err):
		// It may run. The watcher of the agent finds out.
		m.collect(s, p)
		return api.Process{}, s.sandbox.Explain(err)
	default:
		if fresh {
			s.sandbox.MeetDeadline(id)
			release()
			p.halt()
			m.discard(s, p)
		}
		return api.Process{}, s.hint(s.sandbox.Explain(err))
	}
	m.confirm(s, p, said)
	m.collect(s, p)
	if said.State.Ended() {
		m.heard(s, said)
	}
	if fresh {
		s.tellFollowers(source{id: id, managed: p})
	}
	rec, _ := p.snapshot()
	return rec, nil
}

// processStart is what the agent is told of the program of a process.
func processStart(s *Table, permit policy.ProcessPermit, given map[string]string, id string) agent.Start {
	start := s.start(permit.ExecPermit, given)
	start.ExecID = id
	return start
}

// prepare makes the directory of a process, with its record and its log, so that
// a daemon that dies in the middle knows what it has to look for.
func (m *Runner) prepare(s *Table, permit policy.ProcessPermit, id string) (_ *process, release func(), err error) {
	spec := permit.Spec()
	p := newProcess(filepath.Join(s.dir, Records, id), processRecord{Process: m.o.Redacted(api.Process{
		ExecID: id, Name: spec.Name, Argv: permit.Argv(), State: api.ProcessStarting, Managed: true, Running: true,
		TTY: permit.Request().TTY, StartedAt: now(),
	})})
	if err := m.add(s, p); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			m.discard(s, p)
			err = api.Errorf(api.CodeInternal, "the log of process %s could not be made", id).WithCause(err)
		}
	}()
	// One by one: the directory of a sandbox that is being removed must not come
	// back.
	for _, dir := range []string{filepath.Dir(p.dir), p.dir, filepath.Join(p.dir, processLogDir)} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, nil, err
		}
	}
	if err := errors.Join(m.declare(p, permit), p.saveStart()); err != nil {
		return nil, nil, err
	}
	_, release, err = p.openLog()
	p.kills = s.sandbox.OOMSeen()
	return p, release, err
}

// discard takes away a process that was not started.
func (m *Runner) discard(s *Table, p *process) {
	s.drop(p)
	if err := p.erase(); err != nil {
		m.o.Logger.Error("discard process", "sandbox", s.names.ID, "process", p.id, "error", err)
	}
}

// askStart asks the agent for a process, and once more when the connection broke
// before the answer: the id makes that harmless.
func (m *Runner) askStart(ctx context.Context, s *Table, start agent.Process) (api.Process, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	for again := true; ; again = false {
		client, err := s.sandbox.Agent(ctx)
		if err != nil {
			return api.Process{}, err
		}
		said, err := client.StartProcess(ctx, start)
		if again && api.CodeOf(err) == api.CodeUnavailable && !s.sandbox.Over() {
			continue
		}
		return said, err
	}
}

// unsure reports whether err leaves open what became of a call.
func unsure(err error) bool {
	switch api.CodeOf(err) {
	case api.CodeUnavailable, api.CodeTimeout, api.CodeCanceled, api.CodeSandboxLost, api.CodeInternal:
		return true
	}
	return false
}
