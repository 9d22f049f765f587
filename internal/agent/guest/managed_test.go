//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/process"
	"github.com/cloche-dev/cloche/test/longtest"
)

// managedShell is a managed process that runs a script.
func managedShell(script string) agent.Process {
	s := shell(script)
	s.Timeout, s.ExecID = 0, api.NewID("p-")
	return agent.Process{Start: s}
}

// must starts p.
func (in *inside) must(t testing.TB, p agent.Process) api.Process {
	t.Helper()
	r, err := in.StartProcess(within(t, time.Minute), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// until watches a process until its record is as wanted.
func until(t testing.TB, c *agent.Client, id string, want func(api.Process) bool) api.Process {
	t.Helper()
	var last api.Process
	found := errors.New("found")
	err := c.WatchProcesses(within(t, time.Minute), func(p api.Process) error {
		if p.ExecID == id {
			if last = p; want(p) {
				return found
			}
		}
		return nil
	})
	if err != found {
		t.Fatalf("%v; the last record is %+v", err, last)
	}
	return last
}

func ended(p api.Process) bool { return p.State.Ended() }

// output follows a process to its end.
func outputOf(t testing.TB, c *agent.Client, id string, since int64) (out, errs string) {
	t.Helper()
	var b [2]strings.Builder
	err := c.Follow(within(t, time.Minute), id, agent.FollowOptions{Since: since, Follow: true}, func(k agent.Chunk) error {
		if k.Stream == api.Stderr {
			b[1].Write(k.Data)
		} else {
			b[0].Write(k.Data)
		}
		if k.Gap > 0 {
			fmt.Fprintf(&b[0], "[gap %d]", k.Gap)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("follow %s: %v", id, err)
	}
	return b[0].String(), b[1].String()
}

func TestManagedProcess(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("echo out; echo 'an error' >&2; cat; exit 3")
	p.Stdin, p.Spec.Name = []byte("input\n"), "pet"
	r := in.must(t, p)
	if r.ExecID != p.ExecID || !r.Managed || r.Name != "pet" || r.State.Ended() && r.ExitCode == nil || r.PID <= 0 && r.Running {
		t.Fatalf("%+v", r)
	}
	if out, errs := outputOf(t, in.Client, p.ExecID, 0); out != "out\ninput\n" || errs != "an error\n" {
		t.Fatalf("%q, %q", out, errs)
	}
	r = until(t, in.Client, p.ExecID, ended)
	if r.State != api.ProcessExited || r.ExitCode == nil || *r.ExitCode != 3 || r.Running || r.EndedAt == nil || r.Position != 19 ||
		r.LastStderr != "an error" || r.StdinOffset != 6 || r.StdinOpen || r.PID != 0 {
		t.Fatalf("%+v", r)
	}
	// The same again is the same one; another is not.
	again := in.must(t, p)
	if again.State != api.ProcessExited || !again.StartedAt.Equal(r.StartedAt) {
		t.Fatalf("%+v", again)
	}
	p.Spec.Name = "other"
	if _, err := in.StartProcess(t.Context(), p); !errors.Is(err, api.ErrExists) {
		t.Fatal(err)
	}
	if err := in.SignalProcess(t.Context(), p.ExecID, 15, api.ScopeTree, false); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
	if err := in.RemoveProcess(t.Context(), p.ExecID); err != nil {
		t.Fatal(err)
	}
	if err := in.RemoveProcess(t.Context(), p.ExecID); !errors.Is(err, api.ErrNotFound) {
		t.Fatal(err)
	}
	in.must(t, p)
}

func TestStartIsOneHoweverOftenAsked(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("echo $$; sleep 100")
	var wg sync.WaitGroup
	pids := make([]int, 8)
	for i := range pids {
		wg.Go(func() {
			r, err := in.StartProcess(within(t, time.Minute), p)
			if err != nil {
				t.Error(err)
			}
			pids[i] = r.PID
		})
	}
	wg.Wait()
	for _, pid := range pids {
		if pid != pids[0] || pid == 0 {
			t.Fatal(pids)
		}
	}
}

func TestManagedRefusals(t *testing.T) {
	in := boot(t, nil)
	live := managedShell("while :; do echo alive; sleep 0.02; done")
	in.must(t, live)
	port := func(n int) func(*agent.Process) {
		return func(p *agent.Process) { p.Spec.Ready = &api.Readiness{Port: n} }
	}
	for name, c := range map[string]struct {
		change func(*agent.Process)
		code   api.Code
		field  string
	}{
		"missing program": {func(p *agent.Process) { p.Argv = []string{"/no/such"} }, api.CodeCommandNotFound, ""},
		"empty argv":      {func(p *agent.Process) { p.Argv = nil }, api.CodeInvalid, "argv"},
		"cwd":             {func(p *agent.Process) { p.Cwd = "/no/such" }, api.CodeInvalid, "cwd"},
		"restart":         {func(p *agent.Process) { p.Spec.Restart = &api.Restart{Policy: "maybe"} }, api.CodeInvalid, "restart.policy"},
		"negative":        {func(p *agent.Process) { p.Spec.Restart = &api.Restart{BackoffMS: -1} }, api.CodeInvalid, "restart"},
		"on_full":         {func(p *agent.Process) { p.Spec.OnFull = "burst" }, api.CodeInvalid, "on_full"},
		"no condition":    {func(p *agent.Process) { p.Spec.Ready = &api.Readiness{} }, api.CodeInvalid, "ready"},
		"two conditions":  {func(p *agent.Process) { p.Spec.Ready = &api.Readiness{Port: 99, Log: "x"} }, api.CodeInvalid, "ready"},
		"port":            {port(70000), api.CodeInvalid, "ready.port"},
		"regexp":          {func(p *agent.Process) { p.Spec.Ready = &api.Readiness{Log: "("} }, api.CodeInvalid, "ready.log"},
		"path": {func(p *agent.Process) {
			p.Spec.Ready = &api.Readiness{HTTP: &api.HTTPProbe{Port: 80, Path: "/ HTTP/1.1\r\n"}}
		}, api.CodeInvalid, "ready.http.path"},
		"the agent's port": {func(p *agent.Process) { port(in.port)(p) }, api.CodeInvalid, "ready.port"},
		"large stdin":      {func(p *agent.Process) { p.Stdin = make([]byte, 16<<20+1) }, api.CodeTooLarge, "stdin"},
	} {
		p := managedShell(":")
		c.change(&p)
		_, err := in.StartProcess(within(t, time.Minute), p)
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != c.code || e.Field != c.field {
			t.Errorf("%s: %#v", name, err)
		}
	}
	if ps, err := in.Processes(t.Context()); err != nil || len(ps) != 1 || ps[0].State != api.ProcessRunning {
		t.Fatalf("%+v, %v", ps, err)
	}
}

func TestFailingStartsHurtNobody(t *testing.T) {
	in := boot(t, nil)
	var live []agent.Process
	for range 3 {
		p := managedShell("exec cat")
		p.Spec.OpenStdin = true
		in.must(t, p)
		live = append(live, p)
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			p := managedShell("exit 1") // ends at once, again and again
			switch i % 4 {
			case 0:
				p.Argv = []string{"/no/such"}
			case 1:
				p.Argv = nil
			case 2:
				p.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 1, MaxBackoffMS: 5, MaxRestarts: 5}
			}
			_, err := in.StartProcess(within(t, time.Minute), p)
			if i%4 < 2 == (err == nil) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	var worst time.Duration
	for i := range 50 {
		for _, p := range live {
			began := time.Now()
			if _, err := in.WriteStdin(within(t, time.Minute), p.ExecID, int64(i), []byte("x")); err != nil {
				t.Fatal(err)
			}
			worst = max(worst, time.Since(began))
		}
	}
	wg.Wait()
	t.Logf("the slowest write took %v", worst)
	for _, p := range live {
		if r := until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position == 50 }); r.Restarts != 0 || r.State != api.ProcessRunning {
			t.Fatalf("%+v", r)
		}
	}
}

func TestRestart(t *testing.T) {
	in := boot(t, nil)
	count := func(policy api.RestartPolicy, exit string, most int) api.Process {
		p := managedShell("echo run; " + exit)
		p.Spec.Restart = &api.Restart{Policy: policy, BackoffMS: 50, MaxBackoffMS: 100, MaxRestarts: most}
		in.must(t, p)
		r := until(t, in.Client, p.ExecID, ended)
		if out, _ := outputOf(t, in.Client, p.ExecID, 0); out != strings.Repeat("run\n", r.Restarts+1) || r.Position != int64(len(out)) {
			t.Errorf("%s %s: output %q after %d restarts", policy, exit, out, r.Restarts)
		}
		return r
	}
	for _, c := range []struct {
		policy   api.RestartPolicy
		exit     string
		restarts int
		state    api.ProcessState
	}{
		{api.RestartNever, "exit 1", 0, api.ProcessExited},
		{api.RestartOnFailure, "exit 0", 0, api.ProcessExited},
		{api.RestartOnFailure, "exit 2", 3, api.ProcessFailed},
		{api.RestartOnFailure, "kill -SEGV $$", 3, api.ProcessFailed},
		{api.RestartAlways, "exit 0", 3, api.ProcessFailed},
	} {
		r := count(c.policy, c.exit, 3)
		if r.Restarts != c.restarts || r.State != c.state || (c.state == api.ProcessFailed) != (r.Reason != "") {
			t.Errorf("%s %s: %+v", c.policy, c.exit, r)
		}
	}
}

// However short the back-offs are, runs of a moment each are a loop that backs off
// and comes to its end.
func TestShortRunsNeverCountAsSteady(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("sleep 0.1; exit 1")
	p.Spec.Restart = &api.Restart{Policy: api.RestartOnFailure, BackoffMS: 1, MaxBackoffMS: 2, MaxRestarts: 3}
	in.must(t, p)
	if r := until(t, in.Client, p.ExecID, ended); r.State != api.ProcessFailed || r.Restarts != 3 {
		t.Errorf("after runs of fifty back-offs each: %+v", r)
	}
	for _, c := range []struct{ waited, want time.Duration }{
		{time.Millisecond, 10 * time.Second}, {time.Second, 10 * time.Second}, {30 * time.Second, 300 * time.Second},
	} {
		if got := process.Steady(c.waited); got != c.want {
			t.Errorf("a run is steady after %s where the wait before it was %s, want %s", got, c.waited, c.want)
		}
	}
}

// The answer to a start says what will be, not what the moment happens to be.
func TestStartSaysWhetherInputStaysOpen(t *testing.T) {
	in := boot(t, nil)
	for range 50 {
		p := managedShell("exec sleep 600")
		p.Spec.Restart = &api.Restart{Policy: api.RestartAlways}
		if r := in.must(t, p); r.StdinOpen {
			t.Fatalf("the input of a process that gets none: %+v", r)
		}
		p = managedShell("exec cat")
		p.Spec.OpenStdin, p.Spec.Stdin = true, []byte("x")
		if r := in.must(t, p); !r.StdinOpen {
			t.Fatalf("the input of a process that waits for more: %+v", r)
		}
	}
}

func TestSignalEndsTheRestarts(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("trap 'exit 7' TERM; echo up; while :; do sleep 0.02; done")
	p.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 1}
	in.must(t, p)
	// One that a program inside kills comes back.
	first := until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position == 3 })
	in.run(t, fmt.Sprintf("kill -9 %d", first.PID))
	second := until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position == 6 })
	if second.Restarts != 1 || second.PID == first.PID {
		t.Fatalf("%+v", second)
	}
	if err := in.SignalProcess(t.Context(), p.ExecID, int(unix.SIGTERM), api.ScopeProcess, false); err != nil {
		t.Fatal(err)
	}
	if r := until(t, in.Client, p.ExecID, ended); r.State != api.ProcessExited || r.ExitCode == nil || *r.ExitCode != 7 || r.Restarts != 1 {
		t.Fatalf("%+v", r)
	}
	// One that waits to be started again is not.
	p = managedShell("exit 9")
	p.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 3_600_000}
	in.must(t, p)
	until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.State == api.ProcessBackoff })
	if err := in.SignalProcess(t.Context(), p.ExecID, int(unix.SIGUSR1), api.ScopeTree, false); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
	if err := in.SignalProcess(t.Context(), p.ExecID, int(unix.SIGTERM), api.ScopeTree, false); err != nil {
		t.Fatal(err)
	}
	if r := until(t, in.Client, p.ExecID, ended); r.State != api.ProcessExited || *r.ExitCode != 9 {
		t.Fatalf("%+v", r)
	}
}

