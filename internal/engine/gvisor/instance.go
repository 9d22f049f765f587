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
	"time"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// instance is one sandbox.
type instance struct {
	lifecycle.Instance
	e       *Engine
	rec     record
	sentry  *pidfd.Process
	gofer   *pidfd.Process // nil without mounts
	late    *pidfd.Process // the gofer of mounts that came with a claim; nil without
	ctl     *control
	brake   *sentryBrake
	streams streams

	crash *os.File // what the sentry writes when it crashes; nil if recovered

	reports *reports // nil without rules

	// first and spare are the connections that the agent was born with, for the
	// first two Dials. They are sockets of the host and need no network stack.
	bornLock    sync.Mutex
	first, warm net.Conn
	expiry      *time.Timer

	ending chan struct{} // closed when Close begins
	// handed is closed when a booted sandbox has become another instance, which watches the processes.
	handed  chan struct{}
	closing sync.Mutex
	closed  bool
}

var (
	_ engine.Instance       = (*instance)(nil)
	_ engine.Statter        = (*instance)(nil)
	_ engine.Pauser         = (*instance)(nil)
	_ engine.Suspender      = (*instance)(nil)
	_ engine.RootWriter     = (*instance)(nil)
	_ engine.Mortal         = (*instance)(nil)
	_ engine.Refuser        = (*instance)(nil)
	_ engine.FileHolder     = (*instance)(nil)
	_ engine.MemoryReporter = (*instance)(nil)
	_ engine.Stoppable      = (*instance)(nil)
)

// init makes it an instance; its processes are there. The state is what was
// recorded of it, by this build or an earlier one.
func (i *instance) init(e *Engine, rec record, state []byte, g *cgroup.Group) {
	i.Init(rec.ID, state, g, e.log)
	i.e, i.rec = e, rec
	i.ctl = &control{path: filepath.Join(rec.Dir, controlSocket)}
	i.brake = &sentryBrake{i: i, mark: filepath.Join(rec.Dir, markFile)}
	i.ending, i.handed = make(chan struct{}), make(chan struct{})
	go i.watch()
}

// watch lets neither process live without the other: without its gofer a
// sandbox would answer every access to a mount with an error.
func (i *instance) watch() {
	var goferDone, lateDone <-chan struct{} // never ready without a gofer
	if i.gofer != nil {
		goferDone = i.gofer.Done()
	}
	if i.late != nil {
		lateDone = i.late.Done()
	}
	who, first := "its sentry", i.sentry
	select {
	case <-i.sentry.Done():
	case <-goferDone:
		who, first = "its gofer", i.gofer
	case <-lateDone:
		who, first = "its gofer", i.late
	case <-i.handed:
		return
	}
	i.kill()
	<-i.sentry.Done()
	last := engine.Ending{LastWords: brief(lastWords(i.crash))}
	if how := first.How(); how != "" {
		last.How = who + " " + how
	}
	i.Bury(last)
}

// Stopped implements engine.Stoppable.
func (i *instance) Stopped() (names []string) {
	if i.sentry.Stopped() {
		names = append(names, "sentry")
	}
	for _, g := range i.gofers() {
		if g.Stopped() {
			names = append(names, "gofer")
		}
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
	for _, g := range i.gofers() {
		g.Kill()
	}
}

// gofers are the processes that serve its mounts.
func (i *instance) gofers() (all []*pidfd.Process) {
	for _, g := range []*pidfd.Process{i.gofer, i.late} {
		if g != nil {
			all = append(all, g)
		}
	}
	return all
}

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.sentry.Done() }

// Dial implements engine.Instance: the sentry connects one end of a socket pair
// to the agent's port. No other port is ever asked for: a hostile listener
// could hold up the control server.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	if err := i.CheckDial(i.sentry.Dead(), i.brake.held()); err != nil {
		return nil, err
	}
	if conn := i.takeBorn(); conn != nil {
		return i.streams.add(conn), nil
	}
	conn, err := i.stream(ctx)
	if err != nil {
		return nil, i.dialError(ctx, err)
	}
	return conn, nil
}

// stream has the sentry make a connection. If ctx ends before it is made, it is closed then.
func (i *instance) stream(ctx context.Context) (net.Conn, error) {
	if !i.streams.begin() {
		return nil, i.CheckDial(i.sentry.Dead(), true)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	made := make(chan result)
	go func() { // ends with the call of the sentry
		defer i.streams.end()
		calling, cancel := context.WithTimeout(context.WithoutCancel(ctx), forwardTime)
		defer cancel()
		conn, err := i.forward(calling)
		if err == nil {
			conn = i.streams.add(conn)
		}
		select {
		case made <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				conn.Close()
			}
		}
	}()
	select {
	case r := <-made:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// forward opens a stream to the agent by a call of the sentry.
func (i *instance) forward(ctx context.Context) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "dial sandbox %s: %w", i.rec.ID, err)
	}
	defer ours.Close()
	defer theirs.Close()
	err = i.ctl.callLong(ctx, callPortForward, &portForward{
		FilePayload: urpc.FilePayload{Files: []*os.File{theirs}},
		ContainerID: i.rec.container(),
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
	return lifecycle.NotListening(i.rec.ID, err)
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.closing.Lock()
	defer i.closing.Unlock()
	i.dropBorn()
	if i.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lifecycle.KillTimeout)
	defer cancel()
	i.end()
	i.kill()
	if err := i.sentry.Wait(ctx); err != nil {
		return i.CloseError(api.ResourceProcesses, "wait for the sentry", err)
	}
	for _, g := range i.gofers() {
		if err := g.Wait(ctx); err != nil {
			return i.CloseError(api.ResourceProcesses, "wait for the gofer", err)
		}
	}
	<-i.Buried() // both are dead
	i.ctl.close()
	if err := i.Group.Remove(ctx); err != nil {
		return i.CloseError(api.ResourceCgroup, "remove its cgroup", err)
	}
	// A Drive sees that it ended, and notes nothing more.
	_ = i.WhileIdle(func() error { removeFiles(i.rec.Dir); return nil })
	i.e.records.Remove(i.rec)
	i.sentry.Close()
	for _, g := range i.gofers() {
		g.Close()
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
	if !i.Expect(true) {
		close(i.ending)
	}
}

// MemoryParts implements engine.MemoryReporter. The children of a sentry are the stubs that run the programs.
func (i *instance) MemoryParts() api.MemoryParts {
	var gofer int64
	for _, g := range i.gofers() {
		gofer += pidfd.Memory(g.ID.PID)
	}
	return api.MemoryParts{
		SentryBytes:  engine.Known(pidfd.Memory(i.sentry.ID.PID)),
		GoferBytes:   engine.Known(gofer),
		ProgramBytes: engine.Known(pidfd.ChildMemory(i.sentry.ID.PID)),
	}
}

// FileHolders implements engine.FileHolder: the gofer opens the files of the mounts, and
// the sentry has them for all that runs inside.
func (i *instance) FileHolders(context.Context) ([]int, error) {
	pids := []int{i.sentry.ID.PID}
	for _, g := range i.gofers() {
		pids = append(pids, g.ID.PID)
	}
	return pids, nil
}
