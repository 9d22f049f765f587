//go:build linux

package docker_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

func TestMain(m *testing.M) {
	docker.Dispatch()
	enginetest.Parent(func(string) (engine.Engine, error) {
		return docker.New(docker.Options{
			Name: os.Getenv(nameEnv), Hosts: strings.Fields(os.Getenv(hostEnv)), Inner: innerProgram,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		})
	})
	os.Exit(m.Run())
}

// What the processes of the suite are told of the test's daemon.
const (
	nameEnv  = "DOCKER_TEST_NAME"
	hostEnv  = "DOCKER_TEST_HOST"
	innerEnv = "DOCKER_TEST_INNER"
)

func innerProgram() ([]byte, error) { return os.ReadFile(os.Getenv(innerEnv)) }

func TestDocker(t *testing.T) {
	conform(t, docker.Docker, start(t, dockertest.Docker))
}

// conform runs the suite.
func conform(t *testing.T, name string, d daemon) {
	t.Setenv(nameEnv, name)
	t.Setenv(hostEnv, d.Host)
	buildInner(t)
	setup := enginetest.Setup{
		New:      func(t testing.TB, _ string) engine.Engine { return newEngine(t, name, d.Host) },
		Images:   enginetest.BuildImages(t, t.TempDir()),
		Kill:     d.kill,
		PID:      d.pid,
		Left:     d.left,
		Isolates: true,
		Survives: true,
		Slow:     true,
		Daemon:   true,

		SharedTables: "a container's root is the host's, see SECURITY.md",
	}
	if only := os.Getenv("DOCKER_TEST_ONLY"); only != "" {
		setup.Only = strings.Split(only, ",")
	}
	enginetest.Run(t, setup)
}

func newEngine(t testing.TB, name string, hosts ...string) *docker.Engine {
	t.Helper()
	e, err := docker.New(docker.Options{
		Name: name, Hosts: hosts, Inner: innerProgram,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func TestPodman(t *testing.T) {
	conform(t, docker.Podman, start(t, dockertest.Podman))
}
