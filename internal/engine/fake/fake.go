//go:build linux

// Package fake is an engine that isolates nothing and fails on request. It runs
// the agent as a plain process of this machine, for tests of what stands above
// an engine.
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Name is the name of the engine.
const Name = "fake"

// Dispatch plays the agent when this process was started as one by a Machine
// without a Program, and does not return then. A TestMain calls it first.
func Dispatch() {
	if os.Args[0] == agent.Argv0 {
		os.Exit(guest.Main())
	}
}

// Step is a step of what is done with an instance.
type Step string

// The steps of Create and of Close, each in their order, and those of Pause,
// Resume, WriteRoot and Suspend. Close leaves all as it was when it fails at StepKill; when it fails at
// StepRemove the instance is dead and still known.
const (
	StepRecord Step = "record"
	StepStart  Step = "start"
	StepReady  Step = "ready"
	StepKill   Step = "kill"
	StepRemove Step = "remove"
	StepPause  Step = "pause"
	StepResume Step = "resume"
	// StepRoot is the step of WriteRoot, while the instance is paused.
	StepRoot Step = "root"
	// StepSuspend is the step of Suspend, while the instance is paused.
	StepSuspend Step = "suspend"
	// StepComplete is the step of the Completion of a Suspend.
	StepComplete Step = "complete"
)

// CreateSteps are the steps of Create in their order.
func CreateSteps() []Step { return []Step{StepRecord, StepStart, StepReady} }

// CloseSteps are the steps of Close in their order.
func CloseSteps() []Step { return []Step{StepKill, StepRemove} }

// Faults are what goes wrong. The zero value is nothing.
type Faults struct {
	// Create fails at a step with an error.
	Create map[Step]error
	// Root is the tar that WriteRoot writes; nil is a layer in which nothing is.
	Root []byte
	// Fail is the same for Close, Pause, Resume and WriteRoot.
	Fail map[Step]error
	// Block makes what reaches this step wait there until its caller gives up.
	Block Step
	// Die kills an instance when it reaches this step.
	Die Step
	// At is called with every step that is reached, before the other faults. It
	// may block and may call the Machine: a test ends its daemon here.
	At func(Step)
	// DieAfter kills each new instance that long after it became ready.
	DieAfter time.Duration
	// Dial fails with this error.
	Dial error
	// Close fails with this error and kills nothing.
	Close error
	// Problems make the engine unusable.
	Problems []api.Problem
	// Unenforced are limits that the report says it cannot enforce, with why.
	Unenforced map[string]string
}

// Machine is the imaginary machine that instances live on. They live as long as
// it does, whatever becomes of the engines: the engine of a restarted daemon is
// a second engine on one machine. It is safe for concurrent use.
type Machine struct {
	program string

	mu        sync.Mutex
	faults    Faults
	instances map[string]*instance // by owner and id
	created   []engine.Plan
	memories  map[string]memory // by what is in their files
	terms     *engine.Terms
}

// NewMachine makes a machine that runs program as the agent, or this executable
// again (see Dispatch) when it is empty.
func NewMachine(program string) *Machine {
	return &Machine{program: program, instances: map[string]*instance{}, memories: map[string]memory{}}
}

// SetFaults replaces the faults, for what happens from now on.
func (m *Machine) SetFaults(f Faults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = f
}

// SetTerms makes the engines that Engine returns from now on an engine.Host with these terms. The
// agent is never confined, because it is a process of this machine.
func (m *Machine) SetTerms(t engine.Terms) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terms = &t
}

// maxPlans is how many plans a Machine remembers.
const maxPlans = 64

// Plans are the plans of the last successful creates, in their order.
func (m *Machine) Plans() []engine.Plan {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.created)
}

// Kill kills an instance, known by its state, without its engine's knowledge.
func (m *Machine) Kill(state []byte) error {
	i, err := m.find(state)
	if err != nil {
		return err
	}
	i.kill()
	return nil
}

// Cut breaks every stream that is open to an instance, as a lost connection does;
// a new Dial succeeds.
func (m *Machine) Cut(state []byte) error {
	i, err := m.find(state)
	if err != nil {
		return err
	}
	i.cut()
	return nil
}

