//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// The subjects of the group process.
const (
	attachFirst   = "attach, first byte"
	oneFollower   = "line to 1 follower"
	manyFollowers = "line to 200 followers"
	manyBare      = "line to 200 bare sockets"
	bigStream     = "stream of 256 MB"
	smallWrites   = "256 MB in writes of 8 KiB"
	pipeInside    = "pipe inside, 256 MB"
	smallInside   = "pipe inside, writes of 8 KiB"
	reconcile     = "restart with 50 sandboxes"
)

// The programs that write 256 MB: in pieces of a size that programs which copy
// use, and in small ones.
const (
	bulk   = "dd if=/dev/zero bs=64k count=4096 status=none"
	choppy = "head -c 268435456 /dev/zero"
)

const (
	followers    = 200
	calm         = 20 * time.Millisecond
	streamBytes  = 256 << 20
	reconciled   = 50
	reconcileRow = 3
)

// process measures managed processes: coming back to one, following one with
// many, taking a flood out of one, and finding fifty sandboxes again.
func (b *bench) process(ctx context.Context) (err error) {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	if p.app == nil {
		return nil
	}
	sb, err := p.app.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
	if _, err := sb.StartProcess(ctx, api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "echo", Argv: []string{"cat"}}, OpenStdin: true}); err != nil {
		return err
	}
	if _, err := sb.WriteStdin(ctx, "echo", nil, newLine(), false); err != nil {
		return err
	}
	subjects := []subject{
		{name: attachFirst, how: "attach to a running process, until the first byte that it wrote before", row: execRow, run: func(ctx context.Context) (measure, error) {
			return attachFirstByte(ctx, sb)
		}},
		{name: oneFollower, how: "a line of input to `cat` until it is back at a follower", row: execRow, run: lineTo(sb, 1)},
		{name: manyFollowers, how: "the same, until it is back at the median of 200 followers", row: execRow, run: lineTo(sb, followers)},
		{name: manyBare, how: "floor: the same as to 1 follower, and then a bare write to each of 200 unix sockets, until the median of 200 readers has it", row: execRow, run: bareFollowers(sb)},
		{name: bigStream, how: "output of `" + bulk + "`, read to its end by one client", run: func(ctx context.Context) (measure, error) {
			return flood(ctx, sb, bulk)
		}},
		{name: smallWrites, how: "the same of `" + choppy + "`, which writes 8 KiB at a time", run: func(ctx context.Context) (measure, error) {
			return flood(ctx, sb, choppy)
		}},
		{name: pipeInside, how: "floor: `" + bulk + "` into `cat` inside, whose output is not read", run: func(ctx context.Context) (measure, error) {
			return inside(ctx, sb, bulk)
		}},
		{name: smallInside, how: "floor: `" + choppy + "` into `cat` inside", run: func(ctx context.Context) (measure, error) {
			return inside(ctx, sb, choppy)
		}},
	}
	series, err := rounds(ctx, b.n, subjects, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	again, err := rounds(ctx, reconcileRow, []subject{{
		name: reconcile, how: "the daemon is killed and started again, until it serves, with 50 gVisor sandboxes adopted",
		run: func(ctx context.Context) (measure, error) { return b.reconcile(ctx) },
	}}, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, again...)
	b.report.judge(goals())
	return b.endFifty(ctx)
}

// endFifty removes what reconcile left for its next round.
func (b *bench) endFifty(ctx context.Context) (err error) {
	if _, err := b.serveFifty(ctx); err != nil {
		return err
	}
	c, err := client.New(client.Options{Host: b.fifty()})
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.List(ctx, api.ListOptions{Limit: 2 * reconciled})
	for _, sb := range list.Sandboxes {
		err = errors.Join(err, c.Remove(ctx, sb.ID))
	}
	return err
}

// fifty is where the daemon of reconcile listens.
func (b *bench) fifty() string { return "unix://" + filepath.Join(b.dir, "fifty.sock") }

func (b *bench) serveFifty(ctx context.Context) (*exec.Cmd, error) {
	cmd := command(context.WithoutCancel(ctx), b.bin, "serve", "--home", filepath.Join(b.dir, "fifty"), "--listen", b.fifty())
	return cmd, startAndWait(cmd, "msg=serving", b)
}

func newLine() io.Reader { return strings.NewReader("a line\n") }

func attachFirstByte(ctx context.Context, sb *client.Sandbox) (measure, error) {
	began := time.Now()
	a, err := sb.Attach(ctx, "echo", api.AttachRequest{Since: new(int64(-1))})
	if err != nil {
		return measure{}, err
	}
	defer a.Close()
	_, err = nextByte(a)
	return measure{First: time.Since(began)}, err
}

// nextByte waits for output and returns where it ends.
func nextByte(a *client.Attachment) (int64, error) {
	for {
		ev, err := a.Recv()
		if err != nil {
			return 0, err
		}
		if len(ev.Data) > 0 {
			return ev.Position + int64(len(ev.Data)), nil
		}
	}
}

// lineTo is how long a line takes to a process and back to the median of n
// followers.
func lineTo(sb *client.Sandbox, n int) func(context.Context) (measure, error) {
	return func(ctx context.Context) (measure, error) {
		all := make([]*client.Attachment, n)
		for i := range all {
			a, err := sb.Attach(ctx, "echo", api.AttachRequest{})
			if err != nil {
				return measure{}, err
			}
			defer a.Close()
			all[i] = a
		}
		// The first line is for everybody to be up and waiting for the second, whose
		// time would otherwise have the making of two hundred connections in it.
		if _, err := toAll(ctx, sb, all); err != nil {
			return measure{}, err
		}
		return toAll(ctx, sb, all)
	}
}

