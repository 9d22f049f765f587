//go:build linux

package gvisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// instance is one sandbox.
type instance struct {
	e      *Engine
	rec    record
	state  []byte
	sentry *pidfd.Process
	gofer  *pidfd.Process // nil without mounts
	ctl    *control
	group  *cgroup.Group
	brake  *sentryBrake

	crash *os.File // what the sentry writes when it crashes; nil if recovered

	reports *reports // nil without rules

	// first and spare are the connections that the agent was born with, for the
	// first two Dials. They are sockets of the host and need no network stack.
	bornLock    sync.Mutex
	first, warm net.Conn
	expiry      *time.Timer

	driving sync.Mutex    // held by Pause and Resume
	ending  chan struct{} // closed when Close begins
	closing sync.Mutex
	closed  bool
	asked   atomic.Bool   // Close was called: the death is no surprise
	buried  chan struct{} // closed when the watch over both processes has ended
	last    engine.Ending // set before buried is closed
}

var (
	_ engine.Instance   = (*instance)(nil)
	_ engine.Statter    = (*instance)(nil)
	_ engine.Pauser     = (*instance)(nil)
	_ engine.RootWriter = (*instance)(nil)
	_ engine.Mortal     = (*instance)(nil)
	_ engine.Refuser    = (*instance)(nil)
	_ engine.FileHolder = (*instance)(nil)
	_ engine.Stoppable  = (*instance)(nil)
)

// init makes it an instance; its processes are there. The state is what was
// recorded of it, by this build or an earlier one.
func (i *instance) init(e *Engine, rec record, state []byte, g *cgroup.Group) {
	i.e, i.rec, i.group = e, rec, g
	i.state = state
	i.ctl = &control{path: filepath.Join(rec.Dir, controlSocket)}
	i.brake = &sentryBrake{i: i, mark: filepath.Join(rec.Dir, markFile)}
	i.ending = make(chan struct{})
	i.buried = make(chan struct{})
	go i.watch()
}

// watch lets neither process live without the other: without its gofer a
// sandbox would answer every access to a mount with an error.
func (i *instance) watch() {
	defer close(i.buried)
	var goferDone <-chan struct{} // never ready without a gofer
	if i.gofer != nil {
		goferDone = i.gofer.Done()
	}
	who, first := "its sentry", i.sentry
	select {
	case <-i.sentry.Done():
	case <-goferDone:
		who, first = "its gofer", i.gofer
		i.kill()
		<-i.sentry.Done()
	}
	if i.gofer != nil {
		i.gofer.Kill()
	}
	i.last = engine.Ending{LastWords: brief(lastWords(i.crash))}
	if how := first.How(); how != "" {
		i.last.How = who + " " + how
	}
	if !i.asked.Load() {
		i.e.log.Warn("sandbox died", "sandbox", i.rec.ID, "how", i.last.How, "sentry", i.last.LastWords)
	}
}

// Ending implements engine.Mortal.
func (i *instance) Ending() engine.Ending {
	<-i.buried // follows the death at once
	return i.last
}

// Stopped implements engine.Stoppable.
func (i *instance) Stopped() (names []string) {
	if i.sentry.Stopped() {
		names = append(names, "sentry")
	}
	if i.gofer != nil && i.gofer.Stopped() {
		names = append(names, "gofer")
	}
	return names
}

// brief keeps the begin and the end of what a process said last: a crash names
// its cause first and its place last.
func brief(words string) string {
	const half = 2 << 10
	if len(words) > 2*half {
		words = words[:half] + "\n[...]\n" + words[len(words)-half:]
	}
	return strings.ToValidUTF8(words, "?")
}

// kill makes both processes die. Nothing of the sandbox runs any more, not even
// when it was paused.
func (i *instance) kill() {
	i.sentry.Kill()
	if i.gofer != nil {
		i.gofer.Kill()
	}
}

// State implements engine.Instance.
func (i *instance) State() []byte { return i.state }

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.sentry.Done() }

// Dial implements engine.Instance: the sentry connects one end of a socket pair
// to the agent's port. No other port is ever asked for: a hostile listener
// could hold up the control server.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	if i.sentry.Dead() {
		return nil, api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it is dead", i.rec.ID)
	}
	if i.brake.held() {
		return nil, api.Errorf(api.CodeState, "dial sandbox %s: it is paused", i.rec.ID).WithHint("resume it")
	}
	if conn := i.takeBorn(); conn != nil {
		return held{conn}, nil
	}
	conn, err := i.forward(ctx)
	if err != nil {
		return nil, i.dialError(ctx, err)
	}
	return held{conn}, nil
}

// held is a connection that the sentry carries, which may keep what arrives until more
// does.
type held struct{ net.Conn }

// HoldsBack says so to who uses it.
func (held) HoldsBack() {}

