//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The subjects of the group native.
const (
	nativeCold   = "native engine"
	nativePooled = "native engine, an agent waits"
	nativeEnd    = "end of a native sandbox"
	bwrapSame    = "bwrap, same root"
	nativeExec   = "cloche exec, native"
	nativeFloor  = "floor, beside native"
)

const (
	// waiting is how many agents wait for the subject that has some, as in the daemon.
	waiting = 2
	// makers is how many sandboxes are made at the same time where creates are counted.
	makers = 4
	// idleGoal is what one of a thousand idle sandboxes may take, in MB: 4 GiB for all.
	idleGoal = 4.29
)

// nativeBench is what the group has running.
type nativeBench struct {
	cold, pooled *imageEngine
	image, root  string
	bwrap        string
	floor        func(context.Context) (measure, error)
}

// native compares the engine of the host's own kernel with bubblewrap and with no
// isolation at all, counts how many sandboxes it makes in a second, and weighs idle ones.
func (b *bench) native(ctx context.Context) (err error) {
	app, err := b.daemon(ctx)
	if err != nil {
		return err
	}
	n, err := b.newNative(ctx)
	if err != nil {
		return err
	}
	var stop func(context.Context) error
	if n.floor, stop, err = newFloor(context.WithoutCancel(ctx), filepath.Join(b.dir, "native-floor.sock")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(context.WithoutCancel(ctx))) }()
	sb, err := app.createOn(ctx, "native")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
	subjects := append(n.subjects(), subject{
		name: nativeExec, how: "one call over the unix socket, /bin/true of the host", row: execRow,
		run: func(ctx context.Context) (measure, error) { return app.execTrue(ctx, sb, "/bin/true") },
	})
	series, err := rounds(ctx, b.n, subjects, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	if b.check {
		return nil
	}
	if ends, ok := b.report.find(nativeEnd); ok {
		b.report.Counted = append(b.report.Counted, counted{
			What: fmt.Sprintf("%s, 99 of 100, of %d", nativeEnd, len(ends.TotalMS)), Value: quantile(ends.TotalMS, 0.99), Unit: "ms", Goal: 20,
		})
	}
	b.once("native sandboxes made in a second", func() ([]counted, error) { return b.nativeRate(n.cold, "no agent waits", 250) })
	b.once("native sandboxes made in a second, from a pool", func() ([]counted, error) { return b.nativePool(ctx, n.image) })
	b.once("idle native sandboxes", func() ([]counted, error) { return b.nativeIdle(ctx, n.cold) })
	return ctx.Err()
}

// newNative makes the root, as an image and as a directory, and starts what runs in it.
func (b *bench) newNative(ctx context.Context) (*nativeBench, error) {
	program, err := readBusybox()
	if err != nil {
		return nil, err
	}
	n := &nativeBench{image: filepath.Join(b.dir, "native.erofs"), root: filepath.Join(b.dir, "native-root")}
	if err := errors.Join(writeErofs(n.image, program), writeTree(n.root, program)); err != nil {
		return nil, err
	}
	if n.bwrap, err = findBwrap(ctx, b); err != nil {
		b.missing("bubblewrap", err)
	}
	if n.cold, err = startImageEngine(ctx, b, "native", n.image, "-engine", "native"); err != nil {
		return nil, err
	}
	n.pooled, err = b.newPool(ctx, "native-waiting", n.image, waiting)
	return n, err
}

// newPool starts an engine with so many agents that wait. They begin after its first
// sandbox.
func (b *bench) newPool(ctx context.Context, name, image string, agents int) (*imageEngine, error) {
	e, err := startImageEngine(ctx, b, name, image, "-engine", "native", "-waiting", strconv.Itoa(agents))
	if err != nil {
		return nil, err
	}
	_, err = e.run(word+"\n", "/bin/echo", word)
	return e, err
}

