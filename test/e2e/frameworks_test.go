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

// frameworksVar names a directory that holds one for each of the frameworks below, with
// its packages of PyPI as "pip3 install --target DIR" makes it. They are for
// /usr/bin/python3; the directory of Harbor, which needs a newer one, has a link to it, "python".
const frameworksVar = "CLOCHE_TEST_FRAMEWORKS"

// TestFrameworks runs the tests of the adapters in sdk/python against the frameworks
// themselves: their own conformance suites, and their own runners with models that are
// a list of answers.
func TestFrameworks(t *testing.T) {
	for _, framework := range []struct {
		name    string
		needs   []string // the packages without which it is not there
		options []string // of pytest
	}{
		{"inspect", []string{"inspect_ai", "openai", "pytest", "setuptools"}, nil},
		{"langchain", []string{"deepagents", "langchain_tests", "setuptools"}, []string{"--asyncio-mode=auto"}},
	} {
		t.Run(framework.name, func(t *testing.T) {
			dir := filepath.Join(os.Getenv(frameworksVar), framework.name)
			for _, need := range framework.needs {
				if _, err := os.Stat(filepath.Join(dir, need)); os.Getenv(frameworksVar) == "" || err != nil {
					t.Skipf("needs the packages %q: set %s to a directory into whose directory %s pip installed them", framework.needs, frameworksVar, framework.name)
				}
			}
			h := frameworkFixture(t)
			// Imports alone take a loaded machine most of a minute.
			ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 12*time.Minute))
			defer cancel()
			venv := newVenv(ctx, t, dir)
			args := append([]string{"-m", "pytest", "-q", "-p", "no:cacheprovider"}, framework.options...)
			cmd := venv.python(ctx, t, append(args, filepath.Join("frameworks", "test_"+framework.name+".py"))...)
			runFramework(t, h, cmd, venv.sources)
		})
	}
}

// TestHarbor is TestFrameworks for Harbor, whose interpreter is another one.
func TestHarbor(t *testing.T) {
	dir := filepath.Join(os.Getenv(frameworksVar), "harbor")
	python := filepath.Join(dir, "python")
	for _, need := range []string{python, filepath.Join(dir, "harbor"), filepath.Join(dir, "pytest")} {
		if _, err := os.Stat(need); os.Getenv(frameworksVar) == "" || err != nil {
			t.Skipf("needs Harbor and pytest: set %s to a directory into whose directory harbor pip installed them, with a link there to its python", frameworksVar)
		}
	}
	h := frameworkFixture(t)
	src, err := filepath.Abs(filepath.Join("sdk", "python"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 12*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", filepath.Join(src, "frameworks", "test_harbor.py"))
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "PYTHONPATH="+src+":"+dir, "PYTHONDONTWRITEBYTECODE=1", "HOME="+t.TempDir())
	runFramework(t, h, cmd, t.TempDir())
}

// frameworkFixture is a daemon for which a spec that says nothing works without a registry.
func frameworkFixture(t *testing.T) *fixture.Fixture {
	t.Helper()
	h := fixture.New(t)
	h.Kill9()
	policy := "image_aliases: {\"python:3.11-slim\": \"host\"}\n"
	if err := os.WriteFile(filepath.Join(h.Dir, "policy.yaml"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Start()
	return h
}

// runFramework runs a framework's tests, after which the daemon must have nothing left.
func runFramework(t *testing.T, h *fixture.Fixture, cmd *exec.Cmd, dir string) {
	t.Helper()
	cmd.Dir = dir
	cmd.Env = append(cmd.Env,
		"CLOCHE_HOST=unix://"+h.Socket(),
		// No framework may connect to another host.
		"HTTP_PROXY=http://127.0.0.1:9", "HTTPS_PROXY=http://127.0.0.1:9", "ALL_PROXY=http://127.0.0.1:9",
		"INSPECT_DISPLAY=none", "LANGSMITH_TRACING=false", "HF_HUB_OFFLINE=1",
	)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
	t.Logf("%s", out)
	if left := h.Names(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
