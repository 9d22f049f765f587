package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TestDockerFlags: what Docker's users type means here what it means there.
func TestDockerFlags(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	dir := t.TempDir()
	envFile := filepath.Join(dir, "env")
	if err := os.WriteFile(envFile, []byte("# comment\nFROM_FILE=a b\nA=file\n\nUNSET\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := runCLI(t, homeEnv(home), nil, nil, "run", "--rm", "-e", "A=b", "--env-file", envFile, "-v", dir+":/data:ro", "-w", "/srv", "-u", "1000",
		"-m", "64m", "-l", "k=v", "--network", "none", "--", "prog")
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	s := f.run.Spec
	if want := map[string]string{"A": "b", "FROM_FILE": "a b"}; !reflect.DeepEqual(s.Env, want) {
		t.Errorf("environment %v, want %v", s.Env, want)
	}
	if len(s.Mounts) != 1 || !reflect.DeepEqual(s.Mounts[0], api.Mount{Source: dir, Target: "/data", ReadOnly: true}) {
		t.Errorf("mounts %+v", s.Mounts)
	}
	if s.Cwd != "/srv" || s.User != "1000" || s.Limits.MemoryBytes != 64<<20 || s.Labels["k"] != "v" || s.Network != "none" || f.run.Keep {
		t.Errorf("%+v", s)
	}
	for _, args := range []string{"run --workdir /srv -- x", "exec --workdir /srv box -- x", "exec -w /srv -e A=1 -u 7 box -- x"} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...); got.status != 0 {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if f.exec.Cwd != "/srv" || f.exec.User != "7" || f.exec.Env["A"] != "1" {
		t.Errorf("%+v", f.exec)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "run", "--rm=false", "--", "x"); got.status != 0 || !f.run.Keep {
		t.Errorf("--rm=false: %+v", got)
	}
}

// TestDockerFlagsRefused: what cannot be is told with what can.
func TestDockerFlagsRefused(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	for args, says := range map[string]string{
		"run -p 8080:80 -- x":                      "cloche port-forward",
		"create -p 0":                              "cloche port-forward",
		"hold -p 80":                               "cloche port open",
		"create -p 80 --count 2":                   "cloche port open",
		"run --json -p 80 -- x":                    "--detach",
		"run -v data:/data -- x":                   "--workspace data:/PATH",
		"run --network host -- x":                  "--endpoint",
		"run --network none --net on -- x":         "give one of them",
		"run --privileged -- x":                    "policy explain",
		"run --gpus all -- x":                      "no devices",
		"run --entrypoint sh -- x":                 "after --",
		"run -d --rm -- x":                         "leave --rm out",
		"run --mount type=bind,src=/a,dst=/b -- x": "SOURCE:TARGET",
		"run --env-file /does/not/exist -- x":      "/does/not/exist",
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...); got.status != 125 || !strings.Contains(got.err, says) {
			t.Errorf("%s: %+v, want %q", args, got, says)
		}
	}
	if len(f.requests) != 0 {
		t.Errorf("the daemon was asked: %v", f.requests)
	}
}