func TestRestartThatCannotExecute(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	prog := filepath.Join(dir, "prog")
	if err := os.WriteFile(prog, []byte("#!/bin/sh\nrm $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := managedShell("")
	p.Argv = []string{prog}
	p.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 50, MaxRestarts: 2}
	in.must(t, p)
	r := until(t, in.Client, p.ExecID, ended)
	if r.State != api.ProcessFailed || !strings.Contains(r.Reason, "does not exist") || r.Restarts != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestHoldTimers(t *testing.T) {
	in := boot(t, nil)
	if err := in.HoldTimers(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	p := managedShell("exit 1")
	p.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 100, MaxRestarts: 1}
	in.must(t, p)
	x := shell("sleep 100")
	x.Timeout = time.Millisecond
	x.Repeatable = true // so that a call that ended before it began costs nothing
	for begun, wait := false, 300*time.Millisecond; !begun; wait *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := in.Exec(ctx, x)
		cancel()
		if api.CodeOf(err) != api.CodeTimeout || wait > time.Minute {
			t.Fatal(err)
		}
		ps, err := in.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		begun = slices.ContainsFunc(ps, func(r api.Process) bool { return r.ExecID == x.ExecID })
	}
	until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.State == api.ProcessBackoff && r.Restarts == 0 })
	if err := in.HoldTimers(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	until(t, in.Client, p.ExecID, ended)
	for end := time.Now().Add(time.Minute); ; {
		ps, err := in.Processes(t.Context())
		if err != nil || time.Now().After(end) {
			t.Fatal(ps, err)
		}
		if i := len(ps) - 1; !ps[i].Running {
			if !ps[i].TimedOut {
				t.Fatalf("%+v", ps[i])
			}
			return
		}
	}
}

