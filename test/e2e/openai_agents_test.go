//go:build linux

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
)

// openaiVar names directories, apart by colons, each of which holds the openai-agents package of
// PyPI with all that it needs, and pytest and setuptools, as "pip3 install --target DIR" makes it,
// for /usr/bin/python3.
const openaiVar = "CLOCHE_TEST_OPENAI_AGENTS"

// TestOpenAIAgents runs the tests of cloche.openai_agents with the SDK as it is: all of them
// over the unix socket, and those of sessions that come and go over TCP at once. Each version
// of the SDK that is there is tried.
func TestOpenAIAgents(t *testing.T) {
	for _, dir := range strings.Split(os.Getenv(openaiVar), ":") {
		t.Run(filepath.Base(dir), func(t *testing.T) { checkOpenAIAgents(t, dir) })
	}
}

func checkOpenAIAgents(t *testing.T, dir string) {
	for _, need := range []string{"agents", "pytest", "setuptools"} {
		if _, err := os.Stat(filepath.Join(dir, need)); dir == "" || err != nil {
			t.Skipf("needs the packages openai-agents, pytest and setuptools: set %s to a directory into which pip installed them", openaiVar)
		}
	}
	h := fixture.New(t)
	h.Kill9()
	ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 15*time.Minute))
	defer cancel()
	venv := newVenv(ctx, t, dir)
	token := strings.Repeat("k", 40)
	tcp := startListening(h, token)

	venv.check(ctx, t, h, map[string]suite{
		"unix": {[]string{"CLOCHE_HOST=unix://" + h.Socket()}, []string{"openai_checks"}},
		"tcp": {
			[]string{"CLOCHE_HOST=" + tcp, "CLOCHE_TOKEN=" + token},
			[]string{"openai_checks/test_lifecycle.py", "openai_checks/test_commands.py::test_exposed_ports"},
		},
	})
}
