//go:build linux

package attack_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
)

const (
	// agentGrace is how long after a timeout the daemon waits for the agent.
	agentGrace = 30 * time.Second
	// agentBound is what the end of a sandbox without its agent may take beyond that:
	// the last question to the agent, the engine's kill, and a slow machine.
	agentBound = 2 * time.Minute
)

// TestAttackDeadline: no timeout, no stop and no removal depends on the agent, on any
// engine. The agent is stopped from outside, which is more than anything inside can do.
func TestAttackDeadline(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64, whose numbers of system calls the attacks have")
	}
	fixture.OnEnginesAnyUser(t, func(t *testing.T, engine string) {
		h, c := attacked(t, client.Options{})
		// They take half a minute each, most of which is the grace: at the same time.
		var wg sync.WaitGroup
		for name, f := range map[string]func(*stuckAgent){
			"running": (*stuckAgent).running, "paused": (*stuckAgent).paused, "removed while paused": (*stuckAgent).removed,
			"stopped in good order": (*stuckAgent).ended, "from inside": (*stuckAgent).fromInside,
		} {
			sb, err := c.Create(t.Context(), api.SandboxSpec{Engine: engine})
			if err != nil && os.Geteuid() != 0 && engine != "gvisor" {
				t.Skipf("needs an engine %s that works for this user: %v", engine, err)
			}
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				t.Run(name, func(t *testing.T) {
					f(newStuckAgent(t, c, sb))
				})
			})
		}
		wg.Wait()
		h.Left()
	})
}

// attacked is a daemon whose sandboxes are attacked from outside, and a client of it.
func attacked(t *testing.T, o client.Options) (*fixture.Fixture, *client.Client) {
	t.Helper()
	h := fixture.New(t)
	o.Host = "unix://" + h.Socket()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return h, c
}

func newStuckAgent(t *testing.T, c *client.Client, sb *client.Sandbox) *stuckAgent {
	t.Helper()
	return &stuckAgent{T: t, c: c, sb: sb, marker: fmt.Sprintf("86400.%09d", rand.IntN(1e9)), gvisor: sb.Engine == "gvisor"}
}

// stuckAgent is a sandbox whose agent answers nothing any more.
type stuckAgent struct {
	*testing.T
	c  *client.Client
	sb *client.Sandbox
	// marker is in the arguments of what the program inside has started.
	marker string
	// gvisor says that the processes inside are none of the host's: the agent is stopped
	// with the whole sentry.
	gvisor bool
	// frozen says that the cgroup of the agent's process is frozen. The sentry of gVisor
	// pauses what it runs, and is not frozen.
	frozen bool
	agent  int
}

