//go:build linux

package vmtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Test runs a machine for a test, which fails when it cannot be run.
func Test(t *testing.T, m Machine) (console string, status int) {
	t.Helper()
	return TestIn(t.Context(), t, m)
}

// TestIn is Test of a machine that ends with ctx.
func TestIn(ctx context.Context, t *testing.T, m Machine) (console string, status int) {
	t.Helper()
	dir := t.TempDir()
	m.Kernel, m.Init = os.Getenv(EnvKernel), filepath.Join(dir, "guest")
	build := exec.CommandContext(ctx, "go", "build", "-o", m.Init, "github.com/cloche-dev/cloche/internal/vmtest/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the machine's first process: %v\n%s", err, out)
	}
	console, status, err := m.Run(ctx, dir)
	if err != nil {
		t.Fatalf("%v\n%s", err, console)
	}
	return console, status
}
