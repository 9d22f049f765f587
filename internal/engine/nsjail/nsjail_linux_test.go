//go:build linux

package nsjail_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/nsjail"
	"github.com/cloche-dev/cloche/test/longtest"
)

func TestMain(m *testing.M) {
	play()
	enginetest.Parent(func(stateDir string) (engine.Engine, error) {
		return nsjail.New(nsjail.Options{Program: program(), StateDir: stateDir, RootsDir: stateDir + "-roots", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	})
	os.Exit(m.Run())
}

// program is the binary to test with; empty is the one in PATH.
func program() string { return os.Getenv("CLOCHE_TEST_NSJAIL") }

// newEngine makes an engine whose log goes to the test's.
func newEngine(t testing.TB, stateDir string) *nsjail.Engine {
	t.Helper()
	e, err := nsjail.New(nsjail.Options{Program: program(), StateDir: stateDir, RootsDir: stateDir + "-roots", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
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
		t.Skipf("needs nsjail and the namespaces of this kernel: %v", r.Problems)
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
