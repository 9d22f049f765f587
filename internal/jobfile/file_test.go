package jobfile

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

const good = `
name: swe
spec:
  image: debian:12
  network: none
  env: {A: 1, B: yes}
  limits: {memory_bytes: 536870912, cpus: 0.5, lifetime_ms: 3600000}
  endpoints:
    - {name: model, target: http://127.0.0.1:8080, presets: [openai]}
files:
  - {path: /workspace/a.sh, from: a.sh, mode: 0755}
  - path: /workspace/b
    content: {base64: "/w=="}
dirs:
  - {path: /workspace/src, from: ./src, exclude: [.git]}
setup:
  network: on
  egress: {allow: ["@pypi"]}
  commands:
    - pip install x
    - [make, test]
    - {python: "print(1)", timeout_ms: 5000}
post_setup: echo $OPENAI_BASE_URL > cfg
handlers:
  - {name: seed, wait: true}
  - {name: two, commands: [one]}
state: [{path: /workspace/state.json, content: "{}"}]
channels: [{argv: [server], ready: {port: 80}}]
run:
  - [python3, agent.py]
  - |
    set -e
    true
score: {commands: [./score], timeout_ms: 1000}
score_file: /workspace/reward.json
outputs: [{path: /workspace/log, max_bytes: 10}]
`

func TestParse(t *testing.T) {
	p, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	s := p.Spec
	if s.Name != "swe" || s.Spec.Env["A"] != "1" || s.Spec.Env["B"] != "yes" || s.Spec.Limits.CPUs != 0.5 || s.Spec.Endpoints[0].Presets[0] != "openai" {
		t.Errorf("%+v", s)
	}
	if len(p.Files) != 2 || p.Files[0].Mode != 0o755 || p.Files[0].From != "a.sh" || string(p.Files[1].Content) != "\xff" || p.Dirs[0].Exclude[0] != ".git" || len(p.State) != 1 {
		t.Errorf("%+v %+v", p.Files, p.Dirs)
	}
	c := s.Setup.Commands
	if len(c) != 3 || c[0].Shell != "pip install x" || c[1].Argv[1] != "test" || c[2].TimeoutMS != 5000 || s.Setup.Egress.Allow[0] != "@pypi" {
		t.Errorf("%+v", c)
	}
	if s.PostSetup.Commands[0].Shell != "echo $OPENAI_BASE_URL > cfg" || s.Run.Commands[0].Argv[1] != "agent.py" || s.Run.Commands[1].Shell != "set -e\ntrue\n" {
		t.Errorf("%+v %+v", s.PostSetup, s.Run)
	}
	if s.Handlers[1].Commands[0].Shell != "one" || s.Channels[0].Argv[0] != "server" || s.Channels[0].Ready.Port != 80 || s.Outputs[0].MaxBytes != 10 {
		t.Errorf("%+v %+v", s.Handlers, s.Channels)
	}
}

// TestParseSaysWhere: each error names the line, the column and the key.
func TestParseSaysWhere(t *testing.T) {
	for text, want := range map[string]string{
		"run: x\nsetupp: y\n":                           "line 2, column 1: setupp: there is no such key here",
		"run:\n  commands: [a]\n  timeout: 5\n":         "line 3, column 3: run.timeout: there is no such key",
		"run:\n  - {shel: a}\n":                         "line 2, column 6: run.commands[0].shel: there is no such key",
		"run: x\nrun: y\n":                              "line 2, column 1: run: duplicate key",
		"run: x\nkeep: maybe\n":                         "line 2, column 1: keep: \"maybe\" is no true or false",
		"run: x\ninspect_failed_ms: soon\n":             "line 2, column 1: inspect_failed_ms: \"soon\" is no whole number",
		"run: x\nspec:\n  env: [a]\n":                   "line 3, column 3: spec.env: keys with values are expected",
		"run: x\nspec: {files: [{path: /a, mod: 1}]}\n": "line 2, column",
		"run:\n":        "line 1, column 1: run: there is no value",
		"- a\n":         "keys with values are expected here",
		"run: x\n---\n": "",
		"run: [":        "the job file cannot be read",
		"":              "0 documents",
	} {
		_, err := Parse([]byte(text))
		if want == "" {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("run: &a [*a]\n"))
	f.Add([]byte("run: {commands: [{argv: [1, 2.5, true, ~]}]}\n"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := Parse(data); err != nil && api.CodeOf(err) != api.CodeInvalid && api.CodeOf(err) != api.CodeTooLarge {
			t.Errorf("%v", err)
		}
	})
}
