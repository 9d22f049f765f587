//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/claim"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// parked is a sentry that has been started and has not been told yet whose it is.
// It lives in the cgroup that is going to be its sandbox's, which has no limits yet.
type pooled struct {
	fits  fit
	proc  *pidfd.Process
	group *cgroup.Group
	conn  *os.File // it ends when this is closed
	crash *os.File // its last words
	hash  string   // of the executable that is kept for it
	// settled is closed when its first stub is where stubs belong, or when it ended
	// before; then unsettled says why that is not so.
	settled   chan struct{}
	unsettled error
	// taken is closed when it has left the pool.
	taken chan struct{}
}

// fit is what a parked sentry must have in common with the sandbox that gets it.
type fit struct {
	owner    string
	cpus     int
	attached bool
}

func fitOf(p engine.Plan) fit {
	return fit{owner: p.Owner, cpus: processors(p.Limits.CPUs), attached: p.DieWithParent}
}

// processors is how many processors of a sandbox are online. With one, some programs
// leave out memory barriers that they need, for threads run at the same time under a
// quota. The agent gives programs an affinity mask of fewer.
func processors(limit float64) int {
	if limit <= 0 {
		return runtime.NumCPU()
	}
	return min(max(int(math.Ceil(limit)), 2), runtime.NumCPU())
}

// startPooled forks a sentry into g. It must be called on the spawner's thread,
// which has entered the group.
func (e *Engine) startPooled(f fit, g *cgroup.Group, x *executable, cgroupFD int) (_ *pooled, err error) {
	p := &pooled{fits: f, group: g, hash: x.hash, settled: make(chan struct{}), taken: make(chan struct{})}
	defer func() {
		if err != nil {
			p.closeFiles()
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	cmd := command{args: []string{early.FirstSentry, strconv.Itoa(f.cpus), strings.Repeat(" ", claim.TitleRoom)}, table: claim.TableSize}
	defer cmd.close()
	cmd.add(os.NewFile(uintptr(fds[1]), "parked"))
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		return nil, os.NewSyscallError("fcntl", err)
	}
	p.conn = os.NewFile(uintptr(fds[0]), "parked")
	var theirs *os.File
	if p.crash, theirs, err = crashFile(); err != nil {
		return nil, err
	}
	cmd.add(theirs)
	cmd.stderr = theirs
	e.isolate(&cmd, x, false, cgroupFD)
	if p.proc, err = cmd.spawn(null); err != nil {
		return nil, fmt.Errorf("start sentry: %w", err)
	}
	// Whatever the sentry forks from now on inherits this: when memory runs out, a
	// stub is killed and not the sentry, which gets its own value back when it has
	// forked the first.
	_ = pidfd.SetOOMScore(p.proc.ID.PID, pidfd.OOMPrograms)
	// Lets the sentry fault in much memory at once by locking it for a moment. Only
	// root can allow it; it is slower otherwise.
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(p.proc.ID.PID, unix.RLIMIT_MEMLOCK, &unlimited, nil)
	go func() {
		defer close(p.settled)
		p.unsettled = p.settle()
	}()
	return p, nil
}

// settle waits until the sentry is parked.
func (p *pooled) settle() error {
	var b [1]byte
	if _, err := p.conn.Read(b[:]); err != nil {
		return sentryError(err)
	}
	_ = pidfd.SetOOMScore(p.proc.ID.PID, pidfd.OOMSandbox())
	// Takes the kernel some milliseconds. No process of a sandbox exists until a
	// claim has been made, and none but the agent until Create has seen this done.
	return adopt(p.group, p.proc.ID.PID)
}

// claim tells the sentry what it is going to be, with the files of cmd.
func (p *pooled) claim(cmd *command, title ...string) error {
	if len(cmd.files) > claim.MaxFiles {
		return api.Errorf(api.CodeInvalid, "create sandbox: its mounts need %d descriptors, and gVisor takes %d", len(cmd.files), claim.MaxFiles).
			WithHint("mount fewer directories, or one that holds them")
	}
	b, err := json.Marshal(claim.Claim{Args: cmd.args, Title: title, Attached: p.fits.attached})
	if err != nil {
		return fmt.Errorf("encode claim: %w", err)
	}
	if len(b) > claim.MaxBytes {
		return api.Errorf(api.CodeInvalid, "create sandbox: its mounts take %d bytes to describe, and %d are allowed", len(b), claim.MaxBytes)
	}
	var fds []int
	for _, f := range cmd.files {
		fds = append(fds, int(pidfd.RawFD(f)))
	}
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), b, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sent, unix.EAGAIN)
	})
	runtime.KeepAlive(cmd)
	if err := errors.Join(err, sent); err != nil {
		return fmt.Errorf("claim sentry: %w", err)
	}
	return nil
}

