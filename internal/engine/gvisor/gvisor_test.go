//go:build linux

package gvisor_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/role"
	"github.com/cloche-dev/cloche/test/longtest"
)

var logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))

func TestMain(m *testing.M) {
	role.Dispatch()
	enginetest.Parent(func(stateDir string) (engine.Engine, error) {
		e, err := gvisor.New(gvisor.Options{StateDir: stateDir, Logger: logger})
		if err == nil && !dress(e) {
			err = errors.New("no such cgroups here")
		}
		return e, err
	})
	os.Exit(m.Run())
}

// newEngine makes an engine whose log goes to the test's.
func newEngine(t testing.TB, stateDir string) *gvisor.Engine {
	t.Helper()
	e, err := gvisor.New(gvisor.Options{
		StateDir: stateDir,
		Logger:   slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// usable skips a test where gVisor cannot run, and says why.
func usable(t testing.TB) {
	t.Helper()
	longtest.Skip(t, "it starts sandboxes")
	r := newEngine(t, t.TempDir()).Probe(t.Context())
	t.Logf("%+v", r)
	if !r.Usable {
		t.Skipf("needs gVisor to work here: %v", r.Problems)
	}
}

func TestEngine(t *testing.T) {
	usable(t)
	enginetest.Run(t, enginetest.Setup{
		New:       func(t testing.TB, dir string) engine.Engine { return newEngine(t, dir) },
		Images:    enginetest.BuildImages(t, t.TempDir()),
		Kill:      kill,
		Isolates:  true,
		OwnKernel: true,
		Survives:  true,
	})
}

// kill kills the sentry, whose number is in the state.
func kill(t testing.TB, state []byte) {
	t.Helper()
	var s struct{ Sentry struct{ PID int } }
	if err := json.Unmarshal(state, &s); err != nil || s.Sentry.PID <= 1 {
		t.Fatalf("no process in the state %s: %v", state, err)
	}
	if err := syscall.Kill(s.Sentry.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestProbeNamesWhatIsWrong: an executable that cannot play the roles makes the
// engine unusable, with a fix, and create fails without leaving anything.
func TestProbeNamesWhatIsWrong(t *testing.T) {
	e, err := gvisor.New(gvisor.Options{StateDir: t.TempDir(), ExePath: "/bin/sh"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := e.Probe(t.Context())
	if r.Usable || len(r.Problems) == 0 {
		t.Fatalf("usable with a shell as executable: %+v", r)
	}
	found := false
	for _, p := range r.Problems {
		found = found || strings.Contains(p.What, "dynamically linked") && p.Mend != ""
	}
	if !found {
		t.Errorf("the problems do not name the linkage: %+v", r.Problems)
	}
	if again := e.Probe(t.Context()); len(again.Problems) != len(r.Problems) {
		t.Error("the second answer is another")
	}
}
