//go:build linux

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
)

// TestQuickstart runs the sh blocks of docs/quickstart.md as one script, as they are written.
func TestQuickstart(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it makes a dozen sandboxes")
	}
	bin := fixture.Binary(t)
	if out, err := exec.CommandContext(t.Context(), bin, "doctor", "--home", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("needs a usable engine: cloche doctor says\n%s", out)
	}
	page, err := os.ReadFile("docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllSubmatch(page, -1) {
		script.Write(block[1])
	}
	dir, err := os.MkdirTemp("", "cl-") // short enough for a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// If a line fails, the sandboxes and the daemon before it end too.
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `trap 'status=$?; set +e; cloche ls -q 2>/dev/null | xargs -r cloche rm -f; kill %1 2>/dev/null; wait; exit $status' EXIT
set -ex
`+script.String())
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = []string{
		"PATH=" + filepath.Dir(bin) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir,
		"CLOCHE_HOME=" + filepath.Join(dir, "home"), "LC_ALL=C.UTF-8",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{"\nhello\n", "\n42\n", "\nstatus 124\n", "\n5\n4\n3\n2\n1\n", "b'hello\\n'", "files.pythonhosted.org", "the chain is whole"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output has no %q:\n%s", want, out)
		}
	}
}
