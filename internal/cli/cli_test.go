package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/daemon"
)

func homeEnv(home string) map[string]string { return map[string]string{client.EnvHome: home} }

func TestRunPassesEverythingThrough(t *testing.T) {
	f := newFake(t)
	f.program = func(p *fakeProgram) api.Result {
		in, _ := io.ReadAll(p.stdin)
		p.write(api.FrameStdout, "out:"+string(in))
		p.write(api.FrameStderr, "err\n")
		return exited(7)
	}
	got := runCLI(t, homeEnv(f.listen()), strings.NewReader("hello\n"), nil,
		"run", "--memory", "1GiB", "--timeout", "2s", "--env", "A=b", "--label", "k=v", "--workspace", "job:/srv", "--", "prog", "--flag", "x")
	if want := (result{7, "out:hello\n", "err\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	e := f.run.Exec
	if strings.Join(e.Argv, " ") != "prog --flag x" || e.TimeoutMS == nil || *e.TimeoutMS != 2000 {
		t.Errorf("exec: %+v", e)
	}
	if s := f.run.Spec; s.Limits.MemoryBytes != 1<<30 || s.Env["A"] != "b" || s.Labels["k"] != "v" || !reflect.DeepEqual(*s.Workspace, api.Workspace{Name: "job", Path: "/srv"}) {
		t.Errorf("spec: %+v", s)
	}
}

func TestExitStatuses(t *testing.T) {
	fails := func(code api.Code) func(*fakeDaemon) {
		return func(f *fakeDaemon) { f.refuse["STREAM"] = api.Errorf(code, "it is so") }
	}
	ends := func(r api.Result) func(*fakeDaemon) {
		return func(f *fakeDaemon) { f.program = func(*fakeProgram) api.Result { return r } }
	}
	for name, tc := range map[string]struct {
		set  func(*fakeDaemon)
		want int
		says string
	}{
		"exit 0":         {ends(exited(0)), 0, ""},
		"exit 255":       {ends(exited(255)), 255, ""},
		"TERM":           {ends(api.Result{Signal: "TERM"}), 143, ""},
		"timeout":        {ends(api.Result{Signal: "KILL", TimedOut: true}), 124, "timeout"},
		"oom":            {ends(api.Result{Signal: "KILL", OOM: true}), 137, "out of memory"},
		"lost":           {ends(api.Result{SandboxLost: true, Reason: "it vanished"}), 125, "it vanished"},
		"denied":         {fails(api.CodeDenied), 126, "it is so"},
		"not executable": {fails(api.CodeNotExecutable), 126, "it is so"},
		"not found":      {fails(api.CodeCommandNotFound), 127, "it is so"},
		"internal":       {fails(api.CodeInternal), 125, "it is so"},
		"no sandbox":     {fails(api.CodeNotFound), 125, "it is so"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			tc.set(f)
			got := runCLI(t, homeEnv(f.listen()), nil, nil, "run", "--", "x")
			if got.status != tc.want || !strings.Contains(got.err, tc.says) || tc.says == "" && got.err != "" {
				t.Errorf("got %+v, want status %d and %q", got, tc.want, tc.says)
			}
		})
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for _, code := range api.Codes() {
		if s := command.ExitStatus(api.Errorf(code, "x")); s < 125 || s > 127 && s != 130 {
			t.Errorf("%s exits %d, which is a command's own status", code, s)
		}
	}
	if s := command.ExitStatus(errors.New("x")); s != command.ExitFailed {
		t.Errorf("an error without code exits %d", s)
	}
}

func TestRunWithoutDaemonRunsInProcess(t *testing.T) {
	inner := newFake(t)
	inner.program = func(p *fakeProgram) api.Result { p.write(api.FrameStdout, "42\n"); return exited(0) }
	innerHome := inner.listen()
	closed := 0
	setup := func(e *command.Env) {
		e.InProcess = func(_ context.Context, home string, _ bool) (*client.Client, func(context.Context) error, error) {
			c, err := client.New(client.Options{Host: "unix://" + filepath.Join(innerHome, client.SocketName)})
			return c, func(context.Context) error { closed++; return nil }, err
		}
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(shortDir(t), client.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	staleHome := filepath.Dir(stale.Addr().String())
	stale.SetUnlinkOnClose(false)
	stale.Close()
	for name, home := range map[string]string{"no socket": shortDir(t), "no home": filepath.Join(shortDir(t), "no", "where"), "nobody behind the socket": staleHome} {
		if got := runCLI(t, homeEnv(home), nil, setup, "run", "--", "x"); got.status != 0 || got.out != "42\n" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if closed != 3 {
		t.Errorf("the core was closed %d times, want 3", closed)
	}
	never := func(e *command.Env) {
		e.InProcess = func(context.Context, string, bool) (*client.Client, func(context.Context) error, error) {
			t.Error("a core was started in this process")
			return nil, nil, errors.New("no")
		}
	}
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
	}{
		"host that is named":   {map[string]string{client.EnvHost: "unix://" + filepath.Join(staleHome, client.SocketName)}, []string{"run", "--", "x"}},
		"host flag":            {homeEnv(staleHome), []string{"run", "--host", "tcp://127.0.0.1:1", "--", "x"}},
		"bad host":             {homeEnv(staleHome), []string{"run", "--host", "nonsense", "--", "x"}},
		"keep":                 {homeEnv(staleHome), []string{"run", "--keep", "--", "x"}},
		"exec":                 {homeEnv(staleHome), []string{"exec", "box", "--", "x"}},
		"create":               {homeEnv(staleHome), []string{"create"}},
		"ls":                   {homeEnv(staleHome), []string{"ls"}},
		"no command":           {homeEnv(staleHome), []string{"run"}},
		"a limit that is none": {homeEnv(staleHome), []string{"run", "--memory", "0", "--", "x"}},
	} {
		got := runCLI(t, tc.env, nil, never, tc.args...)
		if got.status != 125 || !strings.HasPrefix(got.err, "cloche: ") || !strings.Contains(got.err, "\nhint: ") {
			t.Errorf("%s: %+v, want 125 and an error with a hint", name, got)
		}
	}
	if got := runCLI(t, homeEnv(staleHome), nil, nil, "run", "--", "x"); got.status != 125 || !strings.Contains(got.err, "need Linux") {
		t.Errorf("where no core can run: %+v", got)
	}
}

func TestADaemonThatRefusesIsNoReasonToRunHere(t *testing.T) {
	f := newFake(t)
	f.refuse["GET /run/stream"] = api.Errorf(api.CodeUnauthenticated, "who are you?")
	got := runCLI(t, homeEnv(f.listen()), nil, func(e *command.Env) {
		e.InProcess = func(context.Context, string, bool) (*client.Client, func(context.Context) error, error) {
			t.Error("a core was started in this process")
			return nil, nil, errors.New("no")
		}
	}, "run", "--", "x")
	if got.status != 125 || !strings.Contains(got.err, "who are you?") {
		t.Errorf("%+v", got)
	}
	if os.Geteuid() == 0 {
		t.Skip("the second half needs a normal user: root opens every socket")
	}
	home := newFake(t).listen()
	if err := os.Chmod(filepath.Join(home, client.SocketName), 0); err != nil {
		t.Fatal(err)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "run", "--", "x"); got.status != 125 || !strings.Contains(got.err, "refuses this user") {
		t.Errorf("%+v", got)
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "cl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	return d
}

func TestGrantedIsSaidOnceAndNotWhenQuiet(t *testing.T) {
	f := newFake(t)
	f.sandbox.Adjusted = []api.Adjustment{{Field: "limits.timeout_ms", Asked: "9", Used: "5", Rule: "profile.max_timeout"}}
	f.sandbox.Unenforced = []api.Unenforced{{Field: "limits.cpus", Reason: "no delegation"}, {Field: "limits.memory_bytes", Reason: "no delegation"}}
	home := f.listen()
	got := runCLI(t, homeEnv(home), nil, nil, "run", "--", "x")
	for _, want := range []string{"limits.timeout_ms: asked for 9, using 5", "not enforced: limits.cpus, limits.memory_bytes: no delegation"} {
		if strings.Count(got.err, want) != 1 {
			t.Errorf("%q is not said once: %q", want, got.err)
		}
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "run", "-q", "--", "x"); got.err != "" {
		t.Errorf("with -q: %q", got.err)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "create"); !strings.Contains(got.err, "no delegation") || got.out != "box\n" {
		t.Errorf("create: %+v", got)
	}
}

func TestJSONIsTheWireTypes(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	for args, check := range map[string]struct {
		into   any
		status int
	}{
		"run --json -- x":               {&api.RunResult{}, 3},
		"exec --json box -- x":          {&api.Result{}, 4},
		"shell --json box":              {&api.Result{}, 4},
		"create --json":                 {&api.Sandbox{}, 0},
		"ls --json":                     {&api.SandboxList{}, 0},
		"inspect --json box":            {&api.Sandbox{}, 0},
		"stop --json --grace 1s box":    {&api.Sandbox{}, 0},
		"kill --json box":               {&api.Sandbox{}, 0},
		"rm -f --json box":              {&command.Removed{}, 0},
		"image ls --json":               {&api.ImageList{}, 0},
		"doctor --json":                 {&api.Doctor{}, 0},
		"version --json":                {&daemon.Versions{}, 0},
		"inspect --processes --json sb": {nil, 125},
	} {
		got := runCLI(t, homeEnv(home), strings.NewReader(""), nil, strings.Fields(args)...)
		if got.status != check.status {
			t.Errorf("%s: status %d (%s), want %d", args, got.status, got.err, check.status)
		}
		text := got.out
		if check.into == nil {
			var e map[string]*api.Error
			check.into, text = &e, got.err
		}
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(check.into); err != nil || d.More() || strings.Count(text, "\n") != 1 {
			t.Errorf("%s: %v in %q, want one line of JSON", args, err, text)
		}
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "logs", "--json", "box"); strings.Count(got.out, "\n") != 2 {
		t.Errorf("logs --json: %q", got.out)
	}
}

func TestVerbs(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	do := func(args ...string) result { t.Helper(); return runCLI(t, homeEnv(home), nil, nil, args...) }

	if got := do("ls"); !strings.HasPrefix(got.out, "ID    NAME  STATE    IMAGE  ENGINE  AGE  EXPIRES\nsb-1  box   running  host   gvisor  ") {
		t.Errorf("ls: %q", got.out)
	}
	if do("ls", "-q", "--label", "a=b"); !f.asked("GET /v1/sandboxes?label=a%3Db&limit=1000&state=creating&state=running&state=paused&state=suspended&state=stopping&state=deleting") {
		t.Errorf("ls asked %v", f.requests)
	}
	if got := do("ls", "--state", "asleep"); got.status != 125 || !strings.Contains(got.err, "running") {
		t.Errorf("a state that is none: %+v", got)
	}
	if got := do("logs", "box"); got.out != "out\n" || got.err != "[cloche: 7 bytes are no longer kept]\nerr\n" {
		t.Errorf("logs: %+v", got)
	}
	if got := do("rm", "box"); got.status != 125 || !strings.Contains(got.err, "cloche stop box") || f.asked("DELETE") {
		t.Errorf("rm of what runs: %+v", got)
	}
	if got := do("rm", "-f", "gone", "box"); got != (result{0, "gone\nbox\n", ""}) || !f.asked("POST /v1/batch/remove") {
		t.Errorf("rm -f: %+v", got)
	}
	if got := do("rm", "-f", "box"); got != (result{0, "box\n", ""}) || !f.asked("DELETE /v1/sandboxes/box") {
		t.Errorf("rm -f of one: %+v", got)
	}
	if got := do("rm", "gone", "box"); got.status != 125 || got.out != "" || !strings.Contains(got.err, "gone") || !strings.Contains(got.err, "cloche stop box") {
		t.Errorf("rm of one that is not there and one that runs: %+v", got)
	}
	if got := do("rm", "-f", "--label", "a=b"); got.status != 0 || got.out != f.sandbox.ID+"\n" || !f.asked("GET /v1/sandboxes?label=a%3Db&limit=1000") {
		t.Errorf("rm by label: %+v, %v", got, f.requests)
	}
	if got := do("rm", "--idempotency-key", "k"); got.status != 125 || !strings.Contains(got.err, "--force") {
		t.Errorf("rm by key without force: %+v", got)
	}
	if got := do("rm", "-f", "--idempotency-key", "k"); got != (result{0, "k\n", ""}) || !f.asked("DELETE /v1/sandboxes?idempotency_key=k") {
		t.Errorf("rm by key: %+v", got)
	}
	if got := do("create", "--count", "2"); got.status != 125 || got.out != f.sandbox.Name+"\n" || !strings.Contains(got.err, "full") {
		t.Errorf("create of two of which one fails: %+v", got)
	}
	for _, verb := range []string{"stop", "kill", "pause", "suspend", "resume", "heartbeat"} {
		if got := do(verb, "gone", "box"); got.status != 125 || got.out != "" || !strings.Contains(got.err, "gone") || f.asked("POST /v1/sandboxes/box/"+verb) {
			t.Errorf("%s of one that exists and one that does not: %+v, %v", verb, got, f.requests)
		}
	}
	if got := do("rum"); got.status != 125 || !strings.Contains(got.err, `"cloche run"`) {
		t.Errorf("a verb that is none: %+v", got)
	}
	if got := do("ls", "--nope"); got.status != 125 || !strings.Contains(got.err, "--nope") {
		t.Errorf("a flag that is none: %+v", got)
	}
	if got := do("exec", "box", "-t", "--", "sh"); got.status != 125 || !strings.Contains(got.err, "before box") {
		t.Errorf("flags behind the sandbox: %+v", got)
	}
	if got := do("run", "-t", "--", "sh"); got.status != 125 || !strings.Contains(got.err, "terminal") {
		t.Errorf("-t without a terminal: %+v", got)
	}
	if got := do("serve"); got.status != 125 || !strings.Contains(got.err, "Linux") {
		t.Errorf("serve where it cannot: %+v", got)
	}
	if got := do("version"); got.out != "cloche v0 (API v1)\ndaemon v9\n" {
		t.Errorf("version: %+v", got)
	}
	if got := do("completion", "bash"); got.status != 0 || !strings.Contains(got.out, "cloche") {
		t.Errorf("completion: %d %s", got.status, got.err)
	}
	if got := do("__complete", "stop", ""); !strings.HasPrefix(got.out, "box\n") {
		t.Errorf("completion of names: %+v", got)
	}
}

func TestDoctor(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	if got := runCLI(t, homeEnv(home), nil, nil, "doctor"); got.status != 0 || !strings.HasSuffix(got.out, "\ngvisor: usable\n") {
		t.Errorf("%+v", got)
	}
	f.status.Available = false
	got := runCLI(t, homeEnv(home), nil, nil, "doctor")
	if got.status != 1 || !strings.Contains(got.out, "fix: enable them") || !strings.HasSuffix(got.out, "\ngvisor: not usable: no user namespaces\n") {
		t.Errorf("%+v", got)
	}
}

func TestServeGetsItsFlags(t *testing.T) {
	var got command.ServeOptions
	r := runCLI(t, nil, nil, func(e *command.Env) {
		e.Serve = func(_ context.Context, o command.ServeOptions) error { got = o; return nil }
	}, "serve", "--home", "/h", "--listen", "unix:///a", "--listen", "tcp://127.0.0.1:1", "--config", "c.yaml", "--json")
	if r.status != 0 || got.Home != "/h" || got.Config != "c.yaml" || !got.JSON || strings.Join(got.Listen, " ") != "unix:///a tcp://127.0.0.1:1" {
		t.Errorf("%+v, %+v", r, got)
	}
}

func TestErrorsOnATerminalAreOneLine(t *testing.T) {
	f := newFake(t)
	f.refuse["STREAM"] = api.Errorf(api.CodeDenied, "no\x1b[2J\ncloche: forged").WithHint("h\x9bi")
	got := runCLI(t, homeEnv(f.listen()), nil, nil, "run", "--", "x")
	if want := "cloche: no\uFFFD[2J cloche: forged\nhint: h\uFFFDi\n"; got.err != want {
		t.Errorf("stderr %q, want %q", got.err, want)
	}
}

func TestPathsOfARemoteDaemon(t *testing.T) {
	got := runCLI(t, nil, nil, nil, "create", "--host", "tcp://192.0.2.1:1", "--mount", "./x:/x")
	if got.status != 125 || !strings.Contains(got.err, "another machine") {
		t.Errorf("%+v", got)
	}
}
