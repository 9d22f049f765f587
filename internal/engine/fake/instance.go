//go:build linux

package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
)

// instance is an agent that runs as a process.
type instance struct {
	state
	*process
	m *Machine
	// left is closed when a suspended instance is closed, whose process goes on without it.
	left chan struct{}
	done chan struct{} // when it has left or its process has ended

	mu      sync.Mutex
	timer   *time.Timer
	streams map[*stream]struct{}
	links   []*os.File // both ends of its link
	paused  bool
	calls   Calls
}

// process is an agent. A suspended one belongs to no instance.
type process struct {
	addr  string
	cmd   *exec.Cmd
	ended chan struct{}
	how   string // set before ended is closed
}

var (
	_ engine.Suspender  = (*instance)(nil)
	_ engine.Statter    = (*instance)(nil)
	_ engine.Pauser     = (*instance)(nil)
	_ engine.RootWriter = (*instance)(nil)
	_ engine.Mortal     = (*instance)(nil)
)

// Create implements engine.Engine.
func (e *fakeEngine) Create(ctx context.Context, p engine.Plan) (_ engine.Instance, err error) {
	if p.ID == "" || p.Owner == "" || strings.ContainsAny(p.ID+p.Owner, "/\x00") || p.Agent.Port <= 0 {
		return nil, api.Errorf(api.CodeInternal, "plan: id, owner or port is not usable")
	}
	i := &instance{
		state: state{p.Owner, p.ID}, process: &process{ended: make(chan struct{})}, m: e.m,
		left: make(chan struct{}), done: make(chan struct{}), streams: map[*stream]struct{}{},
	}
	faults := e.m.current()
	if err := faults.at(ctx, i, StepRecord); err != nil {
		return nil, err
	}
	if !e.m.add(i) {
		return nil, api.Errorf(api.CodeExists, "create sandbox: %s exists", p.ID)
	}
	started := false
	defer func() {
		if err == nil {
			return
		}
		if started {
			i.kill()
			<-i.ended
		}
		i.letGo()
		e.m.remove(i)
	}()
	if err := faults.at(ctx, i, StepStart); err != nil {
		return nil, err
	}
	if err := i.hold(p.Link); err != nil {
		return nil, api.Errorf(api.CodeInternal, "create sandbox: %w", err)
	}
	if p.Memory != nil && !e.m.forks(p) {
		started = true
		return i, e.m.wake(i, p)
	}
	port, claim, err := freePort(ctx)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "create sandbox: %w", err)
	}
	defer claim.Close()
	ready, err := i.start(p, port)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "create sandbox: start agent: %w", err)
	}
	defer ready.Close()
	started = true
	if err := faults.at(ctx, i, StepReady); err != nil {
		return nil, err
	}
	if err := waitReady(ctx, ready); err != nil {
		return nil, err
	}
	if faults.Die == StepReady { // it may have said that it is ready before it was killed
		return nil, api.Errorf(api.CodeInternal, "create sandbox: the agent died as it was ready")
	}
	e.m.mu.Lock()
	e.m.created = append(e.m.created, p)
	if over := len(e.m.created) - maxPlans; over > 0 {
		e.m.created = slices.Delete(e.m.created, 0, over)
	}
	e.m.mu.Unlock()
	if faults.DieAfter > 0 {
		i.mu.Lock()
		i.timer = time.AfterFunc(faults.DieAfter, i.kill)
		i.mu.Unlock()
	}
	return i, nil
}

// at is what the faults make of a step.
func (f Faults) at(ctx context.Context, i *instance, s Step) error {
	if f.At != nil {
		f.At(s)
	}
	if f.Die == s {
		i.kill()
	}
	if f.Block == s {
		<-ctx.Done()
	}
	if err := ctx.Err(); err != nil {
		return ended(err, s)
	}
	return errors.Join(f.Create[s], f.Fail[s])
}

func ended(err error, s Step) error {
	if errors.Is(err, context.Canceled) {
		return api.Errorf(api.CodeCanceled, "%s sandbox: %w", s, err)
	}
	return api.Errorf(api.CodeTimeout, "%s sandbox: %w", s, err)
}

func (m *Machine) add(i *instance) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.instances[i.key()] != nil {
		return false
	}
	m.instances[i.key()] = i
	return true
}

func (m *Machine) remove(i *instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.instances[i.key()] == i {
		delete(m.instances, i.key())
	}
}

