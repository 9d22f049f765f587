//go:build linux

package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/freeport"
)

// TestPython installs sdk/python into a virtual environment of its own, with what it
// needs out of the directory of pypiVar, and runs its tests there: those that need no
// daemon, and the conformance suite over the unix socket and over TCP at once.
func TestPython(t *testing.T) {
	pypi := os.Getenv(pypiVar)
	for _, need := range []string{"httpx", "pytest", "setuptools", "yaml"} {
		if _, err := os.Stat(filepath.Join(pypi, need)); pypi == "" || err != nil {
			t.Skipf("needs the packages httpx, pytest, setuptools and PyYAML: set %s to a directory into which pip installed them", pypiVar)
		}
	}
	h := fixture.New(t)
	h.Kill9()
	ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 12*time.Minute))
	defer cancel()
	venv := newVenv(ctx, t, pypi)
	// So that endpoints work over TCP.
	policy := "endpoints: [{target: \"client\", tenants: [tcp, local]}]\n"
	if err := os.WriteFile(filepath.Join(h.Dir, "policy.yaml"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	token := strings.Repeat("k", 40)
	tcp := startListening(h, token)

	venv.check(ctx, t, h, map[string]suite{
		"unix": {[]string{"CLOCHE_HOST=unix://" + h.Socket(), "CLOCHE_BIN=" + h.Bin, jupyterVar + "=" + os.Getenv(jupyterVar)}, []string{"checks", "conformance"}},
		"tcp":  {[]string{"CLOCHE_HOST=" + tcp, "CLOCHE_TOKEN=" + token, jupyterVar + "="}, []string{"conformance"}},
	})
}

// suite is tests of pytest's, and the environment that names the daemon for them.
type suite struct{ env, tests []string }

// check runs suites at the same time, after which the daemon must have nothing left.
func (v *venv) check(ctx context.Context, t *testing.T, h *fixture.Fixture, suites map[string]suite) {
	t.Helper()
	var all sync.WaitGroup
	for name, run := range suites {
		all.Go(func() {
			cmd := v.python(ctx, t, append([]string{"-m", "pytest", "-q", "-p", "no:cacheprovider"}, run.tests...)...)
			cmd.Dir = v.sources
			cmd.Env = append(cmd.Env, run.env...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
			t.Logf("%s: %s", name, out)
		})
	}
	all.Wait()
	if left := h.Names(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// venv is a virtual environment into which sdk/python was installed.
type venv struct {
	dir     string
	sources string // a copy of the package's tests and tools, without the package
}

// newVenv makes one out of what is in dir, and asks no index.
func newVenv(ctx context.Context, t *testing.T, dir string) *venv {
	t.Helper()
	v := &venv{dir: filepath.Join(t.TempDir(), "venv"), sources: filepath.Join(t.TempDir(), "sdk", "python")}
	if err := os.CopyFS(v.sources, os.DirFS(filepath.Join("sdk", "python"))); err != nil {
		t.Fatal(err)
	}
	// Where the generators look for the contract.
	if err := os.CopyFS(filepath.Join(v.sources, "..", "..", "api"), os.DirFS("api")); err != nil {
		t.Fatal(err)
	}
	run := func(cmd *exec.Cmd) {
		t.Helper()
		cmd.WaitDelay = 10 * time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
		}
	}
	run(exec.CommandContext(ctx, "/usr/bin/python3", "-m", "venv", "--without-pip", v.dir))
	site, err := filepath.Glob(filepath.Join(v.dir, "lib", "python3*", "site-packages"))
	if err != nil || len(site) != 1 {
		t.Fatalf("%q %v, want one directory of packages", site, err)
	}
	if err := os.WriteFile(filepath.Join(site[0], "needed.pth"), []byte(dir+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(ctx, "/usr/bin/pip3", "--python", filepath.Join(v.dir, "bin", "python3"), "install", "-q",
		"--disable-pip-version-check", "--root-user-action", "ignore", "--no-index", "--no-deps", "--no-build-isolation", v.sources)
	run(install)
	return v
}

// python is a command of the environment's own interpreter.
func (v *venv) python(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(v.dir, "bin", "python3"), args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "CLOCHE_") || strings.HasPrefix(kv, "PYTHON") })
	cmd.Env = append(cmd.Env, "HOME="+t.TempDir(), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// startListening starts the daemon at its socket and at a port, whose address it
// returns when it answers there. A port that another process got first is not tried again.
func startListening(h *fixture.Fixture, token string) string {
	h.T.Helper()
	for range 3 {
		addr := "127.0.0.1:" + strconv.Itoa(freeport.Free(h.T))
		out, err := os.OpenFile(h.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			h.T.Fatal(err)
		}
		h.Daemon = exec.Command(h.Bin, "serve", "--home", h.Dir, "--listen", "unix://"+h.Socket(), "--listen", "tcp://"+addr)
		h.Daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		h.Daemon.Env = append(os.Environ(), "CLOCHE_TOKEN="+token)
		h.Daemon.Stderr = out
		err = h.Daemon.Start()
		out.Close()
		if err != nil {
			h.T.Fatal(err)
		}
		if fixture.Poll(func() bool { return fixture.Answers("tcp", addr) }) {
			return "tcp://" + addr
		}
		h.Kill9()
	}
	h.T.Fatalf("the daemon listens at no port:\n%s", h.LastWords())
	return ""
}
