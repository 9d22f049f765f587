//go:build linux

package gvisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
)

// instance is one sandbox.
type instance struct {
	e      *Engine
	rec    record
	state  []byte
	sentry *process
	gofer  *process // nil without mounts
	ctl    *control
	group  *group

	crash *os.File // what the sentry writes when it crashes; nil if recovered

	// first is the connection that the agent was born with, for the first Dial. It
	// is a socket of the host's and needs no network stack on its way.
	firstLock sync.Mutex
	first     net.Conn
	expiry    *time.Timer

	closing sync.Mutex
	closed  bool
	asked   atomic.Bool   // Close was called: the death is no surprise
	buried  chan struct{} // closed when the watch over both processes has ended
}

var (
	_ engine.Instance = (*instance)(nil)
	_ engine.Statter  = (*instance)(nil)
)

func (i *instance) init(e *Engine, rec record, g *group) {
	i.e, i.rec, i.group = e, rec, g
	i.state = rec.encode()
	i.ctl = &control{path: filepath.Join(rec.Dir, controlSocket)}
	i.buried = make(chan struct{})
	go i.watch()
}

// watch lets neither process live without the other: without its gofer a
// sandbox would answer every access to a mount with an error.
func (i *instance) watch() {
	defer close(i.buried)
	var goferDone chan struct{} // never ready without a gofer
	if i.gofer != nil {
		goferDone = i.gofer.done
	}
	select {
	case <-i.sentry.done:
	case <-goferDone:
		i.sentry.kill()
		<-i.sentry.done
	}
	if i.gofer != nil {
		i.gofer.kill()
	}
	if !i.asked.Load() {
		i.e.log.Warn("sandbox died", "sandbox", i.rec.ID, "sentry", lastWords(i.crash))
	}
}

// State implements engine.Instance.
func (i *instance) State() []byte { return i.state }

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.sentry.done }

// Dial implements engine.Instance: the sentry connects one end of a socket pair
// to the agent's port. No other port is ever asked for: a hostile listener
// could hold up the control server.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	if i.sentry.dead() {
		return nil, cloche.Errorf(cloche.CodeSandboxLost, "dial sandbox %s: it is dead", i.rec.ID)
	}
	if conn := i.takeFirst(); conn != nil {
		return conn, nil
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, cloche.Errorf(cloche.CodeInternal, "dial sandbox %s: %w", i.rec.ID, err)
	}
	defer ours.Close()
	defer theirs.Close()
	err = i.ctl.call(ctx, boot.ContMgrPortForward, &boot.PortForwardOpts{
		FilePayload: urpc.FilePayload{Files: []*os.File{theirs}},
		ContainerID: i.rec.ID,
		Port:        uint16(i.rec.Port),
	}, nil)
	if err != nil {
		return nil, i.dialError(ctx, err)
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, cloche.Errorf(cloche.CodeInternal, "dial sandbox %s: %w", i.rec.ID, err)
	}
	return conn, nil
}

// firstLife is how long the first connection waits to be taken: less than the
// agent waits for a stranger's token.
const firstLife = 3 * time.Second

func (i *instance) keepFirst(conn net.Conn) {
	i.firstLock.Lock()
	defer i.firstLock.Unlock()
	i.first = conn
	i.expiry = time.AfterFunc(firstLife, i.dropFirst)
}

// takeFirst returns the first connection once, and nil ever after.
func (i *instance) takeFirst() net.Conn {
	i.firstLock.Lock()
	defer i.firstLock.Unlock()
	conn := i.first
	i.first = nil
	if conn != nil {
		i.expiry.Stop()
	}
	return conn
}

func (i *instance) dropFirst() {
	if conn := i.takeFirst(); conn != nil {
		conn.Close()
	}
}

func (i *instance) dialError(ctx context.Context, err error) error {
	switch {
	case i.sentry.dead():
		return cloche.Errorf(cloche.CodeSandboxLost, "dial sandbox %s: it died", i.rec.ID).WithCause(err)
	case errors.Is(ctx.Err(), context.Canceled):
		return cloche.Errorf(cloche.CodeCanceled, "dial sandbox %s: canceled", i.rec.ID).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		e := cloche.Errorf(cloche.CodeTimeout, "dial sandbox %s: no answer in time", i.rec.ID).WithCause(err)
		e.Retryable = true
		return e
	}
	e := cloche.Errorf(cloche.CodeUnavailable, "dial sandbox %s: the agent does not listen", i.rec.ID).WithCause(err)
	e.Retryable = true
	return e
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.closing.Lock()
	defer i.closing.Unlock()
	i.dropFirst()
	if i.closed {
		return nil
	}
	ctx, cancel := withTimeout(ctx, killTimeout)
	defer cancel()
	i.asked.Store(true)
	i.sentry.kill()
	if i.gofer != nil {
		i.gofer.kill()
	}
	if err := i.sentry.wait(ctx); err != nil {
		return i.closeError("wait for the sentry", err)
	}
	if i.gofer != nil {
		if err := i.gofer.wait(ctx); err != nil {
			return i.closeError("wait for the gofer", err)
		}
	}
	<-i.buried // both are dead
	i.ctl.close()
	if err := i.group.remove(ctx); err != nil {
		return i.closeError("remove its cgroup", err)
	}
	removeFiles(i.rec.Dir)
	i.e.records.remove(i.rec)
	i.sentry.close()
	if i.gofer != nil {
		i.gofer.close()
	}
	if i.crash != nil {
		i.crash.Close()
	}
	i.closed = true
	return nil
}

func (i *instance) closeError(what string, err error) error {
	e := cloche.Errorf(cloche.CodeInternal, "close sandbox %s: %s: %w", i.rec.ID, what, err)
	e.Retryable = true
	return e
}

// Stat implements engine.Statter.
func (i *instance) Stat(context.Context) (engine.Stat, error) {
	s, err := i.group.stat()
	if err != nil {
		return engine.Stat{}, cloche.Errorf(cloche.CodeUnsupported, "stat sandbox %s: %w", i.rec.ID, err)
	}
	return s, nil
}

// setOOMScore is best effort: without it the kernel chooses by size.
func setOOMScore(pid, score int) {
	_ = write("/proc/"+strconv.Itoa(pid), "oom_score_adj", strconv.Itoa(score))
}