// TestDockerWords: a verb of Docker's without a counterpart leads on, and one that has a
// counterpart does what that does.
func TestDockerWords(t *testing.T) {
	f := newFake(t)
	f.answers["GET /images"] = api.ImageList{Images: []api.Image{{Name: "team/tool:1", Digest: "sha256:ab"}}}
	home := f.listen()
	for word, says := range map[string]string{
		"build .": "cloche image build", "compose up": "cloche start", "up": "cloche start", "swarm init": "CLOCHE_HOST", "network ls": "cloche egress",
		"volume ls": "cloche workspace", "restart box": "cloche start --restart", "rename a b": "cloche create --name", "update x": "cloche extend",
		"tag a b": "image import --name", "push x": "snapshot create", "save x": "cloche image export", "load": "image import", "login": "config.json",
		"logout": "config.json", "container ls": "`cloche ls`", "port box": "cloche port ls box", "system df": "cloche doctor", "context ls": "--host",
	} {
		got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(word)...)
		if got.status != 125 || !strings.Contains(got.err, says) || strings.Contains(got.err, "did you mean") {
			t.Errorf("%s: %+v, want %q", word, got, says)
		}
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "commit", "box", "image:1"); got.status != 125 || !strings.Contains(got.err, "snapshot create") {
		t.Errorf("commit: %+v", got)
	}
	for args, says := range map[string]string{
		"list": "box", "ps": "box", "ps -a": "box", "ps -aq": "sb-1", "images": "team/tool:1", "image list": "team/tool:1", "--version": "cloche v0", "-v": "cloche v0",
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...); got.status != 0 || !strings.Contains(got.out, says) {
			t.Errorf("%s: %+v, want %q", args, got, says)
		}
	}
	for _, alias := range []string{"delete", "remove", "unpause", "pull", "rmi", "top"} {
		if c, _, err := testRoot().Find([]string{alias}); err != nil || !slices.Contains([]string{"rm", "resume", "pull", "rmi", "top"}, c.Name()) {
			t.Errorf("%s is no verb", alias)
		}
	}
	help := runCLI(t, nil, nil, nil, "--help")
	if strings.Contains(help.out, "rmi") {
		t.Errorf("the help lists aliases:\n%s", help.out)
	}
}

// TestViews: every verb that has a result writes it as the user wants it.
func TestViews(t *testing.T) {
	f := newFake(t)
	f.sandbox.Labels = map[string]string{"k": "v"}
	f.sandbox.Name = "box"
	f.answers["GET /images"] = api.ImageList{Images: []api.Image{{Name: "reg:5000/team/tool:1", Digest: "sha256:ab", SizeBytes: 2048}, {Name: "host"}}}
	home := f.listen()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"ls", "-o", "name"}, "box\n"},
		{[]string{"ls", "--format", "{{.ID}} {{.Names}} {{.Status}} {{.Labels.k}}"}, "sb-1 box running v\n"},
		{[]string{"ls", "--format", `table {{.ID}}\t{{.Names}}`}, "ID    NAMES\nsb-1  box\n"},
		{[]string{"inspect", "box", "--format", "{{json .Labels}}"}, `{"k":"v"}` + "\n"},
		{[]string{"inspect", "-o", "name", "box"}, "box\n"},
		{[]string{"images", "--format", "{{.Repository}}|{{.Tag}}|{{.ID}}|{{.Size}}"}, "reg:5000/team/tool|1|sha256:ab|2 KiB\nhost|||0 B\n"},
		{[]string{"--version", "--format", "{{.Version}}"}, "v0\n"},
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, tc.args...); got.status != 0 || got.out != tc.want || got.err != "" {
			t.Errorf("%q: %+v, want %q", tc.args, got, tc.want)
		}
	}
	asJSON, asYAML := runCLI(t, homeEnv(home), nil, nil, "ls", "-o", "json"), runCLI(t, homeEnv(home), nil, nil, "ls", "-o", "yaml")
	if !json.Valid([]byte(asJSON.out)) || asJSON.out != runCLI(t, homeEnv(home), nil, nil, "ls", "--format", "json").out {
		t.Errorf("%+v", asJSON)
	}
	if !strings.HasPrefix(asYAML.out, "---\nsandboxes:\n  -\n    id: \"sb-1\"\n") {
		t.Errorf("%s", asYAML.out)
	}
	for _, tc := range []struct{ args, says string }{
		{"ls -o xml", "json, yaml or name"}, {"ls --json -o name", "give one of them"}, {"ls --format {{", "Go template"}, {"ls --format {{.Nope}}", ".Names"},
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(tc.args)...); got.status != 125 || got.out != "" || !strings.Contains(got.err, tc.says) {
			t.Errorf("%s: %+v, want %q", tc.args, got, tc.says)
		}
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "ls", "-o", "json", "extra"); !json.Valid([]byte(got.err)) {
		t.Errorf("an error is not JSON: %q", got.err)
	}
}

