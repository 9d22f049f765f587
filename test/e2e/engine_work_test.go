//go:build linux

package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

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
	rules := "version: 1\nengine: " + engine + "\n"
	if engine != "e2b" { // whose tier satisfies no minimum
		rules += "min_tier: namespace\n"
	}
	return errors.Join(
		os.WriteFile(filepath.Join(home, "policy.yaml"), []byte(rules), 0o600),
		os.WriteFile(filepath.Join(home, "settings.yaml"), []byte(os.Getenv(envSettings)), 0o600),
	)
}

// ofEveryEngine are the scripts that hold on every engine, word for word: real work, and
// services of the host's.
var ofEveryEngine = regexp.MustCompile(`^(real_.*|endpoint_(model|own)|start_again)$`)

// TestScriptsOnEngines runs scripts that know no engine on those that are not the default.
func TestScriptsOnEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it starts sandboxes on every engine")
	}
	fixture.OnEngines(t, func(t *testing.T, engine, settings string) {
		if engine == "gvisor" {
			t.Skip("not again: TestScripts runs them on the default engine")
		}
		t.Setenv(envEngine, engine)
		t.Setenv(envSettings, settings)
		runScripts(t, scriptTime, ofEveryEngine.MatchString)
	})
}
