package cli

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

func code(n int) *int { return &n }

// managed are processes of every kind, oldest first.
func managed() []api.Process {
	return []api.Process{
		{ExecID: "ex-1", Argv: []string{"true"}, State: api.ProcessExited, ExitCode: code(0), StartedAt: time.Now().Add(-time.Hour)},
		{ExecID: "p-1", Name: "web", Argv: []string{"python3", "-m", "http.server"}, State: api.ProcessReady, Running: true, PID: 7, StartedAt: time.Now().Add(-2 * time.Minute), Restarts: 3, LastStderr: "a \x1b[31mwarning", Managed: true, StdinOpen: true},
		{ExecID: "p-2", Name: "old", Argv: []string{"x"}, State: api.ProcessUnknown, Reason: "the daemon was not running"},
		{ExecID: "p-3", Name: "old", Argv: []string{"x"}, State: api.ProcessExited, Signal: "KILL", OOM: true},
		{ExecID: "p-4", Name: "two", Argv: []string{"x"}, State: api.ProcessExited, Signal: "TERM"},
		{ExecID: "p-5", Name: "two", Argv: []string{"x"}, State: api.ProcessBackoff},
	}
}

func TestPs(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	home := f.listen()
	do := func(args ...string) result { t.Helper(); return runCLI(t, homeEnv(home), nil, nil, args...) }
	got := do("ps", "box")
	for _, want := range []string{
		"ID    NAME  STATE    PID  AGE  RESTARTS  EXIT     COMMAND                 LAST-STDERR\n",
		"ex-1  -     exited   -    1h   0         0        true",
		"p-1   web   ready    7    2m   3         -        python3 -m http.server  a \uFFFD[31mwarning\n",
		"p-2   old   unknown  -    -    0         unknown  x                       the daemon was not running\n",
		"oom ", "TERM", "p-5   two   backoff",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("ps lacks %q:\n%s", want, got.out)
		}
	}
	for range 12 {
		f.processes = append(f.processes, api.Process{ExecID: "many", State: api.ProcessExited})
	}
	if got := do("ps", "-q", "box"); strings.Count(got.out, "many\n") != 10 || !strings.Contains(got.out, "p-1\n") || strings.Contains(got.out, "p-4") {
		t.Errorf("ps -q:\n%s", got.out)
	}
	if got := do("ps", "-q", "--all", "box"); strings.Count(got.out, "\n") != 18 {
		t.Errorf("ps -q --all:\n%s", got.out)
	}
	var list api.ProcessList
	if got := do("ps", "--json", "--all", "box"); json.Unmarshal([]byte(got.out), &list) != nil || len(list.Processes) != 18 {
		t.Errorf("ps --json: %+v", got)
	}
	f.processes = nil
	if got := do("ps", "--json", "box"); got.out != "{\"processes\":[]}\n" {
		t.Errorf("ps --json of nothing: %+v", got)
	}
}