// TestLogsAsInDocker: -n, -t and --until.
func TestLogsAsInDocker(t *testing.T) {
	f := newFake(t)
	at := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	f.logs = map[string][]api.LogEntry{"x": {
		{ExecID: "x", Stream: api.Stdout, Time: at, Data: api.Bytes("one\ntw")},
		{ExecID: "x", Stream: api.Stdout, Time: at.Add(time.Second), Data: api.Bytes("o\nthree\n")},
		{ExecID: "x", Stream: api.Stdout, Time: at.Add(time.Minute), Data: api.Bytes("late\n")},
	}}
	f.processes = []api.Process{{ExecID: "x", State: api.ProcessExited}}
	home := f.listen()
	got := runCLI(t, homeEnv(home), nil, nil, "logs", "-t", "-n", "9", "--until", "2026-11-24T10:00:30Z", "box", "x")
	want := "2026-11-24T10:00:00Z one\n2026-11-24T10:00:00Z two\n2026-11-24T10:00:01Z three\n"
	if got.status != 0 || got.out != want {
		t.Errorf("%+v, want %q", got, want)
	}
	if !slices.ContainsFunc(f.requests, func(r string) bool { return strings.Contains(r, "tail=9") }) {
		t.Errorf("-n was not asked for: %v", f.requests)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "logs", "--until", "12", "box"); got.status != 125 || !strings.Contains(got.err, "--until") {
		t.Errorf("%+v", got)
	}
}

// TestDetached: -d leaves the command running in a sandbox that stays.
func TestDetached(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	if got := runCLI(t, homeEnv(home), nil, nil, "run", "-d", "-e", "A=1", "--", "sleep", "60"); got.status != 0 || got.out != "box\n" {
		t.Errorf("%+v", got)
	}
	if strings.Join(f.started.Argv, " ") != "sleep 60" || f.spec.Env["A"] != "1" {
		t.Errorf("%+v in %+v", f.started, f.spec)
	}
	f.refuse["POST /sandboxes/sb-1/processes"] = api.Errorf(api.CodeCommandNotFound, "no such program")
	if got := runCLI(t, homeEnv(home), nil, nil, "run", "-d", "--", "nope"); got.status != 127 || !slices.ContainsFunc(f.requests, func(r string) bool { return strings.HasPrefix(r, "DELETE /v1/sandboxes/sb-1") }) {
		t.Errorf("%+v after %v", got, f.requests)
	}
}

// TestStats: the share of the processor comes of two measurements, and a value that is not measured
// is not shown as zero.
func TestStats(t *testing.T) {
	f := newFake(t)
	ms, memory, at := int64(1500), int64(64<<20), time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	f.answers["GET /sandboxes/sb-1/stats"] = api.SandboxStats{
		Sandbox: "sb-1", Name: "box", State: api.StateRunning, ObservedAt: at, CPUMS: &ms, MemoryBytes: &memory, Limits: api.Limits{MemoryBytes: 1 << 30},
	}
	home := f.listen()
	got := runCLI(t, homeEnv(home), nil, nil, "stats", "--no-stream")
	if want := "NAME  STATE    CPU  MEMORY          PROCESSES  WORKSPACE  NET IN / OUT\nbox   running  -    64 MiB / 1 GiB  -          -          - / -\n"; got.status != 0 || got.out != want {
		t.Errorf("%+v, want %q", got, want)
	}
	doc := runCLI(t, homeEnv(home), nil, nil, "stats", "--no-stream", "--json").out
	if !strings.Contains(doc, `"observed_at":"2026-11-24T10:00:00Z"`) || strings.Contains(doc, "processes") {
		t.Errorf("%s", doc)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "stats", "--no-stream", "--format", "{{.Name}} {{.MemoryBytes}}"); got.out != "box 67108864\n" {
		t.Errorf("%+v", got)
	}
}