// begin starts a program that leaves a process in a session of its own, and waits until
// both run.
func (s *stuckAgent) begin(timeout time.Duration) *client.Stream {
	s.Helper()
	ms := timeout.Milliseconds()
	st, err := s.c.ExecStream(s.Context(), s.sb.ID, api.ExecRequest{
		Argv: []string{"sh", "-c", "setsid sleep " + s.marker + " & echo up; exec sleep " + s.marker}, TimeoutMS: &ms,
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { st.Close() })
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "up\n" {
		s.Fatalf("%q, %v", ev.Data, err)
	}
	return st
}

// stop stops the agent.
func (s *stuckAgent) stop() {
	s.Helper()
	if !fixture.Poll(func() bool { s.agent = s.find(); return s.agent > 1 }) {
		s.Fatalf("the agent is not found among %v", s.processes())
	}
	if err := s.stopAgent(); err != nil {
		s.Fatal(err)
	}
	// An engine that failed to end it would never remove it.
	s.Cleanup(func() {
		for _, p := range s.processes() {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
	})
}

// stopAgent stops the process of the agent. One that its cgroup has frozen takes the signal
// when it is thawed, before it runs again.
func (s *stuckAgent) stopAgent() error {
	if s.frozen {
		return syscall.Kill(s.agent, syscall.SIGSTOP)
	}
	return fixture.StopProcess(s.agent)
}

// find is the agent's number on the host, or 0: the number of the sentry, or of the process
// inside with the number 1, which is above all others. What the sentry starts to run
// programs in has its name and arguments too, and it is above these.
func (s *stuckAgent) find() int {
	all := s.processes()
	sentry := func(p fixture.Process) bool { return strings.HasPrefix(p.Argv, "cloche-sentry ") }
	for _, p := range all {
		if s.gvisor && sentry(p) && !slices.ContainsFunc(all, func(o fixture.Process) bool { return sentry(o) && o.PID == p.Parent }) {
			return p.PID
		}
		for pid := p.PID; !s.gvisor && pid > 1; pid = fixture.ParentOf(fmt.Sprint("/proc/", pid)) {
			if ids := namespaceIDs(pid); len(ids) > 1 && ids[len(ids)-1] == "1" {
				return pid
			}
		}
	}
	return 0
}

// namespaceIDs are the numbers of a process in all its namespaces, the host's first.
func namespaceIDs(pid int) []string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // it may have gone
	_, after, _ := strings.Cut(string(b), "\nNSpid:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.Fields(line)
}

// processes are those of the host that belong to the sandbox.
func (s *stuckAgent) processes() []fixture.Process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []fixture.Process
	for _, dir := range dirs {
		argv, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if bytes.Contains(argv, []byte(s.sb.ID)) || bytes.Contains(argv, []byte(s.marker)) || pid == s.agent {
			found = append(found, fixture.Process{PID: pid, Parent: fixture.ParentOf(dir), Argv: strings.ReplaceAll(strings.TrimRight(string(argv), "\x00"), "\x00", " ")})
		}
	}
	return found
}

// gone waits until no process of the sandbox is there.
func (s *stuckAgent) gone() {
	s.Helper()
	if !fixture.Poll(func() bool { return len(s.processes()) == 0 }) {
		s.Errorf("its processes are there: %v", s.processes())
	}
}

// lost reads the end of a program and of its sandbox, which come by the daemon's deadline.
func (s *stuckAgent) lost(st *client.Stream, begun time.Time, timeout, most time.Duration) {
	s.Helper()
	var end *api.Result
	late := time.AfterFunc(time.Until(begun.Add(most)), func() { st.Close() })
	for end == nil {
		ev, err := st.Recv()
		if err != nil {
			s.Fatalf("after %s, of at most %s: %v", time.Since(begun), most, err)
		}
		end = ev.Exit
	}
	late.Stop()
	took := time.Since(begun)
	if !end.SandboxLost || !strings.Contains(end.Reason, "its agent did not end") {
		s.Errorf("the program ended with %+v", end)
	}
	if took < timeout+agentGrace-time.Second {
		s.Errorf("it ended after %s: an agent that is slow is not one that is lost", took)
	}
	s.Logf("it ended %s after its timeout and the grace", took-timeout-agentGrace)
	s.gone()
	if !fixture.Poll(func() bool {
		sb, err := s.c.Get(s.Context(), s.sb.ID)
		return err == nil && sb.State == api.StateLost && strings.Contains(sb.Reason, "its agent did not end")
	}) {
		sb, err := s.c.Get(s.Context(), s.sb.ID)
		s.Errorf("the sandbox is not lost for that reason: %+v, %v", sb, err)
	}
	_, err := s.c.Exec(s.Context(), s.sb.ID, api.ExecRequest{Argv: []string{"true"}})
	if !strings.Contains(fmt.Sprint(err), "is lost") {
		s.Errorf("an exec in what is lost: %v", err)
	}
	s.remove()
}

func (s *stuckAgent) remove() {
	s.Helper()
	if err := s.c.Remove(s.Context(), s.sb.ID); err != nil {
		s.Error(err)
	}
}

// running: the timeout of a program holds.
func (s *stuckAgent) running() {
	const timeout = 2 * time.Second
	begun := time.Now()
	st := s.begin(timeout)
	s.stop()
	s.lost(st, begun, timeout, timeout+agentGrace+agentBound)
}

// pause pauses the sandbox, or skips where its engine cannot.
func (s *stuckAgent) pause() {
	s.Helper()
	if _, err := s.c.Pause(s.Context(), s.sb.ID); errors.Is(err, api.ErrUnsupported) {
		s.remove()
		s.Skipf("needs an engine that can pause a sandbox: %v", err)
	} else if err != nil {
		s.Fatal(err)
	}
	s.frozen = !s.gvisor
}

// paused: it holds after a pause in which the agent was lost. A sentry that does not
// answer cannot be resumed: nothing runs in it, and it can be removed.
func (s *stuckAgent) paused() {
	const timeout = 5 * time.Second
	begun := time.Now()
	st := s.begin(timeout)
	s.pause()
	s.stop()
	still := time.Now()
	_, err := s.c.Resume(s.Context(), s.sb.ID)
	if !s.gvisor {
		if err != nil {
			s.Error(err)
		}
		s.lost(st, begun, timeout, time.Since(begun)+timeout+agentGrace+agentBound)
		return
	}
	if took := time.Since(still); err == nil || took > agentBound {
		s.Errorf("the resume of a sentry that is stopped: after %s %v", took, err)
	}
	s.remove()
	s.gone()
}

// removed: a paused sandbox is removed without its agent.
func (s *stuckAgent) removed() {
	s.begin(time.Hour)
	s.pause()
	s.stop()
	begun := time.Now()
	s.remove()
	if took := time.Since(begun); took > agentBound {
		s.Errorf("the removal took %s", took)
	}
	s.gone()
}

// ended: a graceful stop does not wait longer than its grace and its calls.
func (s *stuckAgent) ended() {
	s.begin(time.Hour)
	s.stop()
	begun, grace := time.Now(), int64(1000)
	if sb, err := s.c.Stop(s.Context(), s.sb.ID, api.StopOptions{GraceMS: &grace}); err != nil || sb.State != api.StateStopped {
		s.Errorf("%+v, %v", sb, err)
	}
	if took := time.Since(begun); took > agentBound {
		s.Errorf("the stop took %s", took)
	}
	s.gone()
	s.remove()
}

// agentAttacks are what a program tries as uid 0 on the threads of its agent. What only
// slows the agent is tried and not asked about: the timeout says whether it did.
const agentAttacks = `
def attack():
    for tid in sorted({1, *(int(t) for t in os.listdir("/proc/1/task"))}):
        for what in range(16):
            if call(302, tid, what, struct.pack("QQ", 0, 0), None)[0] == 0: bad("sets the limit", what, "of thread", tid)
        for sig in range(1, 65):
            call(62, tid, sig); call(200, tid, sig); call(234, 1, tid, sig)
        # oom_score_adj is a number without a meaning in gVisor's own kernel.
        for name, value in (() if ENGINE == "gvisor" else (("oom_score_adj", b"1000"), ("oom_score_adj", b"-1000"), ("oom_adj", b"15"))) + ( ("autogroup", b"19"), ("timerslack_ns", b"4000000000000"), ("comm", b"x")):
            if writes(f"/proc/{tid}/{name}", value): bad("writes", name, "of thread", tid)
        call(141, 0, tid, 19) # setpriority
        call(144, tid, 5, struct.pack("i", 0)) # SCHED_IDLE
        call(203, tid, 8, struct.pack("Q", 1)) # one processor
        call(251, 1, tid, 3 << 13) # ioprio_set: idle
        call(101, 16, tid, 0, 0); call(101, 0x4206, tid, 0, 0) # ptrace
        call(279, tid, 0, None, None, None, 0) # move_pages
attack()
subprocess.Popen(["setsid", "sleep", MARKER])
print("up", flush=True)
while True:
    attack()
    for n in range(64):
        if os.fork() == 0: os._exit(0)
        os.wait()
`

// fromInside: root inside cannot keep the agent from a timeout.
func (s *stuckAgent) fromInside() {
	ms := int64(5000)
	begun := time.Now()
	program := fmt.Sprintf("ENGINE, MARKER = %q, %q\n%s%s", s.sb.Engine, s.marker, enginePrelude, agentAttacks)
	r, err := s.c.Exec(s.Context(), s.sb.ID, api.ExecRequest{Argv: []string{"python3", "-c", program}, TimeoutMS: &ms})
	if err != nil {
		s.Fatal(err)
	}
	if !r.TimedOut || r.SandboxLost || string(r.Stdout) != "up\n" {
		s.Errorf("after %s timed out %t, lost %t:\n%s%s", time.Since(begun), r.TimedOut, r.SandboxLost, r.Stdout, r.Stderr)
	}
	if r, err = s.c.Exec(s.Context(), s.sb.ID, api.ExecRequest{Argv: []string{"sh", "-c", "grep -l '" + s.marker[:5] + "[.]" + s.marker[6:] + "' /proc/[0-9]*/cmdline; echo alive"}}); err != nil || string(r.Stdout) != "alive\n" {
		s.Errorf("what was begun is there, or the agent is not: %v\n%s", err, r.Stdout)
	}
	s.remove()
	s.gone()
}
