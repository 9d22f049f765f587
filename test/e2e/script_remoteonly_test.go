//go:build linux

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

// TestRemoteOnly drives a daemon as it is on systems that are not Linux, built for this one:
// its sandboxes run on another machine, in containers, and nothing of this one's files and
// network is theirs. What that build has in common with the others' is all but sockets and
// calls of files.
func TestRemoteOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it builds another binary and starts a Docker daemon")
	}
	if ok, err := condition("dockerd"); err != nil || !ok {
		t.Skip("needs dockerd (package docker.io) and root, to start a Docker daemon of its own")
	}
	fixture.Binary(t) // and so the agent is there
	dir, err := os.MkdirTemp("", "cloche-remoteonly-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bin := filepath.Join(dir, "cloche")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "remoteonly", "-o", bin, "./cmd/cloche")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if given := os.Getenv("CLOCHE_ELSEWHERE_BIN"); given != "" {
		cmd = exec.CommandContext(t.Context(), "cp", given, bin)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	runFiles(t, bin, []string{"test/e2e/testdata/remoteonly/docker.txtar"}, scriptTime)
}
