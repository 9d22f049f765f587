//go:build linux

package fake_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/fake"
)

func TestMain(m *testing.M) {
	fake.Dispatch()
	enginetest.Parent(func(string) (engine.Engine, error) {
		return fake.NewMachine(os.Getenv("FAKE_PROGRAM")).Engine(), nil
	})
	os.Exit(m.Run())
}

func TestEngine(t *testing.T) {
	im := enginetest.BuildImages(t, t.TempDir())
	t.Setenv("FAKE_PROGRAM", im.Program)
	m := fake.NewMachine(im.Program)
	t.Cleanup(func() { m.Close(context.WithoutCancel(t.Context())) })
	enginetest.Run(t, enginetest.Setup{
		New:    func(testing.TB, string) engine.Engine { return m.Engine() },
		Images: im,
		Kill: func(t testing.TB, state []byte) {
			if err := m.Kill(state); err != nil {
				t.Fatal(err)
			}
		},
	})
}

// plan runs the real agent, as this test's executable.
func plan(t *testing.T) (engine.Plan, []byte) {
	t.Helper()
	token := agent.NewToken()
	config, err := agent.Config{Token: token, Port: agent.Port}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return engine.Plan{
		ID: api.NewID("sb-"), Owner: "fake", Dir: t.TempDir(),
		Agent: engine.Agent{Argv: []string{"/agent"}, Config: config, Port: agent.Port},
	}, token
}

func TestRealAgent(t *testing.T) {
	m := fake.NewMachine("")
	defer m.Close(context.WithoutCancel(t.Context()))
	p, token := plan(t)
	i, err := m.Engine().Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := i.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := agent.Connect(t.Context(), conn, token)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	wanted := errors.New("wanted")
	for _, step := range []fake.Step{fake.StepRecord, fake.StepStart, fake.StepReady} {
		m := fake.NewMachine("")
		defer m.Close(context.WithoutCancel(t.Context()))
		e := m.Engine()
		p, _ := plan(t)
		m.SetFaults(fake.Faults{Create: map[fake.Step]error{step: wanted}})
		if _, err := e.Create(t.Context(), p); !errors.Is(err, wanted) {
			t.Errorf("create with a fault at %s: %v", step, err)
		}
		m.SetFaults(fake.Faults{Block: step})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := e.Create(ctx, p); api.CodeOf(err) != api.CodeTimeout {
			t.Errorf("create that blocks at %s: %v", step, err)
		}
		cancel()
		m.SetFaults(fake.Faults{Dial: wanted, Close: wanted})
		i, err := e.Create(t.Context(), p)
		if err != nil {
			t.Fatalf("create after faults: %v", err)
		}
		if _, err := i.Dial(t.Context()); !errors.Is(err, wanted) {
			t.Errorf("dial: %v", err)
		}
		if err := i.Close(t.Context()); !errors.Is(err, wanted) {
			t.Errorf("close: %v", err)
		}
		m.SetFaults(fake.Faults{DieAfter: time.Millisecond})
		q, _ := plan(t)
		dying, err := e.Create(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-dying.Done():
		case <-time.After(time.Minute):
			t.Error("the instance did not die")
		}
	}
}