// forward opens a stream to the agent by a call of the sentry.
func (i *instance) forward(ctx context.Context) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "dial sandbox %s: %w", i.rec.ID, err)
	}
	defer ours.Close()
	defer theirs.Close()
	err = i.ctl.call(ctx, boot.ContMgrPortForward, &boot.PortForwardOpts{
		FilePayload: urpc.FilePayload{Files: []*os.File{theirs}},
		ContainerID: i.rec.ID,
		Port:        uint16(i.rec.Port),
	}, nil)
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "dial sandbox %s: %w", i.rec.ID, err)
	}
	return conn, nil
}

// firstLife is how long the first connection waits to be taken: less than the
// agent waits for a stranger's token. The spare one waits for as long as it takes.
const firstLife = 3 * time.Second

func (i *instance) keepBorn(first, warm net.Conn) {
	i.bornLock.Lock()
	defer i.bornLock.Unlock()
	i.first, i.warm = first, warm
	i.expiry = time.AfterFunc(firstLife, i.dropFirst)
}

// takeBorn returns each connection once, and nil ever after.
func (i *instance) takeBorn() net.Conn {
	i.bornLock.Lock()
	defer i.bornLock.Unlock()
	conn := i.first
	if conn != nil {
		i.first = nil
		i.expiry.Stop()
		return conn
	}
	conn, i.warm = i.warm, nil
	return conn
}

func (i *instance) dropFirst() {
	i.bornLock.Lock()
	defer i.bornLock.Unlock()
	if i.first != nil {
		i.first.Close()
		i.first = nil
	}
}

// dropBorn closes the connections that no caller took.
func (i *instance) dropBorn() {
	for conn := i.takeBorn(); conn != nil; conn = i.takeBorn() {
		conn.Close()
	}
}

func (i *instance) dialError(ctx context.Context, err error) error {
	if ours, ok := errors.AsType[*api.Error](err); ok {
		return ours
	}
	switch {
	case i.sentry.Dead():
		return api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it died", i.rec.ID).WithCause(err)
	case errors.Is(ctx.Err(), context.Canceled):
		return api.Errorf(api.CodeCanceled, "dial sandbox %s: canceled", i.rec.ID).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		e := api.Errorf(api.CodeTimeout, "dial sandbox %s: no answer in time", i.rec.ID).WithCause(err)
		e.Retryable = true
		return e
	}
	e := api.Errorf(api.CodeUnavailable, "dial sandbox %s: the agent does not listen", i.rec.ID).WithCause(err)
	e.Retryable = true
	return e
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.closing.Lock()
	defer i.closing.Unlock()
	i.dropBorn()
	if i.closed {
		return nil
	}
	ctx, cancel := withTimeout(ctx, killTimeout)
	defer cancel()
	i.end()
	i.kill()
	if err := i.sentry.Wait(ctx); err != nil {
		return i.closeError(api.ResourceProcesses, "wait for the sentry", err)
	}
	if i.gofer != nil {
		if err := i.gofer.Wait(ctx); err != nil {
			return i.closeError(api.ResourceProcesses, "wait for the gofer", err)
		}
	}
	<-i.buried // both are dead
	i.ctl.close()
	if err := i.group.Remove(ctx); err != nil {
		return i.closeError(api.ResourceCgroup, "remove its cgroup", err)
	}
	i.driving.Lock() // its holder sees that it ended, and notes nothing more
	removeFiles(i.rec.Dir)
	i.driving.Unlock()
	i.e.records.Remove(i.rec)
	i.sentry.Close()
	if i.gofer != nil {
		i.gofer.Close()
	}
	if i.crash != nil {
		i.crash.Close()
	}
	if i.reports != nil {
		i.reports.close()
	}
	i.closed = true
	return nil
}

// end says once that Close has begun.
func (i *instance) end() {
	if !i.asked.Swap(true) {
		close(i.ending)
	}
}

func (i *instance) closeError(left api.ResourceKind, what string, err error) error {
	e := api.Errorf(api.CodeInternal, "close sandbox %s: %s: %w", i.rec.ID, what, &engine.CloseError{Kind: left, Err: err})
	e.Retryable = true
	return e
}

// Stat implements engine.Statter.
func (i *instance) Stat(context.Context) (engine.Stat, error) {
	s, err := i.group.Stat()
	if err != nil {
		return engine.Stat{}, api.Errorf(api.CodeUnsupported, "stat sandbox %s: %w", i.rec.ID, err)
	}
	return s, nil
}

// FileHolders implements engine.FileHolder: the gofer opens the files of the mounts, and
// the sentry has them for all that runs inside.
func (i *instance) FileHolders(context.Context) ([]int, error) {
	pids := []int{i.sentry.ID.PID}
	if i.gofer != nil {
		pids = append(pids, i.gofer.ID.PID)
	}
	return pids, nil
}
