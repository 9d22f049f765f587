//go:build linux

package cloche_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche"
)

// TestQuickstart runs the sh blocks of docs/quickstart.md as one script, as they are written.
func TestQuickstart(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it makes a dozen sandboxes")
	}
	bin := binary(t)
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
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `trap 'cloche ls -q 2>/dev/null | xargs -r cloche rm -f; kill %1 2>/dev/null; wait' EXIT
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

// TestTroubleshootingHasEveryCode compares the table of error codes with the codes.
func TestTroubleshootingHasEveryCode(t *testing.T) {
	page, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range cloche.Codes() {
		if !strings.Contains(string(page), fmt.Sprintf("\n| `%s` |", code)) {
			t.Errorf("docs/troubleshooting.md has no row for %s", code)
		}
	}
}

// TestLinksBetweenPages looks for the files and headings that links between pages name.
func TestLinksBetweenPages(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^):]*?)(#[^)]*)?\)`)
	for _, page := range append(pages, "README.md", "SECURITY.md", "ARCHITECTURE.md", "RATIONALE.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(withoutCode(string(text)), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			switch _, err := os.Stat(target); {
			case err != nil:
				t.Errorf("%s: the link %s leads nowhere: %v", page, m[0], err)
			case m[2] != "" && !anchors(t, target)[strings.TrimPrefix(m[2], "#")]:
				t.Errorf("%s: %s has no heading for the link %s", page, target, m[0])
			}
		}
	}
}

// withoutCode is a page without blocks and spans of code.
func withoutCode(page string) string {
	return regexp.MustCompile("(?sm)^```.*?^```|`[^`\n]*`").ReplaceAllString(page, "")
}

// anchors are the names by which links reach the headings of a page.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}
