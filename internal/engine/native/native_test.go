//go:build linux

package native_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/native"
	"github.com/cloche-dev/cloche/test/longtest"
)

func TestMain(m *testing.M) {
	enginetest.Parent(func(stateDir string) (engine.Engine, error) {
		return native.New(native.Options{StateDir: stateDir, RootsDir: stateDir + "-roots", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	})
	if orders := os.Getenv(daemonEnv); orders != "" {
		if err := daemon(orders); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// newEngine makes an engine whose log goes to the test's.
func newEngine(t testing.TB, stateDir string) *native.Engine {
	t.Helper()
	e, err := native.New(native.Options{StateDir: stateDir, RootsDir: stateDir + "-roots", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// usable skips a test where the engine cannot run, and says why.
func usable(t testing.TB) {
	t.Helper()
	longtest.Skip(t, "it starts sandboxes")
	r := newEngine(t, t.TempDir()).Probe(t.Context())
	t.Logf("%+v", r)
	if !r.Usable {
		t.Skipf("needs the namespaces of this kernel: %v", r.Problems)
	}
}

func TestEngine(t *testing.T) {
	usable(t)
	enginetest.Run(t, enginetest.Setup{
		New:      func(t testing.TB, dir string) engine.Engine { return newEngine(t, dir) },
		Images:   enginetest.BuildImages(t, t.TempDir()),
		Kill:     enginetest.KillInit,
		PID:      enginetest.InitPID,
		Isolates: true,
		Survives: true,
	})
}