// Calls are how often an instance was paused and resumed.
type Calls struct{ Pauses, Resumes int }

// Calls counts what was asked of an instance and done, the calls that changed
// nothing too.
func (m *Machine) Calls(state []byte) (Calls, error) {
	i, err := m.find(state)
	if err != nil {
		return Calls{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.calls, nil
}

// Left are the ids of what exists of all owners, in no order: everything that
// was created, wholly or in part, and not closed.
func (m *Machine) Left() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for _, i := range m.instances {
		ids = append(ids, i.ID)
	}
	return ids
}

// Close kills every instance and waits for it.
func (m *Machine) Close(ctx context.Context) error {
	m.mu.Lock()
	m.faults = Faults{}
	all := make([]*instance, 0, len(m.instances))
	for _, i := range m.instances {
		all = append(all, i)
	}
	asleep := m.memories
	m.memories = map[string]memory{}
	m.mu.Unlock()
	for _, p := range asleep {
		if p.process == nil {
			continue
		}
		p.kill()
		<-p.ended
	}
	var errs []error
	for _, i := range all {
		errs = append(errs, i.Close(ctx))
	}
	return errors.Join(errs...)
}

func (m *Machine) current() Faults {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.faults
}

// Engine makes an engine on the machine.
func (m *Machine) Engine() engine.Engine {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.terms != nil {
		return &hostEngine{fakeEngine{m}, *m.terms}
	}
	return &fakeEngine{m}
}

type fakeEngine struct{ m *Machine }

type hostEngine struct {
	fakeEngine
	terms engine.Terms
}

// Terms implements engine.Host.
func (e *hostEngine) Terms() engine.Terms { return e.terms }

// Name implements engine.Engine.
func (e *fakeEngine) Name() string { return Name }

// SharesRoot implements engine.RootSharer.
func (e *fakeEngine) SharesRoot() {}

// Probe implements engine.Engine.
func (e *fakeEngine) Probe(context.Context) engine.Report {
	f := e.m.current()
	r := engine.Report{
		SharesHostFS: true, Suspends: true,
		Name: Name, Tier: api.TierNone, Usable: len(f.Problems) == 0, Problems: f.Problems,
		Enforces: map[string]api.Enforcement{},
	}
	for _, limit := range []string{"cpus", "memory_bytes", "pids", "disk_bytes", "egress"} {
		why, not := f.Unenforced[limit]
		r.Enforces[limit] = api.Enforcement{OK: !not, Reason: why}
	}
	return r
}

// state is what an instance is found by.
type state struct {
	Owner string `json:"owner"`
	ID    string `json:"id"`
}

func (s state) key() string { return s.Owner + "/" + s.ID }

func (m *Machine) find(text []byte) (*instance, error) {
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, api.Errorf(api.CodeInternal, "recover sandbox: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.instances[s.key()]
	if !ok {
		return nil, api.Errorf(api.CodeNotFound, "recover sandbox %s: it is dead", s.ID)
	}
	return i, nil
}

// Recover implements engine.Engine.
func (e *fakeEngine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	i, err := e.m.find(state)
	if err != nil {
		return nil, err
	}
	select {
	case <-i.done:
		if err := i.Close(ctx); err != nil {
			return nil, err
		}
		return nil, api.Errorf(api.CodeNotFound, "recover sandbox %s: it is dead", i.ID)
	default:
		return i, nil
	}
}

// Sweep implements engine.Engine.
func (e *fakeEngine) Sweep(ctx context.Context, owner string, keep func(id string) bool) error {
	e.m.mu.Lock()
	var gone []*instance
	for key, i := range e.m.instances {
		if strings.HasPrefix(key, owner+"/") && !engine.Keeps(keep, i.ID) {
			gone = append(gone, i)
		}
	}
	e.m.mu.Unlock()
	var errs []error
	for _, i := range gone {
		errs = append(errs, i.Close(ctx))
	}
	return errors.Join(errs...)
}
