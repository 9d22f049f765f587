package layout_test

import (
	"cmp"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const contributing = "CONTRIBUTING.md"

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// quoted are the texts between backquotes in a page.
func quoted(page string) []string {
	var out []string
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestContributingListsSwitches compares the variables in CONTRIBUTING.md with those in tests,
// in what tests use, and in the gate.
func TestContributingListsSwitches(t *testing.T) {
	variable := regexp.MustCompile(`\bCLOCHE_(TEST_[A-Z0-9_]+|BIN|CRASH_STATES|CRASH_SEED)\b`)
	listed := map[string]bool{}
	for _, text := range quoted(readText(t, contributing)) {
		if variable.FindString(text) == text {
			listed[text] = false
		}
	}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == ".git" || name == "bin" || name == "dist" {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := path.Ext(name); ext != ".go" && ext != ".txtar" && ext != ".sh" && name != filepath.Join(".ci", "run") || !d.Type().IsRegular() {
			return nil
		}
		for _, v := range variable.FindAllString(readText(t, name), -1) {
			if _, ok := listed[v]; !ok {
				t.Errorf("%s: %s is not listed in %s", name, v, contributing)
			}
			listed[v] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for v, used := range listed {
		if !used {
			t.Errorf("%s lists %s, which no test reads", contributing, v)
		}
	}
}

// TestContributingNamesFiles: a path that CONTRIBUTING.md names exists. NAME in one stands for
// what the reader chooses.
func TestContributingNamesFiles(t *testing.T) {
	page := readText(t, contributing)
	named := quoted(page)
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllStringSubmatch(page, -1) {
		named = append(named, m[1])
	}
	form := regexp.MustCompile(`^\.?[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)+$`)
	call := regexp.MustCompile(`^[a-z]+\.[A-Z]`) // such as os.Root
	found := 0
	for _, name := range named {
		if !form.MatchString(name) || call.MatchString(name) || strings.HasPrefix(name, "v1.") {
			continue
		}
		found++
		name, _, _ = strings.Cut(name, "/NAME")
		if _, err := os.Stat(name); err != nil {
			t.Errorf("%s names %s: %v", contributing, name, err)
		}
	}
	if found < 20 {
		t.Errorf("%d paths were found in %s", found, contributing)
	}
}

// TestMakeTargets: each target has a line in make help, and the pages name no other.
func TestMakeTargets(t *testing.T) {
	makefile := readText(t, "Makefile")
	var helped []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9]+):[^=\n]*?## \S`).FindAllStringSubmatch(makefile, -1) {
		helped = append(helped, m[1])
	}
	phony := strings.Fields(regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindStringSubmatch(makefile)[1])
	slices.Sort(helped)
	slices.Sort(phony)
	if !slices.Equal(helped, phony) {
		t.Errorf("targets with a line in the help: %v; phony ones: %v", helped, phony)
	}
	pages := []string{contributing, "README.md", ".github/PULL_REQUEST_TEMPLATE.md", ".github/workflows/ci.yml"}
	for _, page := range pages {
		for _, m := range regexp.MustCompile("(?m)(?:^|`|run: )make ([a-z0-9]+)").FindAllStringSubmatch(readText(t, page), -1) {
			if !slices.Contains(helped, m[1]) {
				t.Errorf("%s: make has no target %s", page, m[1])
			}
		}
	}
}

type workflow struct {
	Name string
	On   map[string]any
	Jobs map[string]struct {
		RunsOn string `yaml:"runs-on"`
		Steps  []struct {
			Uses, Run string
			With      map[string]any
		}
	}
}

// TestWorkflows reads the workflow as its service does, as far as this repository goes.
func TestWorkflows(t *testing.T) {
	var w workflow
	if err := yaml.UnmarshalWithOptions([]byte(readText(t, ".github/workflows/ci.yml")), &w); err != nil {
		t.Fatal(err)
	}
	for _, event := range []string{"push", "pull_request", "schedule", "workflow_dispatch"} {
		if _, ok := w.On[event]; !ok {
			t.Errorf("it does not run on %s", event)
		}
	}
	want := map[string]string{"check": "make check", "all": ".ci/run"}
	for name, job := range w.Jobs {
		ran, goVersion := "", ""
		for _, s := range job.Steps {
			ran = cmp.Or(s.Run, ran) // the last one
			if strings.HasPrefix(s.Uses, "actions/setup-go@") {
				goVersion, _ = s.With["go-version-file"].(string)
			}
		}
		if ran != want[name] || goVersion != "go.mod" || job.RunsOn == "" {
			t.Errorf("job %s runs %q on %q with the Go of %q", name, ran, job.RunsOn, goVersion)
		}
	}
	if len(w.Jobs) != len(want) {
		t.Errorf("%d jobs, want %d", len(w.Jobs), len(want))
	}
}

type issueForm struct {
	Name, Description string
	Body              []struct {
		Type, ID    string
		Attributes  struct{ Label, Description, Value, Render string }
		Validations struct{ Required bool }
	}
}

// TestIssueForms: each form is one, and the form for bugs asks for what every answer needs.
func TestIssueForms(t *testing.T) {
	forms, err := filepath.Glob(".github/ISSUE_TEMPLATE/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range forms {
		text := readText(t, name)
		if path.Base(name) == "config.yml" {
			var c struct {
				BlankIssues bool                                `yaml:"blank_issues_enabled"`
				Links       []struct{ Name, URL, About string } `yaml:"contact_links"`
			}
			if err := yaml.UnmarshalWithOptions([]byte(text), &c, yaml.Strict()); err != nil || len(c.Links) != 1 || !strings.Contains(c.Links[0].About, "SECURITY.md") {
				t.Errorf("%s: %+v, %v: it leads to SECURITY.md", name, c, err)
			}
			continue
		}
		var f issueForm
		if err := yaml.Unmarshal([]byte(text), &f); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f.Name == "" || f.Description == "" || len(f.Body) == 0 {
			t.Errorf("%s has no name, description or body", name)
		}
		ids := map[string]bool{}
		for i, b := range f.Body {
			switch {
			case b.Type == "markdown" && b.Attributes.Value != "":
			case slices.Contains([]string{"textarea", "input"}, b.Type) && b.ID != "" && !ids[b.ID] && b.Attributes.Label != "":
				ids[b.ID] = true
			default:
				t.Errorf("%s: field %d is %+v", name, i, b)
			}
		}
		if path.Base(name) == "bug.yml" && !(strings.Contains(text, "`cloche doctor --json`") && strings.Contains(text, "`cloche version`") && ids["version"] && ids["doctor"]) {
			t.Errorf("%s does not ask for the version and for what doctor says", name)
		}
	}
	if len(forms) != 3 {
		t.Errorf("forms: %v", forms)
	}
}