// TestProcessesAreFoundByName: the name is enough where it says which one.
func TestProcessesAreFoundByName(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	f.processes = append(f.processes, api.Process{ExecID: "p-6", Name: "web", State: api.ProcessFailed})
	home := f.listen()
	for ref, want := range map[string]string{"p-3": "p-3", "web": "p-1", "two": "p-5", "ex-1": "ex-1"} {
		var p api.Process
		for _, args := range [][]string{{"inspect", "--json", "box/" + ref}} {
			got := runCLI(t, homeEnv(home), nil, nil, args...)
			if err := json.Unmarshal([]byte(got.out), &p); err != nil || p.ExecID != want {
				t.Errorf("%v: %+v, want %s", args, got, want)
			}
		}
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "wait", "box", "old"); got.status != 125 || !strings.Contains(got.err, `2 processes of sandbox box have the name "old"`) {
		t.Errorf("a name of two: %+v", got)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "wait", "box", "none"); got.status != 125 || !strings.Contains(got.err, "no process none") {
		t.Errorf("a name of none: %+v", got)
	}
	for _, args := range []string{"wait box", "wait", "wait box/ ", "wait a b c", "signal box p-1", "stdin /x", "attach box/"} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...); got.status != 125 || !strings.Contains(got.err, "want SANDBOX PROCESS") {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestStart(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	start := func(flags ...string) (api.ProcessSpec, result) {
		t.Helper()
		f.started = api.ProcessSpec{}
		got := runCLI(t, homeEnv(home), nil, nil, append(append([]string{"start"}, flags...), "box", "--", "prog", "--flag")...)
		return f.started, got
	}
	spec, got := start()
	if got != (result{0, "p-new\n", ""}) || !reflect.DeepEqual(spec, api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"prog", "--flag"}}}) {
		t.Errorf("%+v, %+v", spec, got)
	}
	if !f.asked("POST /v1/sandboxes/box/processes") {
		t.Error("nothing was started")
	}
	spec, _ = start("--id", "w", "--name", "worker", "--open-stdin", "--restart", "on-failure:5", "--on-full", "block", "--env", "A=b", "--cwd", "/x", "--user", "1000", "--timeout", "2s",
		"--ready-http", "8080/health", "--ready-timeout", "30s")
	ms := int64(2000)
	want := api.ProcessSpec{
		ExecRequest: api.ExecRequest{ExecID: "w", Argv: []string{"prog", "--flag"}, Env: map[string]string{"A": "b"}, Cwd: "/x", User: "1000", TimeoutMS: &ms},
		Name:        "worker", OpenStdin: true, OnFull: api.OnFullBlock,
		Restart: &api.Restart{Policy: api.RestartOnFailure, MaxRestarts: 5},
		Ready:   &api.Readiness{HTTP: &api.HTTPProbe{Port: 8080, Path: "/health"}, TimeoutMS: 30_000},
	}
	if !reflect.DeepEqual(spec, want) {
		t.Errorf("%+v, want %+v", spec, want)
	}
	if spec, _ = start("--tty"); !spec.TTY || spec.Rows != 24 || spec.Cols != 80 {
		t.Errorf("with --tty: %+v", spec)
	}
	for flags, says := range map[string]string{
		"--restart sometimes":              "not a restart policy",
		"--restart always:3":               "only on-failure",
		"--restart on-failure:0":           "less than 1",
		"--on-full wait":                   "neither drop nor block",
		"--ready-port 0":                   "not a port",
		"--ready-port 70000":               "not a port",
		"--ready-log (":                    "not a regular expression",
		"--ready-log=":                     "it is empty",
		"--ready-http /health":             "does not begin with a port",
		"--ready-timeout 3s":               "not how to see",
		"--wait-ready":                     "not how to see",
		"--ready-port 1 --ready-log x":     "more than one",
		"--ready-port 1 --ready-timeout 0": "is 0",
		"--timeout soon":                   "not a duration",
	} {
		if _, got := start(strings.Fields(flags)...); got.status != 125 || !strings.Contains(got.err, says) || !strings.Contains(got.err, "hint: ") {
			t.Errorf("%s: %+v", flags, got)
		}
	}
}

func TestStartAndWaitUntilReady(t *testing.T) {
	for name, tc := range map[string]struct {
		then   api.Process
		status int
		says   string
	}{
		"ready":            {api.Process{State: api.ProcessReady}, 0, ""},
		"not in time":      {api.Process{State: api.ProcessRunning, Reason: "not ready after 5m0s"}, 124, "is not ready: not ready after 5m0s; it goes on"},
		"ended before":     {api.Process{State: api.ProcessExited, ExitCode: code(0)}, 125, "before it was ready"},
		"failed before":    {api.Process{State: api.ProcessExited, ExitCode: code(9)}, 9, ""},
		"failed for good":  {api.Process{State: api.ProcessFailed, Reason: "restarted 5 times", ExitCode: code(2)}, 2, "restarted 5 times"},
		"nobody knows how": {api.Process{State: api.ProcessUnknown, Reason: "it was lost"}, 125, "it was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.waited = tc.then
			f.waited.ExecID = "p-new"
			home := f.listen()
			got := runCLI(t, homeEnv(home), nil, nil, "start", "--ready-port", "80", "--wait-ready", "box", "--", "x")
			if got.out != "p-new\n" || got.status != tc.status || !strings.Contains(got.err, tc.says) || tc.says == "" && got.err != "" {
				t.Errorf("%+v, want %d and %q", got, tc.status, tc.says)
			}
			got = runCLI(t, homeEnv(home), nil, nil, "start", "--json", "--ready-port", "80", "--wait-ready", "box", "--", "x")
			var p api.Process
			if err := json.Unmarshal([]byte(got.out), &p); err != nil || p.State != tc.then.State || got.status != tc.status {
				t.Errorf("with --json: %+v", got)
			}
		})
	}
}

