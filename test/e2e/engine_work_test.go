//go:build linux

package e2e_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
)

// onEngines runs a test for every engine that can run here, those of containers with a daemon
// of the test's own. With these settings a daemon of Cloche's finds the engine; one that is
// started by the test's environment finds it without.
func onEngines(t *testing.T, f func(t *testing.T, engine, settings string)) {
	nsjailHere(t)
	for _, e := range attackedEngines() {
		e.run(t, func(t *testing.T) { f(t, e.name, "nsjail: {path: '"+nsjailProgram()+"'}\n") })
	}
	daemons := map[string]func() (*dockertest.Daemon, error){"docker": dockertest.Docker, "podman": dockertest.Podman}
	for _, name := range slices.Sorted(maps.Keys(daemons)) {
		t.Run(name, func(t *testing.T) {
			d := containerDaemon(t, daemons[name])
			t.Setenv("CLOCHE__"+strings.ToUpper(name)+"__HOST", d.Host)
			f(t, name, name+": {host: '"+d.Host+"'}\n")
		})
	}
}

// onEnginesAnyUser is onEngines, which as another user than root has also those that need no
// limits.
func onEnginesAnyUser(t *testing.T, f func(t *testing.T, engine string)) {
	if os.Geteuid() == 0 {
		onEngines(t, func(t *testing.T, engine, _ string) { f(t, engine) })
		return
	}
	nsjailHere(t)
	for _, e := range attackedEngines() {
		t.Run(e.name, func(t *testing.T) { f(t, e.name) })
	}
}

// containerDaemon is a daemon that ends with the test, which is skipped without one.
func containerDaemon(t *testing.T, start func() (*dockertest.Daemon, error)) *dockertest.Daemon {
	t.Helper()
	d, err := start()
	if errors.Is(err, dockertest.ErrAbsent) {
		t.Skipf("needs a daemon of containers: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("remove the daemon of containers: %v", err)
		}
	})
	return d
}

// The environment of scripts on an engine.
const (
	// envEngine names the engine that "auto" means; empty is as everywhere.
	envEngine = "CLOCHE_TEST_ENGINE"
	// envSettings are the settings of the daemon by which it finds the engine.
	envSettings = "CLOCHE_TEST_ENGINE_SETTINGS"
)

// meanEngine has a daemon's home say which engine "auto" means.
func meanEngine(home string) error {
	engine := os.Getenv(envEngine)
	if engine == "" {
		return nil
	}
	rules := "version: 1\nmin_tier: namespace\nengine: " + engine + "\n"
	return errors.Join(
		os.WriteFile(filepath.Join(home, "policy.yaml"), []byte(rules), 0o600),
		os.WriteFile(filepath.Join(home, "settings.yaml"), []byte(os.Getenv(envSettings)), 0o600),
	)
}

// ofEveryEngine are the scripts that hold on every engine, word for word: real work, and
// services of the host's.
var ofEveryEngine = regexp.MustCompile(`^(real_.*|endpoint_(model|own))$`)

// TestScriptsOnEngines runs scripts that know no engine on those that are not the default.
func TestScriptsOnEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it starts sandboxes on every engine")
	}
	onEngines(t, func(t *testing.T, engine, settings string) {
		if engine == "gvisor" {
			t.Skip("not again: TestScripts runs them on the default engine")
		}
		t.Setenv(envEngine, engine)
		t.Setenv(envSettings, settings)
		runScripts(t, scriptTime, ofEveryEngine.MatchString)
	})
}
