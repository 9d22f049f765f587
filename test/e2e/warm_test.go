//go:build linux

package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

// TestSnapshotWarm makes a snapshot of a Python with pandas, and runs code in sandboxes that continue from it.
func TestSnapshotWarm(t *testing.T) {
	packages := os.Getenv(jupyterVar)
	if packages == "" {
		t.Skipf("needs Jupyter: set %s, see CONTRIBUTING.md", jupyterVar)
	}
	h := fixture.New(t)
	h.Kill9()
	// The packages may belong to another user.
	if err := os.WriteFile(filepath.Join(h.Dir, "policy.yaml"), []byte("mounts: [{root: "+packages+"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	setup := filepath.Join(h.Dir, "setup.py")
	if err := os.WriteFile(setup, []byte("import os\nanswer = 6 * 7\nwriter = os.getpid()\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Start()
	flags := []string{"snapshot", "warm", "--engine", "gvisor", "--mount", packages + ":/packages:ro", "-e", "PYTHONPATH=/packages", "--setup", setup, "--import", "random,pandas"}
	if out := h.Must(append(flags, "science")...); strings.TrimSpace(out) != "science" {
		t.Errorf("it printed %q", out)
	}
	if out := h.Must("ls", "-q", "--all"); strings.TrimSpace(out) != "" {
		t.Errorf("the sandbox is left: %s", out)
	}
	if out, status := h.Try(append(flags, "science")...); status == 0 || !strings.Contains(out, `a snapshot named "science" exists`) {
		t.Errorf("status %d: %s", status, out)
	}
	const code = `import sys; print(answer, writer == __import__("os").getpid(), "pandas" in sys.modules, pandas.Series([1, 2]).sum()); print(random.random(), pandas.core.common.np.random.rand())`
	drawn := map[string]bool{}
	for range 3 {
		out := h.Must("code", "run", "--snapshot", "science", code)
		first, rest, _ := strings.Cut(out, "\n")
		if first != "42 True True 3" {
			t.Errorf("it printed %q", out)
		}
		for _, number := range strings.Fields(rest) {
			if drawn[number] {
				t.Errorf("the random number %s was drawn twice", number)
			}
			drawn[number] = true
		}
	}
	if len(drawn) != 6 {
		t.Errorf("the random numbers are %v", drawn)
	}
	if out, status := h.Try("code", "run", "--snapshot", "science", "1/0"); status != 1 || !strings.Contains(out, "ZeroDivisionError") {
		t.Errorf("status %d: %s", status, out)
	}
	if out, status := h.Try("code", "run", "--snapshot", "science", "a", "b"); status == 0 || !strings.Contains(out, "want the code alone") {
		t.Errorf("status %d: %s", status, out)
	}
	if out, status := h.Try("snapshot", "warm", "--engine", "gvisor", "--import", "no_such_module", "--mount", packages+":/packages:ro", "-e", "PYTHONPATH=/packages", "none"); status != 1 || !strings.Contains(out, "ModuleNotFoundError") {
		t.Errorf("status %d: %s", status, out)
	}
	for said, args := range map[string][]string{"there is nothing to prepare": {"none"}, "is not the name of a module": {"--import", "os;x", "none"}} {
		if out, status := h.Try(append([]string{"snapshot", "warm"}, args...)...); status == 0 || !strings.Contains(out, said) {
			t.Errorf("status %d: %s", status, out)
		}
	}
	if out := h.Must("snapshot", "ls"); strings.Contains(out, "none") {
		t.Errorf("a snapshot that failed is listed: %s", out)
	}
	if out := h.Must("ls", "-q", "--all"); strings.TrimSpace(out) != "" {
		t.Errorf("sandboxes are left: %s", out)
	}
}
