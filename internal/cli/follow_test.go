package cli

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

func TestLogFlags(t *testing.T) {
	f := newFake(t)
	f.processes = managed()
	exited := api.LogEntry{ExecID: "p-1", End: "exited"}
	f.logs = map[string][]api.LogEntry{"p-1": {
		{ExecID: "p-1", Stream: api.Stdout, Gap: 5}, {ExecID: "p-1", Stream: api.Stdout, Position: 5, Offset: 5, Data: api.Bytes("out\n")},
		{ExecID: "p-1", Stream: api.Stderr, Position: 9, Data: api.Bytes("err\n")}, exited,
	}}
	home := f.listen()
	got := runCLI(t, homeEnv(home), nil, nil, "logs", "-f", "--since", "0", "--tail", "3", "box", "web")
	if got != (result{0, "out\n", "[cloche: 5 bytes are no longer kept]\nerr\n"}) {
		t.Errorf("%+v", got)
	}
	if !f.asked("GET /v1/sandboxes/box/logs?exec_id=p-1&follow=true&since=0&tail=3") {
		t.Errorf("asked %v", f.requests)
	}
	f.logs["p-1"][3].End = "the sandbox was stopped"
	if got := runCLI(t, homeEnv(home), nil, nil, "logs", "-f", "box/web"); !strings.HasSuffix(got.err, "[cloche: the log ends here: the sandbox was stopped]\n") {
		t.Errorf("%+v", got)
	}
	for args, says := range map[string]string{
		"--since 10 box":      "none is named",
		"--since soon box":    "neither a number",
		"--stream both box":   "not a stream",
		"--tail -1 box":       "negative",
		"box web more":        "want SANDBOX [PROCESS]",
		"":                    "want SANDBOX [PROCESS]",
		"box no-such-process": "no process no-such-process",
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, append([]string{"logs"}, strings.Fields(args)...)...); got.status != 125 || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestEvents(t *testing.T) {
	at := time.Date(2020, 11, 21, 9, 30, 0, 0, time.UTC)
	end := at.Add(time.Minute)
	f := newFake(t)
	f.events = []api.Event{
		{Cursor: 4, Time: at, Kind: api.EventCreated, Sandbox: "sb-1", Name: "box", Missed: 3},
		{Cursor: 5, Time: at, Kind: api.EventProcessExited, Sandbox: "sb-1", Name: "box", Process: &api.Process{ExecID: "p-1", Name: "web", ExitCode: code(3), Restarts: 2}},
		{Cursor: 6, Time: at, Kind: api.EventProcessStarted, Sandbox: "sb-1", Process: &api.Process{ExecID: "p-2", Argv: []string{"sh", "-c", "x\x1b\n"}}},
		{Cursor: 7, Time: at, Kind: api.EventExpiring, Name: "box", ExpiresAt: &end, Reason: "it is idle"},
		{Cursor: 8, Time: at, Kind: api.EventRefused, Verb: "create", Rule: "mounts", Reason: "no"},
	}
	home := f.listen()
	got := runCLI(t, homeEnv(home), nil, nil, "events", "--kind", "process", "--kind", "refused", "--since", "3", "box")
	stamp := at.Local().Format("2006-01-02T15:04:05.000Z07:00")
	want := stamp + " sandbox.created box\n" +
		stamp + " process.exited box p-1 (web) exit=3 restarts=2\n" +
		stamp + " process.started sb-1 p-2 sh -c x\uFFFD\n" +
		stamp + " sandbox.expiring box at " + end.Local().Format(time.TimeOnly) + " it is idle\n" +
		stamp + " refused - create rule=mounts no\n"
	if got != (result{0, want, "[cloche: 3 events before this one are no longer kept]\n"}) {
		t.Errorf("%+v\nwant %s", got, want)
	}
	if !f.asked("GET /v1/events?after=3&follow=false&kind=process.started&kind=process.ready") || !f.asked("GET /v1/events?after=3&follow=false") {
		t.Errorf("asked %v", f.requests)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "events", "--since", "1h"); got.out != "" {
		t.Errorf("old ones are not left out: %+v", got)
	}
	if runCLI(t, homeEnv(home), nil, nil, "events", "--since", "now"); !f.asked("GET /v1/events?after=-1&follow=false") {
		t.Errorf("asked %v", f.requests)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "events", "--json"); strings.Count(got.out, "\n") != 5 || !strings.HasPrefix(got.out, `{"cursor":4,`) {
		t.Errorf("--json: %+v", got)
	}
	for args, says := range map[string]string{"--kind birthday": "not a kind", "--since -3": "negative cursor", "a b": "one sandbox or none", "--kind sand": "not a kind"} {
		if got := runCLI(t, homeEnv(home), nil, nil, append([]string{"events"}, strings.Fields(args)...)...); got.status != 125 || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestLeaseFlags(t *testing.T) {
	f := newFake(t)
	soon := time.Now().Add(9*time.Minute + 30*time.Second)
	f.sandbox.ExpiresAt = &soon
	home := f.listen()
	do := func(args ...string) result { t.Helper(); return runCLI(t, homeEnv(home), nil, nil, args...) }
	do("create", "--lifetime", "8h", "--idle", "90s", "--persistent=false", "--transient", "--read-only")
	if s := f.spec; s.ReadOnlyRoot == nil || !*s.ReadOnlyRoot || s.Limits.LifetimeMS != 8*3600_000 || s.Limits.IdleMS != 90_000 || s.Persistent == nil || *s.Persistent || !s.Transient {
		t.Errorf("spec %+v", s)
	}
	f.spec = api.SandboxSpec{}
	do("create")
	if s := f.spec; s.ReadOnlyRoot != nil || s.Persistent != nil || s.Transient || s.Limits != (api.Limits{}) {
		t.Errorf("spec of no flags %+v", s)
	}
	for _, flags := range []string{"--idle 0", "--lifetime 0s", "--idle -5s", "--lifetime long"} {
		if got := do(append([]string{"create"}, strings.Fields(flags)...)...); got.status != 125 || !strings.Contains(got.err, "hint: ") {
			t.Errorf("%s: %+v", flags, got)
		}
	}
	if got := do("ls"); !strings.Contains(got.out, "  in 9m\n") {
		t.Errorf("ls: %s", got.out)
	}
	for _, verb := range []string{"pause", "suspend", "resume", "heartbeat"} {
		if got := do(verb, "box"); got != (result{0, "box\n", ""}) || !f.asked("POST /v1/sandboxes/box/"+verb) {
			t.Errorf("%s: %+v", verb, got)
		}
	}
}

func TestHold(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	in, keep := io.Pipe()
	go func() {
		for { // once it is held, let it go
			f.mu.Lock()
			held := f.held
			f.mu.Unlock()
			if held == 1 {
				keep.Close()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	got := runCLI(t, homeEnv(home), in, nil, "hold", "--memory", "1GiB")
	if got != (result{0, "box\n", ""}) || !f.spec.Transient || f.spec.Limits.MemoryBytes != 1<<30 {
		t.Errorf("%+v, spec %+v", got, f.spec)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "hold", "--transient=false"); got.status != 125 || !strings.Contains(got.err, "always transient") {
		t.Errorf("%+v", got)
	}
}

// announced is an output that tells its first line.
type announced struct{ line chan string }

func (a announced) Write(p []byte) (int, error) {
	a.line <- string(p)
	return len(p), nil
}

func TestPortForward(t *testing.T) {
	f := newFake(t)
	f.dial = func(c net.Conn) {
		defer c.Close()
		buf := make([]byte, 64)
		n, _ := c.Read(buf)
		_, _ = c.Write([]byte(strings.ToUpper(string(buf[:n]))))
	}
	home := f.listen()
	out := announced{make(chan string, 4)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, []string{"port-forward", "--home", home, "box", "0:8000", "0:1"}, command.Streams{Out: out, Err: io.Discard}, command.Env{Getenv: func(string) (string, bool) { return "", false }})
	}()
	good, to, _ := strings.Cut(strings.TrimSpace(<-out.line), " -> ")
	if to != "8000" || !strings.HasPrefix(good, "127.0.0.1:") {
		t.Errorf("listens at %q for %q", good, to)
	}
	bad, _, _ := strings.Cut(<-out.line, " ")
	for range 3 {
		c, err := net.Dial("tcp", good)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "hello")
		if got, _ := io.ReadAll(c); string(got) != "HELLO" {
			t.Errorf("%q came back", got)
		}
		c.Close()
	}
	c, err := net.Dial("tcp", bad)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
		t.Errorf("where nothing listens: %q, %v", got, err)
	}
	c.Close()
	open, err := net.Dial("tcp", good) // one that is open holds nothing up
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	cancel()
	if status := <-ended; status != 0 {
		t.Errorf("status %d", status)
	}
	if c, err := (&http.Client{}).Get("http://" + good); err == nil {
		c.Body.Close()
		t.Error("it still listens")
	}
}

func TestPortForwardRefuses(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for args, says := range map[string]string{"box " + port + ":80": "listen on port " + port, "box x": "not LOCAL:REMOTE", "box": "at least one port", "gone 80": "gone"} {
		if got := runCLI(t, homeEnv(home), nil, nil, append([]string{"port-forward"}, strings.Fields(args)...)...); got.status != 125 || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}
	f.sandbox.State = api.StatePaused
	if got := runCLI(t, homeEnv(home), nil, nil, "port-forward", "box", "0:80"); got.status != 125 || !strings.Contains(got.err, "is paused") {
		t.Errorf("a paused one: %+v", got)
	}
}