// toAll is how long a line takes to the process and back to the median of all,
// which are waiting for it.
func toAll(ctx context.Context, sb *client.Sandbox, all []*client.Attachment) (measure, error) {
	took, errs := make([]float64, len(all)), make([]error, len(all))
	var wg, up sync.WaitGroup
	var began atomic.Pointer[time.Time]
	up.Add(len(all))
	for i, a := range all {
		wg.Go(func() {
			up.Done()
			_, errs[i] = nextByte(a)
			if at := began.Load(); at != nil {
				took[i] = float64(time.Since(*at))
			}
		})
	}
	up.Wait()
	time.Sleep(calm) // the followers wait in a read by then
	began.Store(new(time.Now()))
	_, err := sb.WriteStdin(ctx, "echo", nil, newLine(), false)
	if err != nil {
		for _, a := range all {
			a.Close()
		}
	}
	wg.Wait()
	return measure{Total: time.Duration(median(took))}, errors.Join(append(errs, err)...)
}

// inside is a program that writes into another one in the sandbox.
func inside(ctx context.Context, sb *client.Sandbox, program string) (measure, error) {
	began := time.Now()
	res, err := sb.Shell(ctx, program+" | cat >/dev/null")
	if err == nil && !res.OK() {
		err = fmt.Errorf("the pipe ended with status %d", res.ExitStatus())
	}
	return measure{Total: time.Since(began)}, err
}

// flood reads all that a process writes as fast as it can.
func flood(ctx context.Context, sb *client.Sandbox, program string) (m measure, err error) {
	id := api.NewID("flood-")
	began := time.Now()
	spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: id, Shell: program}, OnFull: api.OnFullBlock}
	if _, err := sb.StartProcess(ctx, spec); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, sb.RemoveProcess(context.WithoutCancel(ctx), id)) }()
	a, err := sb.Attach(ctx, id, api.AttachRequest{Since: new(int64(0))})
	if err != nil {
		return m, err
	}
	defer a.Close()
	var got int64
	for {
		ev, err := a.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, err
		}
		got += int64(len(ev.Data))
		if ev.Gap != nil {
			return m, fmt.Errorf("%d bytes are missing", ev.Gap.Bytes)
		}
	}
	if got != streamBytes {
		return m, fmt.Errorf("%d bytes arrived, want %d", got, int64(streamBytes))
	}
	return measure{Total: time.Since(began)}, nil
}

// reconcile kills a daemon of its own with sandboxes in it, and starts the next.
func (b *bench) reconcile(ctx context.Context) (m measure, err error) {
	first, err := b.serveFifty(ctx)
	if err != nil {
		return m, err
	}
	defer func() {
		if err != nil {
			_ = first.Process.Kill() // the home has one daemon at a time
			_ = first.Wait()
		}
	}()
	c, err := client.New(client.Options{Host: b.fifty()})
	if err != nil {
		return m, err
	}
	defer c.Close()
	list, err := c.List(ctx, api.ListOptions{Limit: 2 * reconciled})
	if err != nil {
		return m, err
	}
	for range reconciled - len(list.Sandboxes) {
		if _, err := c.Create(ctx, api.SandboxSpec{Limits: api.Limits{MemoryBytes: limitMemory, Pids: limitPids}}); err != nil {
			return m, err
		}
	}
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		return m, err
	}
	_ = first.Wait() // it was killed
	began := time.Now()
	second, err := b.serveFifty(ctx)
	if err != nil {
		return m, err
	}
	list, err = c.List(ctx, api.ListOptions{States: []api.State{api.StateRunning}, Limit: 2 * reconciled})
	m.Total = time.Since(began)
	if err == nil && len(list.Sandboxes) != reconciled {
		err = fmt.Errorf("%d of %d sandboxes were found again", len(list.Sandboxes), reconciled)
	}
	// The next round begins with a daemon of its own.
	err = errors.Join(err, second.Process.Signal(syscall.SIGKILL))
	_ = second.Wait()
	return m, err
}

// bareFollowers is what 200 followers cost at the least: one has the line as any
// has it, and the others get it from there over bare sockets, with no frame, no
// log, no HTTP and no daemon between.
func bareFollowers(sb *client.Sandbox) func(context.Context) (measure, error) {
	one := lineTo(sb, 1)
	return func(ctx context.Context) (m measure, err error) {
		first, err := one(ctx)
		if err != nil {
			return m, err
		}
		writers, readers := make([]net.Conn, followers), make([]net.Conn, followers)
		defer func() {
			for _, c := range slices.Concat(writers, readers) {
				if c != nil {
					err = errors.Join(err, c.Close())
				}
			}
		}()
		for i := range writers {
			if writers[i], readers[i], err = socketPair(); err != nil {
				return m, err
			}
		}
		took, errs := make([]time.Duration, followers), make([]error, 2*followers)
		var wg sync.WaitGroup
		var began atomic.Pointer[time.Time]
		for i, c := range readers {
			wg.Go(func() {
				_, errs[i] = c.Read(make([]byte, 64))
				took[i] = time.Since(*began.Load())
			})
		}
		time.Sleep(calm) // they wait in a read by then
		now := time.Now()
		began.Store(&now)
		for i, c := range writers {
			_, errs[followers+i] = c.Write([]byte("a line\n"))
		}
		wg.Wait()
		slices.Sort(took)
		return measure{Total: first.Total + took[followers/2]}, errors.Join(errs...)
	}
}

func socketPair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "bare")
		var ferr error
		conns[i], ferr = net.FileConn(f)
		err = errors.Join(err, ferr, f.Close())
	}
	return conns[0], conns[1], err
}
