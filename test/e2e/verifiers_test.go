//go:build linux

package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
)

// verifiersVar names a directory that holds the verifiers package of PyPI with all that
// it needs, as "pip3 install --target DIR verifiers" makes it, for /usr/bin/python3.
const verifiersVar = "CLOCHE_TEST_VERIFIERS"

// TestVerifiers runs the tests of sdk/python: rollouts of the real package in
// sandboxes of a real daemon, and its runtime against one that fails.
func TestVerifiers(t *testing.T) {
	dir := os.Getenv(verifiersVar)
	if _, err := os.Stat(filepath.Join(dir, "verifiers", "__init__.py")); dir == "" || err != nil {
		t.Skipf("needs the verifiers package: set %s to a directory into which pip installed it", verifiersVar)
	}
	h := fixture.New(t)
	src, err := filepath.Abs(filepath.Join("sdk", "python"))
	if err != nil {
		t.Fatal(err)
	}
	tests := filepath.Join(src, "tests")
	// Imports alone take a loaded machine most of a minute.
	ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 15*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "-m", "unittest", "discover", "-v", "-s", tests, "-t", tests)
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(),
		"CLOCHE_HOST=unix://"+h.Socket(), "HOME="+cmd.Dir, "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH="+src+":"+tests+":"+dir, "HF_HUB_OFFLINE=1",
	)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the tests of sdk/python: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}