func TestWait(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	home := f.listen()
	for name, tc := range map[string]struct {
		then   api.Process
		status int
		says   string
	}{
		"exited":        {api.Process{State: api.ProcessExited, ExitCode: code(7)}, 7, ""},
		"well":          {api.Process{State: api.ProcessExited, ExitCode: code(0)}, 0, ""},
		"killed":        {api.Process{State: api.ProcessExited, Signal: "KILL"}, 137, ""},
		"out of memory": {api.Process{State: api.ProcessExited, Signal: "KILL", OOM: true}, 137, "out of memory"},
		"timeout":       {api.Process{State: api.ProcessExited, Signal: "KILL", TimedOut: true}, 124, "ran into its timeout"},
		"unknown":       {api.Process{State: api.ProcessUnknown, Reason: "the sandbox died"}, 125, "is not known: the sandbox died"},
		"time is up":    {api.Process{State: api.ProcessRunning}, 124, "is running; it goes on"},
	} {
		t.Run(name, func(t *testing.T) {
			f.waited = tc.then
			got := runCLI(t, homeEnv(home), nil, nil, "wait", "--timeout", "1s", "box", "p-1")
			if got.status != tc.status || got.out != "" || !strings.Contains(got.err, tc.says) || tc.says == "" && got.err != "" {
				t.Errorf("%+v, want %d and %q", got, tc.status, tc.says)
			}
		})
	}
}

func TestSignal(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	home := f.listen()
	for arg, want := range map[string]string{"TERM": "TERM", "sigkill": "KILL", "1": "HUP", "Usr1": "USR1"} {
		got := runCLI(t, homeEnv(home), nil, nil, "signal", "--scope", "group", "box", "web", arg)
		if got != (result{0, "p-1\n", ""}) || f.signal != (api.SignalRequest{Signal: want, Scope: api.ScopeGroup}) {
			t.Errorf("%s: %+v, sent %+v", arg, got, f.signal)
		}
	}
	for _, args := range []string{"box web NOTHING", "box web 99", "box web 0", "box web -9", "--scope all box web TERM"} {
		if got := runCLI(t, homeEnv(home), nil, nil, append([]string{"signal"}, strings.Fields(args)...)...); got.status != 125 {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestStdin(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	home := f.listen()
	got := runCLI(t, homeEnv(home), strings.NewReader("some\x00input"), nil, "stdin", "--close", "box", "web")
	if got != (result{}) || f.stdin != "some\x00input" || !f.asked("POST /v1/sandboxes/box/processes/p-1/stdin?end=true") {
		t.Errorf("%+v, sent %q, %v", got, f.stdin, f.requests)
	}
	if got := runCLI(t, homeEnv(home), strings.NewReader("abc"), nil, "stdin", "--json", "box/web"); got.out != "{\"offset\":3}\n" {
		t.Errorf("%+v", got)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "stdin", "--close", "box/web"); got.status != 0 {
		t.Errorf("without an input: %+v", got)
	}
}

func TestRemoveProcess(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	home := f.listen()
	do := func(args ...string) result { t.Helper(); return runCLI(t, homeEnv(home), nil, nil, args...) }
	if got := do("rm", "box/web"); got.status != 125 || !strings.Contains(got.err, "process web is ready") || f.asked("DELETE") {
		t.Errorf("one that runs: %+v", got)
	}
	if got := do("rm", "-f", "box/web", "box/gone"); got != (result{0, "box/web\nbox/gone\n", ""}) || !f.asked("DELETE /v1/sandboxes/box/processes/p-1") {
		t.Errorf("with -f: %+v", got)
	}
	if got := do("rm", "box/p-4"); got.status != 0 || !f.asked("DELETE /v1/sandboxes/box/processes/p-4") {
		t.Errorf("one that has ended: %+v", got)
	}
	if got := do("rm", "box/gone"); got.status != 125 {
		t.Errorf("one that is not: %+v", got)
	}
}

func TestCompletionOfProcesses(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	home := f.listen()
	for _, verb := range []string{"attach", "wait", "signal", "logs", "stdin"} {
		if got := runCLI(t, homeEnv(home), nil, nil, "__complete", verb, "box", ""); !strings.Contains(got.out, "p-1\tpython3 -m http.server\n") {
			t.Errorf("%s: %+v", verb, got)
		}
		if got := runCLI(t, homeEnv(home), nil, nil, "__complete", verb, ""); !strings.HasPrefix(got.out, "box\n") {
			t.Errorf("%s: %+v", verb, got)
		}
	}
}
