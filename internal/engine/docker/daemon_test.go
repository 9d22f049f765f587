//go:build linux

package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/test/longtest"
)

// daemon is one of the test's own.
type daemon struct{ *dockertest.Daemon }

// start starts one, or skips the test where it cannot be started.
func start(t testing.TB, begin func() (*dockertest.Daemon, error)) daemon {
	t.Helper()
	longtest.Skip(t, "it starts a daemon of containers")
	d, err := begin()
	if errors.Is(err, dockertest.ErrAbsent) {
		t.Skipf("needs a daemon: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("remove the daemon: %v", err)
		}
	})
	return daemon{d}
}

// containerIn is the name in a state.
func containerIn(t testing.TB, state []byte) string {
	t.Helper()
	var s struct{ Container string }
	if err := json.Unmarshal(state, &s); err != nil || s.Container == "" {
		t.Fatalf("no container in the state %s: %v", state, err)
	}
	return s.Container
}

// kill kills the container, as its operator would.
func (d daemon) kill(t testing.TB, state []byte) {
	t.Helper()
	if _, err := d.Client.ContainerKill(t.Context(), containerIn(t, state), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
}

// pid is the number of the container's first process; -1 means no process.
func (d daemon) pid(state []byte) int {
	var s struct{ Container string }
	if json.Unmarshal(state, &s) != nil {
		return -1
	}
	answer, err := d.Client.ContainerInspect(context.Background(), s.Container, client.ContainerInspectOptions{})
	if err != nil || answer.Container.State == nil || answer.Container.State.Pid == 0 {
		return -1
	}
	return answer.Container.State.Pid
}

// left are the containers of a plan.
func (d daemon) left(t testing.TB, p engine.Plan) []string {
	t.Helper()
	all, err := d.Containers(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	var mine []string
	for _, name := range all {
		if strings.Contains(name, p.ID) {
			mine = append(mine, name)
		}
	}
	return mine
}

// buildInner builds the program of the inside.
func buildInner(t testing.TB) {
	t.Helper()
	if os.Getenv(innerEnv) != "" {
		return
	}
	path := filepath.Join(t.TempDir(), "agent")
	enginetest.BuildProgram(t, path, "cmd/cloche-agent")
	t.Setenv(innerEnv, path)
}
