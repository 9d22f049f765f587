//go:build linux

package layout_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestTroubleshootingHasEveryCode compares the table of error codes with the codes.
func TestTroubleshootingHasEveryCode(t *testing.T) {
	page, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range api.Codes() {
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
	tasks, err := filepath.Glob("docs/tasks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, tasks...)
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
