//go:build linux

package fake_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/fake"
)

func started(t *testing.T) (*fake.Machine, engine.Instance) {
	t.Helper()
	m := fake.NewMachine("")
	t.Cleanup(func() { m.Close(context.WithoutCancel(t.Context())) })
	p, _ := plan(t)
	i, err := m.Engine().Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return m, i
}

// TestStepsAreReached: every step is announced, in order.
func TestStepsAreReached(t *testing.T) {
	m := fake.NewMachine("")
	defer m.Close(context.WithoutCancel(t.Context()))
	var got []fake.Step
	m.SetFaults(fake.Faults{At: func(s fake.Step) { got = append(got, s) }})
	p, _ := plan(t)
	i, err := m.Engine().Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	pauser := i.(engine.Pauser)
	if err := errors.Join(pauser.Pause(t.Context()), pauser.Resume(t.Context()), i.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(fake.CreateSteps(), []fake.Step{fake.StepPause, fake.StepResume}, fake.CloseSteps())
	if !slices.Equal(got, want) {
		t.Errorf("steps were %v, want %v", got, want)
	}
}

func TestCreateFailsAtEveryStep(t *testing.T) {
	wanted := errors.New("wanted")
	for _, step := range fake.CreateSteps() {
		m := fake.NewMachine("")
		defer m.Close(context.WithoutCancel(t.Context()))
		faults := []fake.Faults{{Fail: map[fake.Step]error{step: wanted}}, {Block: step}}
		if step == fake.StepReady {
			faults = append(faults, fake.Faults{Die: step})
		}
		for _, f := range faults {
			m.SetFaults(f)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			p, _ := plan(t)
			if _, err := m.Engine().Create(ctx, p); err == nil {
				t.Errorf("create succeeded with %+v", f)
			}
			cancel()
			if left := m.Left(); len(left) != 0 {
				t.Errorf("%+v left %v", f, left)
			}
		}
	}
}

func TestCloseFailsAtEveryStep(t *testing.T) {
	wanted := errors.New("wanted")
	for _, step := range fake.CloseSteps() {
		m, i := started(t)
		m.SetFaults(fake.Faults{Fail: map[fake.Step]error{step: wanted}})
		if err := i.Close(t.Context()); !errors.Is(err, wanted) {
			t.Errorf("close with a fault at %s: %v", step, err)
		}
		m.SetFaults(fake.Faults{Block: step})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := i.Close(ctx); api.CodeOf(err) != api.CodeTimeout {
			t.Errorf("close that hangs at %s: %v", step, err)
		}
		cancel()
		if left := m.Left(); len(left) != 1 {
			t.Errorf("after a close that failed at %s there is %v", step, left)
		}
		m.SetFaults(fake.Faults{})
		if err := i.Close(t.Context()); err != nil || len(m.Left()) != 0 {
			t.Errorf("close after faults at %s: %v, left %v", step, err, m.Left())
		}
	}
}

func TestCut(t *testing.T) {
	m, i := started(t)
	conn, err := i.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := m.Cut(i.State()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a stream that was cut can be read")
	}
	again, err := i.Dial(t.Context())
	if err != nil {
		t.Fatalf("dial after a cut: %v", err)
	}
	again.Close()
}

func TestPauseFaults(t *testing.T) {
	m, i := started(t)
	p := i.(engine.Pauser)
	wanted := errors.New("wanted")
	m.SetFaults(fake.Faults{Fail: map[fake.Step]error{fake.StepPause: wanted, fake.StepResume: wanted}})
	if err := p.Pause(t.Context()); !errors.Is(err, wanted) {
		t.Errorf("pause: %v", err)
	}
	if err := p.Resume(t.Context()); !errors.Is(err, wanted) {
		t.Errorf("resume: %v", err)
	}
	if calls, err := m.Calls(i.State()); err != nil || calls != (fake.Calls{}) {
		t.Errorf("counted %+v, %v", calls, err)
	}
	m.SetFaults(fake.Faults{})
	if err := errors.Join(p.Pause(t.Context()), p.Pause(t.Context()), p.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	if calls, err := m.Calls(i.State()); err != nil || calls != (fake.Calls{Pauses: 2, Resumes: 1}) {
		t.Errorf("counted %+v, %v", calls, err)
	}
	m.SetFaults(fake.Faults{Die: fake.StepPause})
	err := p.Pause(t.Context())
	<-i.Done()
	if err != nil && api.CodeOf(err) != api.CodeSandboxLost {
		t.Errorf("pause of what dies of it: %v", err)
	}
}