// start starts the agent on a port of its own.
func (i *instance) start(p engine.Plan, port int) (ready *os.File, err error) {
	i.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	var c agent.Config
	if err := json.Unmarshal(p.Agent.Config, &c); err != nil {
		return nil, err
	}
	// All sandboxes share this machine's ports, cgroups and users.
	c.Port, c.NoCgroup, c.KernelGuardsInit, c.PidsMax, c.Hostname = port, true, true, 0, ""
	c.Confine, c.OwnThreads = false, false
	config, err := c.Marshal()
	if err != nil {
		return nil, err
	}
	configR, configW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer configR.Close()
	_, err = configW.Write(config) // fits into the pipe
	configW.Close()
	if err != nil {
		return nil, err
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyW.Close()
	cmd := &exec.Cmd{Path: i.m.program, Args: p.Agent.Argv, Env: []string{}, Dir: p.Dir}
	if cmd.Path == "" {
		cmd.Path, cmd.Args = "/proc/self/exe", []string{agent.Argv0}
	}
	cmd.ExtraFiles = []*os.File{configR, readyW}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	i.cmd = cmd
	result := make(chan error, 1)
	go i.watch()
	go i.run(result)
	if err := <-result; err != nil {
		readyR.Close()
		return nil, err
	}
	return readyR, nil
}

// run is the life of the process. Its thread is kept for that: the kernel sends
// the parent-death signal when the thread that forked ends.
func (i *instance) run(started chan<- error) {
	runtime.LockOSThread()
	defer close(i.ended)
	defer i.letGo()
	err := i.cmd.Start()
	started <- err
	if err == nil {
		_ = i.cmd.Wait() // it says no more than the state
		i.how = "its agent ended: " + i.cmd.ProcessState.String()
	}
}

// Ending implements engine.Mortal.
func (i *instance) Ending() engine.Ending { return engine.Ending{How: i.how} }

// freePort finds a port for an agent, which listens there a moment later. The kernel does not
// give it to another caller that asks for any port, or to a connection, meanwhile; and
// no other of these engines finds it, in whatever process, until the claim is closed.
func freePort(ctx context.Context) (port int, claim io.Closer, err error) {
	const first, last, tries = 10000, 32000, 50
	var lc net.ListenConfig
	for range tries {
		port := first + rand.IntN(last-first)
		claim, claimed := lc.Listen(ctx, "unix", "@cloche-fake-port-"+strconv.Itoa(port))
		if err = claimed; err != nil {
			continue
		}
		var ln net.Listener
		if ln, err = lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, claim, ln.Close()
		}
		claim.Close()
	}
	return 0, nil, err
}

func waitReady(ctx context.Context, f *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, 512)
	n, err := f.Read(b)
	switch {
	case ctx.Err() != nil:
		return ended(ctx.Err(), StepReady)
	case errors.Is(err, io.EOF):
		return api.Errorf(api.CodeInternal, "create sandbox: the agent ended before it was ready")
	case err != nil:
		return api.Errorf(api.CodeInternal, "create sandbox: %w", err)
	case b[0] >= ' ':
		line, _, _ := strings.Cut(string(b[:n]), "\n")
		return api.Errorf(api.CodeInternal, "create sandbox: the agent said: %q", line)
	}
	return nil
}

// State implements engine.Instance.
func (i *instance) State() []byte {
	b, err := json.Marshal(i.state)
	if err != nil {
		return nil // two strings can be encoded
	}
	return b
}

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Dial implements engine.Instance.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	if err := i.m.current().Dial; err != nil {
		return nil, err
	}
	if err := i.usable("dial"); err != nil {
		return nil, err
	}
	if i.isPaused() {
		return nil, api.Errorf(api.CodeState, "dial sandbox %s: it is paused", i.ID)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", i.addr)
	if err != nil {
		return nil, api.Errorf(api.CodeUnavailable, "dial sandbox %s: %w", i.ID, err)
	}
	return i.track(conn.(*net.TCPConn)), nil
}

// usable is an error when the instance is dead.
func (i *instance) usable(what string) error {
	select {
	case <-i.done:
		return api.Errorf(api.CodeSandboxLost, "%s sandbox %s: it is dead", what, i.ID)
	default:
		return nil
	}
}

// kill kills the agent and what it started: nothing else would, where there is
// neither a pid namespace nor a cgroup.
func (i *instance) kill() {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.left:
		return
	default:
	}
	i.process.kill()
}

func (p *process) kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	// It adopts what its children leave, and forks no more. Once it was reaped its
	// number may be another's.
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return
	}
	// The signal stops the threads one after another. An agent that still runs reports the
	// death of its programs, as if they had been killed alone.
	_ = waitStopped(p.cmd.Process.Pid)
	killBelow(p.cmd.Process.Pid)
	_ = p.cmd.Process.Kill() // dead already is fine
}

// waitStopped waits until a child is stopped or has ended, and leaves its status to be waited for.
func waitStopped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	faults := i.m.current()
	if faults.Close != nil {
		return faults.Close
	}
	if err := faults.at(ctx, i, StepKill); err != nil {
		return &engine.CloseError{Kind: api.ResourceProcesses, Err: err}
	}
	i.mu.Lock()
	if i.timer != nil {
		i.timer.Stop()
	}
	i.mu.Unlock()
	i.leave()
	i.kill()
	select {
	case <-i.done:
	case <-ctx.Done():
		return api.Errorf(api.CodeTimeout, "close sandbox %s: %w", i.ID, ctx.Err())
	}
	if err := faults.at(ctx, i, StepRemove); err != nil {
		return &engine.CloseError{Kind: api.ResourceCgroup, Err: err}
	}
	i.m.remove(i)
	return nil
}

// Stat implements engine.Statter: nothing is counted.
func (i *instance) Stat(context.Context) (engine.Stat, error) { return engine.Stat{}, nil }
