package e2e_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// release is MAJOR.MINOR.PATCH.
type release [3]int

func parseRelease(s string) (release, error) {
	var n release
	_, err := fmt.Sscanf(s, "%d.%d.%d", &n[0], &n[1], &n[2])
	if err == nil && fmt.Sprintf("%d.%d.%d", n[0], n[1], n[2]) != s {
		err = fmt.Errorf("%q is not MAJOR.MINOR.PATCH", s)
	}
	return n, err
}

func compareReleases(a, b release) int { return slices.Compare(a[:], b[:]) }

// pythonVersion is what sdk/python says of itself; pyproject.toml reads the same line.
func pythonVersion(t *testing.T) release {
	t.Helper()
	b, err := os.ReadFile("sdk/python/cloche/__init__.py")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^__version__ = "(.*)"$`).FindStringSubmatch(string(b))
	if m == nil {
		t.Fatal("sdk/python/cloche/__init__.py has no __version__")
	}
	n, err := parseRelease(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// changelogVersions are the headings of CHANGELOG.md after "Unreleased", newest first.
func changelogVersions(t *testing.T) []release {
	t.Helper()
	b, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`^## (\S+) \(\d{4}-\d\d-\d\d\)$`)
	var out []release
	unreleased := 0
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		m := heading.FindStringSubmatch(line)
		switch {
		case !strings.HasPrefix(line, "## "):
		case line == "## Unreleased":
			if unreleased++; unreleased > 1 || len(out) > 0 {
				t.Error("CHANGELOG.md: Unreleased is not the first heading")
			}
		case m == nil:
			t.Errorf("CHANGELOG.md: the heading %q is not \"## 1.2.3 (2026-01-31)\"", line)
		default:
			n, err := parseRelease(m[1])
			if err != nil {
				t.Errorf("CHANGELOG.md: %v", err)
			}
			out = append(out, n)
		}
	}
	if unreleased == 0 {
		t.Error("CHANGELOG.md has no section Unreleased")
	}
	if !slices.IsSortedFunc(out, func(a, b release) int { return compareReleases(b, a) }) {
		t.Errorf("CHANGELOG.md: the versions are not in order: %v", out)
	}
	return out
}

// TestReleases holds the version of the Python client, the changelog and the tags together.
func TestReleases(t *testing.T) {
	python, listed := pythonVersion(t), changelogVersions(t)
	if len(listed) > 0 && compareReleases(listed[0], python) > 0 {
		t.Errorf("CHANGELOG.md has %v, and the Python client is %v", listed[0], python)
	}
	project, err := os.ReadFile("sdk/python/pyproject.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`dynamic = ["version"]`, `version = { attr = "cloche.__version__" }`} {
		if !strings.Contains(string(project), "\n"+line+"\n") {
			t.Errorf("sdk/python/pyproject.toml lacks %s: its version has another source", line)
		}
	}
	t.Run("tags", func(t *testing.T) {
		for _, tag := range tags(t, "--merged", "HEAD") {
			if !slices.Contains(listed, tag) {
				t.Errorf("the tag v%s has no section in CHANGELOG.md", tag)
			}
			if compareReleases(tag, python) > 0 {
				t.Errorf("the tag v%s is newer than the Python client, %s", tag, python)
			}
		}
		for _, tag := range tags(t, "--points-at", "HEAD") {
			if tag != python {
				t.Errorf("this commit is v%s, and the Python client says %s", tag, python)
			}
		}
	})
}

func (n release) String() string { return fmt.Sprintf("%d.%d.%d", n[0], n[1], n[2]) }

// tags are those of releases that git lists with these options.
func tags(t *testing.T, options ...string) []release {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", append([]string{"tag", "--list", "v[0-9]*"}, options...)...).CombinedOutput()
	if err != nil {
		t.Skipf("needs git and the repository: %v: %s", err, cmp.Or(strings.TrimSpace(string(out)), "no output"))
	}
	var found []release
	for _, tag := range strings.Fields(string(out)) {
		n, err := parseRelease(strings.TrimPrefix(tag, "v"))
		if err != nil {
			t.Errorf("the tag %s: %v", tag, err)
			continue
		}
		found = append(found, n)
	}
	return found
}
