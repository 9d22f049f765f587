//go:build linux

package oci_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/oci"
	"github.com/cloche-dev/cloche/test/longtest"
)

// runtimeEnv names the runtime to a process of the suite.
const runtimeEnv = "OCI_TEST_RUNTIME"

func TestMain(m *testing.M) {
	oci.Dispatch()
	enginetest.Parent(func(stateDir string) (engine.Engine, error) {
		o := options(os.Getenv(runtimeEnv), stateDir)
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		return oci.New(o)
	})
	os.Exit(m.Run())
}

func options(runtime, stateDir string) oci.Options {
	return oci.Options{StateDir: stateDir, RootsDir: stateDir + "-roots", IDsDir: filepath.Join(stateDir, "ids"), Runtime: runtime}
}

// newEngine makes an engine whose log goes to the test's.
func newEngine(t testing.TB, runtime, stateDir string) *oci.Engine {
	t.Helper()
	o := options(runtime, stateDir)
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	e, err := oci.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// usable skips a test where a runtime cannot run, and says why.
func usable(t testing.TB, runtime string) {
	t.Helper()
	longtest.Skip(t, "it starts sandboxes")
	r := newEngine(t, runtime, t.TempDir()).Probe(t.Context())
	t.Logf("%+v", r)
	if !r.Usable {
		t.Skipf("needs the runtime %s and root: %v", runtime, r.Problems)
	}
}

func TestRunc(t *testing.T) { conform(t, oci.Runc) }

// TestCrun proves what depends on the runtime. The whole suite passes with it, too.
func TestCrun(t *testing.T) {
	conform(t, oci.Crun, "Probe", "Life", "CreateErrors", "NothingLeaks", "DieWithParent", "SweepAfterSuddenDeath", "PausedInLaterProcess",
		"Inside", "KernelFiles", "Tables", "Link", "UID", "Mounts", "MountSockets", "ReadOnlyRoot", "MemoryLimit", "PidsLimitForAgent")
}

// TestNamedRuntime proves the contract with the runtime that the environment names, and
// does not skip it: see bench/microvm.sh.
func TestNamedRuntime(t *testing.T) {
	runtime := os.Getenv("CLOCHE_TEST_OCI")
	if runtime == "" {
		t.Skip("needs a runtime in CLOCHE_TEST_OCI")
	}
	if r := newEngine(t, runtime, t.TempDir()).Probe(t.Context()); !r.Usable {
		t.Fatalf("%s is not usable: %+v, %v", runtime, r.Problems, r.Facts)
	}
	conform(t, runtime)
}

func conform(t *testing.T, runtime string, only ...string) {
	usable(t, runtime)
	t.Setenv(runtimeEnv, runtime)
	shared := ""
	if !oci.HasOwnTables(runtime) {
		shared = "without CAP_SYS_RESOURCE the runtime needs one that root has made"
	}
	enginetest.Run(t, enginetest.Setup{
		New:      func(t testing.TB, dir string) engine.Engine { return newEngine(t, runtime, dir) },
		Images:   enginetest.BuildImages(t, t.TempDir()),
		Kill:     enginetest.KillInit,
		PID:      enginetest.InitPID,
		Isolates: true,
		Survives: true,
		Only:     only,

		SharedTables: shared,
	})
}