func (p *pooled) closeFiles() {
	for _, f := range []*os.File{p.conn, p.crash} {
		if f != nil {
			f.Close()
		}
	}
}

// discard ends a sentry that was never claimed and removes its group.
func (p *pooled) discard(ctx context.Context) error {
	p.proc.Kill()
	<-p.settled
	if err := p.proc.Wait(ctx); err != nil {
		return err
	}
	p.proc.Close()
	p.closeFiles()
	return p.group.Remove(ctx)
}

// spares keeps a parked sentry at hand for the next sandbox.
type pool struct {
	e *Engine

	mu     sync.Mutex
	one    *pooled
	making bool
	closed bool
	quit   chan struct{}
	wg     sync.WaitGroup
}

// refillPause is how long a new sandbox has the machine for itself before a sentry
// is started for the one after it.
const refillPause = 150 * time.Millisecond

// warmPrefix begins the names of the cgroups of parked sentries, which stay what
// they are when the sentry is claimed: a group of version 2 cannot be renamed.
const warmPrefix = "spare-"

// take returns a sentry that fits, or nil.
func (s *pool) take(f fit) *pooled {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.one
	if p == nil {
		return nil
	}
	s.one = nil
	if p.fits == f && !p.proc.Dead() && !pidfd.Dying(p.proc.ID.PID) {
		return p
	}
	s.wg.Go(func() { s.drop(p) })
	return nil
}

func (s *pool) drop(p *pooled) {
	ctx, cancel := context.WithTimeout(context.Background(), lifecycle.KillTimeout)
	defer cancel()
	if err := p.discard(ctx); err != nil {
		s.e.log.Warn("end a sentry that is not needed", "pid", p.proc.ID.PID, "error", err)
	}
}

// make starts a sentry after a pause, unless there is one. It does not wait.
func (s *pool) make(f fit, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.making || s.one != nil {
		return
	}
	s.making = true
	s.wg.Go(func() {
		select {
		case <-time.After(pause):
		case <-s.quit:
			return
		}
		p, err := s.e.warm(f)
		if err != nil {
			// Who creates a sandbox next meets the same, and is told.
			s.e.log.Debug("start a sentry beforehand", "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.making = false
		s.one = p
		switch {
		case p == nil:
		case s.closed:
			s.one = nil
			s.wg.Go(func() { s.drop(p) })
		default:
			s.wg.Go(func() { s.watch(p) })
		}
	})
}

// watch removes a sentry from the pool that dies, or that cannot be used.
func (s *pool) watch(p *pooled) {
	select {
	case <-p.settled:
	case <-p.taken:
		return
	}
	if p.unsettled == nil {
		select {
		case <-p.proc.Done():
		case <-p.taken:
			return
		case <-s.quit:
			return
		}
	}
	s.mu.Lock()
	mine := s.one == p
	if mine {
		s.one = nil
	}
	s.mu.Unlock()
	if mine {
		words := brief(lastWords(p.crash))
		s.drop(p)
		s.e.log.Warn("a sentry that was kept ready was of no use", "pid", p.proc.ID.PID, "how", p.proc.How(), "error", p.unsettled, "last_words", words)
	}
}

// holds reports whether the group with this name is a spare's.
func (s *pool) holds(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.making && strings.HasPrefix(name, warmPrefix) ||
		s.one != nil && slices.ContainsFunc(s.one.group.Paths(), func(dir string) bool { return filepath.Base(dir) == name })
}

func (s *pool) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
	if p := s.one; p != nil {
		s.one = nil
		s.wg.Go(func() { s.drop(p) })
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// warm starts a sentry for the pool.
func (e *Engine) warm(f fit) (p *pooled, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lifecycle.BootTimeout)
	defer cancel()
	x := e.executables.open(ctx, f.attached)
	defer x.close()
	g, err := e.groups.Make(f.owner, api.NewID(warmPrefix))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			g.Discard()
		}
	}()
	if err := x.wait(); err != nil {
		return nil, err
	}
	err = e.spawner.Do(ctx, func() error {
		return g.Enter(func(cgroupFD int) (err error) {
			p, err = e.startPooled(f, g, x, cgroupFD)
			return err
		})
	})
	return p, err
}

// Prepare starts the sentry of the next sandbox of this owner, without waiting for
// it: one with that limit of processors, which dies with this process or does not.
func (e *Engine) Prepare(owner string, cpus float64, dieWithParent bool) {
	e.pool.make(fit{owner: owner, cpus: processors(cpus), attached: dieWithParent}, 0)
}