func TestTheTreeIsRemoved(t *testing.T) {
	in := boot(t, withGroups(t))
	p := managedShell("sleep 1000 & (setsid sleep 1001 &); echo up; wait")
	in.must(t, p)
	until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Position > 0 })
	if err := in.RemoveProcess(within(t, time.Minute), p.ExecID); err != nil {
		t.Fatal(err)
	}
	if got := in.run(t, "ps -eo args | grep -c '^sleep 100' || true"); got != "0" {
		t.Fatalf("%s processes are left", got)
	}
	// What outlives its program is in its tree still.
	p = managedShell("(setsid sleep 1002 &) ; echo up")
	in.must(t, p)
	until(t, in.Client, p.ExecID, ended)
	if err := in.SignalProcess(t.Context(), p.ExecID, 9, api.ScopeTree, false); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); in.run(t, "ps -eo args | grep -c '^sleep 100' || true") != "0"; {
		if time.Now().After(end) {
			t.Fatal("it is there still")
		}
	}
	if err := in.SignalProcess(t.Context(), p.ExecID, 9, api.ScopeTree, false); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
}

func TestTerminateEndsManagedProcesses(t *testing.T) {
	in := boot(t, nil)
	again := managedShell("trap 'exit 4' TERM; echo up; while :; do sleep 0.02; done")
	again.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 1}
	waits := managedShell("exit 1")
	waits.Spec.Restart = &api.Restart{Policy: api.RestartAlways, BackoffMS: 3_600_000}
	in.must(t, again)
	in.must(t, waits)
	until(t, in.Client, again.ExecID, func(r api.Process) bool { return r.Position > 0 })
	until(t, in.Client, waits.ExecID, func(r api.Process) bool { return r.State == api.ProcessBackoff })
	if err := in.Terminate(within(t, time.Minute), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	ps, err := in.Processes(t.Context())
	if err != nil || len(ps) != 2 || ps[0].State != api.ProcessExited || *ps[0].ExitCode != 4 || ps[1].State != api.ProcessExited {
		t.Fatalf("%+v, %v", ps, err)
	}
	if _, err := in.StartProcess(t.Context(), managedShell(":")); api.CodeOf(err) != api.CodeState {
		t.Fatal(err)
	}
}

