package build

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/tarfile"
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

// TestDiff: which files a step has changed.
func TestDiff(t *testing.T) {
	file := func(ctime int64, ino uint64) entry { return entry{mode: typeFile | 0o644, ctime: ctime, ino: ino} }
	dir := entry{mode: typeDir | 0o755, ino: 1}
	before := known{"d": dir, "d/a": file(1, 2), "d/b": file(1, 3), "e": dir, "e/f": dir, "e/f/g": file(1, 4), "was": dir, "was/x": file(1, 5), "m": dir, "m/in": file(1, 6), "etc": dir, "etc/hosts": file(1, 7), "tmp/t": file(1, 8)}
	now := listing{files: known{
		"d": dir, "d/a": file(1, 2), "d/b": file(2, 3), "d/link": file(1, 2), "was": file(2, 9), "new": dir, "etc": dir, "etc/hosts": file(9, 7), "m/in": file(1, 6),
	}, hidden: []string{"m"}}
	changed, removed := before.diff(now, entry.same)
	if got := fmt.Sprint(changed, removed); got != "[d/a d/b d/link new was] [e tmp/t]" {
		t.Error(got)
	}
}

// FuzzLayer copies what a sandbox packs: only entries that were asked for come out, as a tar that can be read.
func FuzzLayer(f *testing.F) {
	for _, m := range [][]tarfile.Member{
		{tarfile.Regular("a", "x"), tarfile.Regular("b", "y")},
		{{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc/passwd"}}},
		{{Header: tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "../x"}}},
		{tarfile.Regular("../a", "x")}, {tarfile.Regular("a/../b", "x")}, {tarfile.Regular("c", "x")},
		{{Header: tar.Header{Typeflag: tar.TypeChar, Name: "a"}}},
	} {
		f.Add(tarfile.Pack(f, m...).Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		err := (&layerPacker{}).copy(bytes.NewReader(data), w, "", []string{"a", "b"})
		if cerr := w.Close(); err == nil && cerr != nil {
			t.Fatal(cerr)
		}
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for r := tar.NewReader(&out); ; { //nolint:forbidigo // what was written here
			h, err := r.Next()
			if err == io.EOF { //nolint:errorlint // the end of a tar
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimSuffix(h.Name, "/")
			if !slices.Contains([]string{"a", "b"}, name) || seen[name] {
				t.Fatalf("the entry %q came out", h.Name)
			}
			seen[name] = true
		}
	})
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
