//go:build linux

package e2e_test

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

// TestPipInstallsInHost has pip of the image host install a package from an index, as a
// user types it: the programs of the package are found, and a venv works as well. The
// machine's Python is marked as managed by the distribution.
func TestPipInstallsInHost(t *testing.T) {
	longtest.Skip(t, "it fetches a package and starts sandboxes")
	index := cowsayIndex(t)
	served := httptest.NewServer(index)
	t.Cleanup(served.Close)
	h := fixture.New(t)
	program := `set -e
pip install --disable-pip-version-check cowsay
cowsay -t 'said inside'
python3 -c 'import cowsay, sys; print(cowsay.__file__.startswith(__import__("os").environ["HOME"]))'
sh -c 'command -v cowsay'`
	users := []string{"root"}
	if os.Getuid() == 0 {
		users = append(users, "1000")
	}
	for _, user := range users {
		for _, more := range [][]string{nil, {"--read-only"}} {
			args := append([]string{
				"run", "--user", user, "--endpoint", "index=" + served.URL, "--env", "PIP_INDEX_URL=http://" + api.DefaultEndpointListen + "/simple/",
			}, more...)
			out, status := h.Try(append(args, "--", "/bin/sh", "-c", program)...)
			if status != 0 || !strings.Contains(out, "| said inside |") || !strings.Contains(out, "True\n") || !strings.Contains(out, "/.local/bin/cowsay\n") {
				t.Errorf("user %s, %v: status %d\n%s", user, more, status, out)
			}
		}
	}
	out, status := h.Try("run", "--", "/bin/sh", "-c", "printenv PATH; PATH=/usr/bin:~/x; export PATH; printenv PATH")
	// A plain user's daemon says first what it does not enforce.
	if status != 0 || !strings.Contains("\n"+out, "\n/root/.local/bin:") || strings.Contains(out, "~") {
		t.Errorf("status %d\n%s", status, out)
	}
	h.Left()
}

// cowsayIndex is an index with the package cowsay, which pip of this machine gets.
func cowsayIndex(t *testing.T) *packageIndex {
	t.Helper()
	wheels := filepath.Join(t.TempDir(), "wheels")
	fetch := exec.CommandContext(t.Context(), "/usr/bin/pip3", "download", "-q", "--disable-pip-version-check", "--only-binary=:all:", "--no-deps", "-d", wheels, "cowsay")
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Skipf("needs a package to install: %v\n%s", err, out)
	}
	index, err := newPackageIndex(wheels, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return index
}
