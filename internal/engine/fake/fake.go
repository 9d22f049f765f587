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

	"github.com/cloche-dev/cloche"
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

// Step is a step of Create.
type Step string

// The steps of Create, in their order.
const (
	StepRecord Step = "record"
	StepStart  Step = "start"
	StepReady  Step = "ready"
)

// Faults are what goes wrong. The zero value is nothing.
type Faults struct {
	// Create fails at a step with an error.
	Create map[Step]error
	// Block makes Create wait at a step until its caller gives up.
	Block Step
	// DieAfter kills each new instance that long after it became ready.
	DieAfter time.Duration
	// Dial fails with this error.
	Dial error
	// Close fails with this error and kills nothing.
	Close error
	// Problems make the engine unusable.
	Problems []cloche.Problem
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
}

// NewMachine makes a machine that runs program as the agent, or this executable
// again (see Dispatch) when it is empty.
func NewMachine(program string) *Machine {
	return &Machine{program: program, instances: map[string]*instance{}}
}

// SetFaults replaces the faults, for what happens from now on.
func (m *Machine) SetFaults(f Faults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = f
}

// Plans are the plans of all successful creates so far, in their order.
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

// Close kills every instance and waits for it.
func (m *Machine) Close(ctx context.Context) error {
	m.mu.Lock()
	m.faults = Faults{}
	all := make([]*instance, 0, len(m.instances))
	for _, i := range m.instances {
		all = append(all, i)
	}
	m.mu.Unlock()
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
func (m *Machine) Engine() engine.Engine { return &fakeEngine{m} }

type fakeEngine struct{ m *Machine }

// Name implements engine.Engine.
func (e *fakeEngine) Name() string { return Name }

// Probe implements engine.Engine.
func (e *fakeEngine) Probe(context.Context) engine.Report {
	f := e.m.current()
	r := engine.Report{
		Name: Name, Tier: cloche.TierNone, Usable: len(f.Problems) == 0, Problems: f.Problems,
		Enforces: map[string]cloche.Enforcement{},
	}
	for _, limit := range []string{"cpus", "memory_bytes", "pids", "disk_bytes"} {
		why, not := f.Unenforced[limit]
		r.Enforces[limit] = cloche.Enforcement{OK: !not, Reason: why}
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
		return nil, cloche.Errorf(cloche.CodeInternal, "recover sandbox: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.instances[s.key()]
	if !ok {
		return nil, cloche.Errorf(cloche.CodeNotFound, "recover sandbox %s: it is dead", s.ID)
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
		return nil, cloche.Errorf(cloche.CodeNotFound, "recover sandbox %s: it is dead", i.ID)
	default:
		return i, nil
	}
}

// Sweep implements engine.Engine.
func (e *fakeEngine) Sweep(ctx context.Context, owner string, keep []string) error {
	e.m.mu.Lock()
	var gone []*instance
	for key, i := range e.m.instances {
		if strings.HasPrefix(key, owner+"/") && !slices.Contains(keep, i.ID) {
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