func (n *nativeBench) subjects() []subject {
	said, echo := word+"\n", []string{"/bin/echo", word}
	all := []subject{
		{
			name: nativeCold, how: "engine and agent in a living process, every namespace, cgroups, filter; echo; no agent waits",
			run: func(context.Context) (measure, error) { return n.cold.run(said, echo...) }, also: nativeEnd, alsoHow: "until nothing is left of it",
		},
		{
			name: nativePooled, how: "the same, and an agent waits in namespaces of its own",
			run: func(context.Context) (measure, error) {
				if _, err := n.pooled.ask("ready"); err != nil {
					return measure{}, err
				}
				return n.pooled.run(said, echo...)
			},
		},
		{name: nativeFloor, how: "HTTP over a unix socket, then fork and exec of /bin/true on the host: no isolation", row: execRow, run: n.floor},
	}
	if n.bwrap == "" {
		return all
	}
	return append(all, subject{
		name: bwrapSame, how: "every namespace, no cgroup, no filter; the same files, read-only, as the root; echo",
		run: func(ctx context.Context) (measure, error) {
			return process(ctx, said, nil, append([]string{
				n.bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", n.root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
			}, echo...)...)
		},
	})
}

// nativeRate counts how many sandboxes are made in a second, until their agents answer.
// They are ended afterwards.
func (b *bench) nativeRate(e *imageEngine, how string, least float64) (rows []counted, err error) {
	took, err := e.hold(b.many, makers)
	if err != nil {
		return nil, err
	}
	if _, err := e.ask("drop"); err != nil {
		return nil, err
	}
	// The least is a goal from below, so what is compared is the time for one of them.
	return []counted{
		{What: fmt.Sprintf("%d native sandboxes made, %d at a time, %s", b.many, makers, how), Value: float64(b.many) / took.Seconds(), Unit: "a second"},
		{What: fmt.Sprintf("that is one every (%g a second)", least), Value: took.Seconds() * 1000 / float64(b.many), Unit: "ms", Goal: 1000 / least},
	}, nil
}

// nativePool is nativeRate with as many agents waiting as are going to be asked for. What
// is taken is made again meanwhile, by the same processors.
func (b *bench) nativePool(ctx context.Context, image string) ([]counted, error) {
	e, err := b.newPool(ctx, "native-pool", image, b.many)
	if err != nil {
		return nil, err
	}
	if _, err := e.ask("ready"); err != nil {
		return nil, err
	}
	rows, err := b.nativeRate(e, "an agent waits for each", 500)
	return rows, errors.Join(err, e.stop())
}

// nativeIdle weighs sandboxes that do nothing, by what the machine has less and by their
// processes' share.
func (b *bench) nativeIdle(ctx context.Context, e *imageEngine) (rows []counted, err error) {
	before := availableKiB()
	old, err := nativeProcesses()
	if err != nil {
		return nil, err
	}
	if _, err := e.hold(b.many, makers); err != nil {
		return nil, err
	}
	defer func() {
		_, derr := e.ask("drop")
		err = errors.Join(err, derr)
	}()
	if err := wait(ctx, settle); err != nil {
		return nil, err
	}
	less := float64(before-availableKiB()) * 1024 / 1e6
	all, err := nativeProcesses()
	if err != nil {
		return nil, err
	}
	var pss float64
	processes := 0
	for pid := range all {
		if old[pid] {
			continue
		}
		mb, err := pssMB(pid)
		if err != nil {
			return nil, err
		}
		pss, processes = pss+mb, processes+1
	}
	if processes < b.many {
		return nil, fmt.Errorf("weigh idle sandboxes: %d processes of %d sandboxes were found", processes, b.many)
	}
	n := float64(b.many)
	return []counted{
		// What other programs give back meanwhile would be taken off the first.
		{What: fmt.Sprintf("%d idle native sandboxes: the more of the two below, each", b.many), Value: max(less, pss) / n, Unit: "MB", Goal: idleGoal},
		{What: "less memory available, the kernel's part of it with it", Value: less / n, Unit: "MB"},
		{What: "the share of its processes", Value: pss / n, Unit: "MB"},
		{What: "its processes", Value: float64(processes) / n, Unit: "each"},
	}, nil
}

// nativeProcesses are the host's processes in groups of the engine's.
func nativeProcesses() (map[int]bool, error) {
	found := map[int]bool{}
	err := eachProcess(func(pid int, dir string) {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err == nil && strings.Contains(string(groups), "/cloche-native/") {
			found[pid] = true
		}
	})
	return found, err
}
