//go:build linux

package envd_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sdkDir has installs of E2B's clients: js/node_modules and py, a virtual environment.
func sdkDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("CLOCHE_TEST_E2B")
	if dir == "" {
		t.Skip("CLOCHE_TEST_E2B does not name a directory with E2B's clients")
	}
	return dir
}

// controlled serves the fixture's sandbox behind the few calls of the control plane that a client
// makes to reach it.
func controlled(t *testing.T) (*fixture, []string) {
	t.Helper()
	f := newFixture(t)
	f.sb.Env["HOME"] = f.dir
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("E2b-Sandbox-Id") != "" || r.URL.Path == "/files" {
			f.ServeSandbox(w, r, f.sb)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]string{
			"sandboxID": "ibox", "templateID": "base", "clientID": "c", "envdVersion": "0.6.13", "envdAccessToken": token,
		})
	}))
	t.Cleanup(server.Close)
	return f, append(os.Environ(), "E2B_API_URL="+server.URL, "E2B_SANDBOX_URL="+server.URL, "E2B_API_KEY=e2b_00", "TEST_DIR="+f.dir, "PYTHONDONTWRITEBYTECODE=1")
}

// run runs one script with a client.
func runClient(t *testing.T, env []string, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env, cmd.WaitDelay = env, 5*time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "all done") {
		t.Fatalf("%v: %v", argv, err)
	}
}

func TestJavaScriptClient(t *testing.T) {
	dir := sdkDir(t)
	_, env := controlled(t)
	script, err := os.ReadFile("testdata/client.mjs")
	if err != nil {
		t.Fatal(err)
	}
	// A module is resolved from where the script is.
	at := filepath.Join(dir, "js", "cloche-envd-test.mjs")
	if err := os.WriteFile(at, script, 0o600); err != nil {
		t.Fatal(err)
	}
	runClient(t, env, "node", at)
}

func TestPythonClient(t *testing.T) {
	dir := sdkDir(t)
	_, env := controlled(t)
	runClient(t, env, filepath.Join(dir, "py", "bin", "python"), "testdata/client.py")
}
