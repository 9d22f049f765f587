//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/claim"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/engine/pool"
)

// pooled is a sentry that has been started and has not been told yet whose it is.
// It lives in the cgroup that is going to be its sandbox's, which has no limits yet.
type pooled struct {
	fits  fit
	proc  *pidfd.Process
	group *cgroup.Group
	conn  *os.File // it ends when this is closed
	crash *os.File // its last words
	hash  string   // of the executable that is kept for it
	log   *slog.Logger
	// settled is closed when its first stub is where stubs belong, or when it ended
	// before; then unsettled says why that is not so.
	settled   chan struct{}
	unsettled error
	// done is closed when it is of no use; nil for one that was started for a sandbox.
	done chan struct{}
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
	p := &pooled{fits: f, group: g, hash: x.hash, log: e.log, settled: make(chan struct{})}
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

// refillPause is how long a new sandbox has the machine for itself before a sentry
// is started for the one after it, or a sandbox is booted.
const refillPause = 150 * time.Millisecond

// sentryPrefix begins the names of the cgroups of parked sentries, which stay what
// they are when the sentry is claimed: a group of version 2 cannot be renamed.
const sentryPrefix = "spare-"

// Done implements pool.Member.
func (p *pooled) Done() <-chan struct{} { return p.done }

// Usable implements pool.Member.
func (p *pooled) Usable() bool { return p.proc.Usable() }

// Memory implements pool.Member.
func (p *pooled) Memory() int64 { return 0 }

// Discard implements pool.Member.
func (p *pooled) Discard() {
	if p.proc.Dead() {
		<-p.settled
		p.log.Warn("a sentry that was kept ready was of no use", "pid", p.proc.ID.PID, "how", p.proc.How(), "error", p.unsettled, "last_words", brief(lastWords(p.crash)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), lifecycle.KillTimeout) //nolint:forbidigo // its caller waits
	defer cancel()
	if err := p.discard(ctx); err != nil {
		p.log.Warn("end a sentry that is not needed", "pid", p.proc.ID.PID, "error", err)
	}
}

// demandSentry asks for one parked sentry.
func (e *Engine) demandSentry(f fit) pool.Demand[*pooled] {
	return pool.Demand[*pooled]{Size: pool.Size{Ceiling: 1}, Make: func(ctx context.Context, name string) (*pooled, error) {
		return e.startAhead(ctx, name, f)
	}}
}

// startAhead starts a sentry for the pool.
func (e *Engine) startAhead(ctx context.Context, name string, f fit) (p *pooled, err error) {
	x := e.executables.open(ctx, f.attached)
	defer x.close()
	g, err := e.groups.Make(f.owner, name)
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
	if err != nil {
		return nil, err
	}
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		if <-p.settled; p.unsettled == nil {
			<-p.proc.Done()
		}
	}()
	return p, nil
}

// Prepare starts the sentry of the next sandbox of this owner, without waiting for
// it: one with that limit of processors, which dies with this process or does not.
func (e *Engine) Prepare(owner string, cpus float64, dieWithParent bool) {
	f := fit{owner: owner, cpus: processors(cpus), attached: dieWithParent}
	e.sentries.Prepare(f, e.demandSentry(f))
}