// startMany starts so many, four at a time.
func (in *inside) startMany(t *testing.T, n int, argv ...string) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < n; i += 4 {
				p := managedShell("")
				p.Argv = argv
				if _, err := in.StartProcess(within(t, 60*time.Second), p); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestManagedLimit(t *testing.T) {
	in := boot(t, nil)
	first := in.must(t, managedShell("exec sleep 600"))
	in.startMany(t, process.MaxManaged-1, "/bin/sleep", "600")
	_, err := in.StartProcess(t.Context(), managedShell(":"))
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeNoCapacity || !e.Retryable || e.RetryAfterMS != 1000 || !strings.Contains(e.Message, "live") {
		t.Fatalf("%#v", err)
	}
	if err := in.RemoveProcess(t.Context(), first.ExecID); err != nil {
		t.Fatal(err)
	}
	in.must(t, managedShell(":"))
}

// What has ended does not count, and of that the oldest goes.
func TestEndedManagedAreForgotten(t *testing.T) {
	longtest.Skip(t, "it starts as many processes as are remembered")
	in := boot(t, nil)
	lives := in.must(t, managedShell("exec sleep 600"))
	oldest := in.must(t, managedShell(":"))
	until(t, in.Client, oldest.ExecID, ended)
	in.startMany(t, process.MaxEndedManaged, "/bin/true")
	in.must(t, managedShell(":"))
	for ctx := within(t, time.Minute); ; {
		ps, err := in.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		has := func(id string) bool {
			return slices.ContainsFunc(ps, func(p api.Process) bool { return p.ExecID == id })
		}
		if !has(lives.ExecID) {
			t.Fatal("one that lives is forgotten")
		}
		if len(ps) == process.MaxEndedManaged+1 && !has(oldest.ExecID) {
			return
		}
	}
}

func TestForgetProcess(t *testing.T) {
	in := boot(t, nil)
	start := managedShell("setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!; read -r _")
	start.Spec.OpenStdin = true
	p := in.must(t, start)
	if err := in.ForgetProcess(t.Context(), p.ExecID); api.CodeOf(err) != api.CodeState {
		t.Fatalf("forget one that runs: %v", err)
	}
	if _, err := in.WriteStdin(t.Context(), p.ExecID, -1, []byte("\n")); err != nil {
		t.Fatal(err)
	}
	until(t, in.Client, p.ExecID, ended)
	out, _ := outputOf(t, in.Client, p.ExecID, 0)
	if err := in.ForgetProcess(t.Context(), p.ExecID); err != nil {
		t.Fatal(err)
	}
	if err := in.ForgetProcess(t.Context(), p.ExecID); !errors.Is(err, api.ErrNotFound) {
		t.Fatalf("forget it again: %v", err)
	}
	if got := in.run(t, "kill -0 "+strings.TrimSpace(out)+" && echo lives"); got != "lives" {
		t.Fatalf("what it left running: %q", got)
	}
}

func TestOldAgentIsAdopted(t *testing.T) {
	in := boot(t, func(_ *agent.Config, cmd *execCmd) { cmd.Env = append(cmd.Env, onlyVersion1+"=1") })
	if in.Version() != 1 {
		t.Fatal(in.Version())
	}
	s := shell("echo works")
	s.Repeatable = true // counts for nothing with this one, and hurts nothing
	r, err := in.Exec(t.Context(), s)
	if err != nil || string(r.Stdout) != "works\n" {
		t.Fatal(r, err)
	}
	if _, err := in.Exec(t.Context(), s); !errors.Is(err, api.ErrExists) {
		t.Fatal(err)
	}
	ps, err := in.Processes(t.Context())
	if err != nil || len(ps) != 1 || ps[0].State != api.ProcessExited {
		t.Fatal(ps, err)
	}
	_, start := in.StartProcess(t.Context(), managedShell(":"))
	_, write := in.WriteStdin(t.Context(), s.ExecID, 0, []byte("x"))
	_, dial := in.DialPort(t.Context(), 80)
	for i, err := range []error{
		start, write, dial,
		in.WatchProcesses(t.Context(), nil), in.Follow(t.Context(), s.ExecID, agent.FollowOptions{}, nil), in.CloseStdin(t.Context(), s.ExecID),
		in.Resize(t.Context(), s.ExecID, 1, 1), in.SignalProcess(t.Context(), s.ExecID, 9, api.ScopeGroup, false), in.RemoveProcess(t.Context(), s.ExecID), in.HoldTimers(t.Context(), true),
	} {
		if api.CodeOf(err) != api.CodeUnsupported {
			t.Errorf("%d: %v", i, err)
		}
	}
}
