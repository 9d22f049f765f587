package build

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestPlan: which stages are built, and what is refused before anything runs.
func TestPlan(t *testing.T) {
	for _, tc := range []struct{ text, target, needed string }{
		{"FROM a\nRUN x", "", "[true]"},
		{"FROM a AS one\nFROM b AS two\nFROM one", "", "[true false true]"},
		{"FROM a AS one\nFROM b AS two\nCOPY --from=one /x /y\nFROM c", "two", "[true true false]"},
		{"FROM a\nFROM b\nCOPY --from=0 /x /y", "", "[true true]"},
		{"FROM a AS one\nFROM b\nRUN --mount=type=bind,from=one,target=/x true", "", "[true true]"},
		{"ARG V=1\nFROM a:$V", "", "[true]"},
		{"# escape=`\nFROM a\nRUN x `\n y", "", "[true]"},
	} {
		p, err := Dockerfile([]byte(tc.text), tc.target, nil)
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		if got, err := p.needed(); fmt.Sprint(got) != tc.needed || err != nil {
			t.Errorf("%q: %v, %v", tc.text, got, err)
		}
	}
	for text, want := range map[string]string{
		"# nothing":                           "file with no instructions",
		"RUN x":                               "no build stage",
		"FROM a\nBUILD x":                     "unknown instruction",
		"FROM --platform=windows/amd64 a":     "builds for",
		"FROM a\nADD https://example.com/x /": "network",
		"FROM $NONE":                          "empty",
		strings.Repeat("#\n", MaxDockerfile):  "more than",
		"FROM a\n" + strings.Repeat("RUN x\n", maxSteps+1): "instructions",
	} {
		if _, err := Dockerfile([]byte(text), "", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	if _, err := Dockerfile([]byte("FROM a"), "none", nil); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("a target that is missing: %v", err)
	}
}

// TestState: variables and arguments of steps.
func TestState(t *testing.T) {
	p, err := Dockerfile([]byte(`ARG GLOBAL=g
FROM a
ARG GLOBAL
ARG OWN=${GLOBAL}-own
ARG GIVEN=x
ENV A=1 B="two $A" PATH=/x:$PATH
ENV A=2
LABEL l=$A
SHELL ["/bin/bash", "-c"]
CMD echo $A
ENTRYPOINT ["x"]
WORKDIR a/b
WORKDIR ../c
`), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := State{Shell: []string{"/bin/sh", "-c"}, Args: map[string]string{}, given: map[string]string{"GIVEN": "y", "UNDECLARED": "z"}, global: p.Args}
	s.SetEnv("PATH", "/bin")
	for _, step := range p.Stages[0].Steps {
		if _, err := step.Resolve(&s); err != nil {
			t.Fatalf("%s: %v", step.Text, err)
		}
	}
	if got := fmt.Sprint(s.Config.Env, s.Args["OWN"], s.Args["GIVEN"], s.Config.Labels, s.Config.WorkingDir, s.Config.Entrypoint, s.Config.Cmd); got != "[PATH=/x:/bin A=2 B=two ]g-ownymap[l:2]/a/c[x] []" {
		t.Error(got)
	}
	if _, ok := s.Args["UNDECLARED"]; ok {
		t.Error("an argument that is not declared is set")
	}
}

// TestPackages: the Dockerfile of a list of packages.
func TestPackages(t *testing.T) {
	text, err := Packages(api.ImagePackages{From: "debian:12", Apt: []string{"curl", "git=1:2.39.5-0+deb12u2"}, Pip: []string{"numpy==2.4.0", "x[y]>=1,<2"}, Npm: []string{"@scope/name@1.x"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FROM debian:12\n", "'curl' 'git=1:2.39.5-0+deb12u2'", "'numpy==2.4.0' 'x[y]>=1,<2'", "'@scope/name@1.x'", "id=apt", "id=pip", "id=npm"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if _, err := Dockerfile([]byte(text), "", nil); err != nil {
		t.Error(err)
	}
}
