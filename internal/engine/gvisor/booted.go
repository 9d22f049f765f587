//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/claim"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// bootedKind is what gVisor fixes when a sandbox boots: a booted sandbox becomes one that has the same.
type bootedKind struct {
	fits         fit
	root         image
	readOnly     bool
	disk, memory int64
	cpus         float64
	slots        slots
	// points are the mount points that a read-only root needs for the mounts of the request, see pointsFor.
	points string
	// static, tmpfs and agent are the mounts that do not change, the memory filesystems and the agent.
	static, tmpfs, agent string
}

// image is a file of an image.
type image struct {
	path string
	is   identity
}

func imageAt(path string) (image, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return image{}, err
	}
	return image{path, identity{Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano()}}, nil //nolint:unconvert // of another type on other architectures
}

// valid reports whether the image of a kind is still there.
func (k bootedKind) valid() bool {
	now, err := imageAt(k.root.path)
	return err == nil && now == k.root
}

// kindOf returns the kind of a plan; false is one that a booted sandbox cannot become.
func (e *Engine) kindOf(p engine.Plan) (k bootedKind, ok bool) {
	late := lateMountsOf(p)
	if p.Root.Upper != "" || len(p.Agent.Config)+len(p.Agent.Early) > maxConfig || !attachable(p, late) {
		return k, false
	}
	root, err := imageAt(p.Root.Image)
	if err != nil {
		return k, false // the create says so
	}
	k = bootedKind{
		fits: fitOf(p), root: root, readOnly: p.Root.ReadOnly, disk: p.Limits.DiskBytes, memory: p.Limits.MemoryBytes, cpus: p.Limits.CPUs,
		tmpfs: fmt.Sprint(p.Tmpfs), agent: fmt.Sprintf("%q", []any{p.Agent.Image, p.Agent.Target, p.Agent.Argv, p.Agent.UID, p.Agent.Port, p.Agent.Early}),
	}
	for _, m := range staticMounts(p) {
		k.static += fmt.Sprintf("%q:%q\n", m.Source, m.Target)
	}
	if p.Root.ReadOnly {
		k.points = pointsFor(late)
	}
	if e.late.usable() {
		if k.slots, ok = slotsFor(late); !ok {
			return k, false
		}
	}
	return k, true
}

// attachable reports whether mounts can come after the others: nothing else is mounted below them.
func attachable(p engine.Plan, late []engine.Mount) bool {
	before := p
	before.Mounts = staticMounts(p)
	targets := spec(before).Mounts
	for _, m := range late {
		for _, t := range targets {
			if t.Destination == m.Target || strings.HasPrefix(t.Destination, strings.TrimSuffix(m.Target, "/")+"/") {
				return false
			}
		}
	}
	return true
}

// pointsFor lists mount points, each with a slash at its end if it is a directory's.
func pointsFor(mounts []engine.Mount) string {
	var points []string
	for _, m := range mounts {
		target := path.Clean(m.Target)
		if isDirectory(m) {
			target += "/"
		}
		points = append(points, target)
	}
	return strings.Join(points, "\x00")
}

// mountsAt returns mounts of l at such points, which only say what is to be made in a read-only root.
func (l *lateMounts) mountsAt(points string) (mounts []engine.Mount) {
	if points == "" {
		return nil
	}
	for point := range strings.SplitSeq(points, "\x00") {
		target, dir := strings.CutSuffix(point, "/")
		m := engine.Mount{Source: l.file(), Target: target}
		if dir {
			m.Source = l.directory()
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// maxConfig is what the pipe of the agent's configuration takes at once without a reader.
const maxConfig = 48 << 10

// staticMounts are the mounts of the image, which all its sandboxes have. They come first.
func staticMounts(p engine.Plan) []engine.Mount {
	for n, m := range p.Mounts {
		if !m.OfImage {
			return p.Mounts[:n]
		}
	}
	return p.Mounts
}

// lateMountsOf are the others, as gVisor sorts mounts: parents come before what is mounted below them.
func lateMountsOf(p engine.Plan) []engine.Mount {
	late := slices.Clone(p.Mounts[len(staticMounts(p)):])
	slices.SortStableFunc(late, func(a, b engine.Mount) int { return cmp.Compare(len(a.Target), len(b.Target)) })
	return late
}

// booted is a sandbox that belongs to no caller: its sentry has booted, and its agent waits for its
// configuration. It has seen no request.
type booted struct {
	kind bootedKind
	c    *creation
	// tell is the other end of the agent's configuration.
	tell *os.File
	// late is the other end of the socket on which the sentry serves the claim.
	late *os.File
	// gofer is where its gofer tells when it has its mounts; nil without one.
	gofer *os.File
	// conns are connections to the slots of its gofer.
	conns []*os.File
}

// bootedHostname is the host name until the claim.
const bootedHostname = "sandbox"

// claimTimeout bounds what a sentry may take to do what a claim says. It takes milliseconds.
const claimTimeout = 5 * time.Second

// bootedPrefix begins the names of booted sandboxes.
const bootedPrefix = "booted-"

// bootAhead boots a sandbox for plans like p.
func (e *Engine) bootAhead(ctx context.Context, name string, k bootedKind, p engine.Plan) (*booted, error) {
	dir := filepath.Join(e.opts.StateDir, name)
	b := &booted{kind: k}
	general := generalOf(p)
	general.ID, general.Dir = name, dir
	b.c = &creation{e: e, plan: general, clean: context.WithoutCancel(ctx), waits: b}
	b.c.undo.Add(func() { removeBooted(dir) })
	step, err := lifecycle.TakeSteps(ctx, e.log, name, []lifecycle.Step{
		{Name: lifecycle.StepRecord, Do: b.c.record},
		// After its record, by which the next daemon finds it.
		{Name: "make directory", Do: func(context.Context) error { return os.Mkdir(dir, 0o700) }},
		{Name: "open files", Do: b.c.open},
		{Name: "make cgroup", Do: b.c.makeGroup},
		{Name: "start processes", Do: b.c.start},
		{Name: "boot sentry", Do: b.c.boot},
		{Name: "start agent", Do: b.c.startAgent},
		{Name: "wait for gofer", Do: b.waitGofer},
		{Name: "wait for cgroup", Do: b.c.waitGroup},
	})
	if err != nil {
		b.Discard()
		return nil, fmt.Errorf("boot a sandbox ahead of its request, %s: %w", step, err)
	}
	return b, nil
}

// waitGofer waits until its gofer is in its own root, where mounts can be attached.
func (b *booted) waitGofer(ctx context.Context) error {
	if b.gofer == nil {
		return nil
	}
	// It is not closed: the gofer may have more to say.
	if _, err := lifecycle.ReadFirst(ctx, b.gofer, make([]byte, 1)); err != nil {
		return fmt.Errorf("the gofer ended before it was ready: %w", err)
	}
	return nil
}

// removeBooted removes the directory of a booted sandbox, which has only files of its engine.
func removeBooted(dir string) {
	removeFiles(dir)
	_ = os.Remove(dir)
}

// Done implements pool.Member.
func (b *booted) Done() <-chan struct{} { return b.c.inst.Done() }

// Usable implements pool.Member.
func (b *booted) Usable() bool {
	for _, g := range b.c.inst.gofers() {
		if !g.Usable() {
			return false
		}
	}
	return b.c.inst.sentry.Usable()
}

// Memory implements pool.Member.
func (b *booted) Memory() int64 {
	sum := pidfd.Memory(b.c.inst.sentry.ID.PID)
	for _, g := range b.c.inst.gofers() {
		sum += pidfd.Memory(g.ID.PID)
	}
	return cmp.Or(sum, bootedBytes)
}

// bootedBytes is about what a booted sandbox has, where it cannot be read.
const bootedBytes = 24 << 20

// Discard implements pool.Member.
func (b *booted) Discard() {
	b.closeFiles()
	b.c.rollback()
}

func (b *booted) closeFiles() {
	for _, f := range append(b.conns, b.tell, b.late, b.gofer) {
		if f != nil {
			f.Close()
		}
	}
	b.conns, b.tell, b.late, b.gofer = nil, nil, nil, nil
}

// openLate gives the sentry the socket on which it serves the claim.
func (c *creation) openLate() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	c.waits.late = os.NewFile(uintptr(fds[0]), "late")
	c.sentry.args = append(c.sentry.args, claim.LateFlag+c.sentry.add(os.NewFile(uintptr(fds[1]), "late")))
	return nil
}

// claim makes it the sandbox of a plan of its kind. On an error nothing is left of it.
func (b *booted) claim(ctx context.Context, p engine.Plan) (*instance, error) {
	before := b.c.rec
	if err := b.become(ctx, p); err != nil {
		b.c.e.log.Warn("a booted sandbox could not be used; the sandbox is created without one", "sandbox", p.ID, "error", err,
			"sentry", b.c.sentryWords(), "gofer", lastWords(b.c.goferCrash))
		b.Discard()
		b.c.e.records.Remove(before)
		return nil, err
	}
	return b.c.done(), nil
}

// become takes the steps of a claim, in the order that a create has: its record comes first, and the agent is told last.
func (b *booted) become(ctx context.Context, p engine.Plan) error {
	c, before, from := b.c, b.c.rec, b.c.plan.Dir
	c.plan = p
	var told *claim.Late
	step, err := lifecycle.TakeSteps(ctx, c.e.log, p.ID, []lifecycle.Step{
		{Name: lifecycle.StepRecord, Do: func(context.Context) error { return b.record(from) }},
		{Name: "limit", Do: func(context.Context) error { return c.group.Limit(p.Limits) }},
		{Name: "connect mounts", Do: func(ctx context.Context) (err error) {
			told, err = b.prepare(ctx)
			return err
		}},
		{Name: "tell the sentry", Do: func(ctx context.Context) error {
			c.hand()
			return b.call(ctx, told)
		}},
		{Name: "tell the agent", Do: func(context.Context) error {
			_, err := b.tell.Write(p.Agent.Config)
			b.closeFiles() // the configuration ends with its pipe
			return err
		}},
		{Name: "wait for agent", Do: c.waitAgent},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	removeBooted(from) // before its record, by which the next daemon finds it
	c.e.records.Remove(before)
	return nil
}

// record writes down whose it is now, beside what it was: with both, a sweep finds it by either. Its control socket gets
// the place where the next daemon looks.
func (b *booted) record(from string) error {
	c := b.c
	if err := os.Rename(filepath.Join(from, controlSocket), filepath.Join(c.plan.Dir, controlSocket)); err != nil {
		return fmt.Errorf("take over the control socket: %w", err)
	}
	rec := c.rec
	rec.Head.ID, rec.Head.Dir, rec.Container = c.plan.ID, c.plan.Dir, c.rec.ID
	if err := c.e.records.Create(rec); err != nil {
		return err
	}
	c.undo.Add(func() { c.e.records.Remove(rec) })
	c.rec = rec
	return nil
}

// hand makes another instance of the processes of a booted one.
func (c *creation) hand() {
	general := c.inst
	c.inst = &instance{sentry: general.sentry, gofer: general.gofer, late: general.late}
	c.inst.init(c.e, c.rec, lifecycle.Encode(c.rec), c.group)
	c.inst.Expect(true) // until Create has succeeded, it tells of the death itself
	close(general.handed)
	general.ctl.close()
}

// prepare makes what the claim hands to the sentry. The files of its payload belong to the caller.
func (b *booted) prepare(ctx context.Context) (told *claim.Late, err error) {
	c := b.c
	told = &claim.Late{Title: title(c.plan), Hostname: c.plan.Hostname}
	defer func() {
		if err != nil {
			closeAll(told.Files)
		}
	}()
	late := lateMountsOf(c.plan)
	if told.Files, err = c.connectLate(ctx, late); err != nil {
		return told, err
	}
	exclusive := exclusiveSources(c.plan.Mounts)
	for _, m := range late {
		told.Mounts = append(told.Mounts, claim.Mount{Target: m.Target, ReadOnly: m.ReadOnly, Exclusive: exclusive[m.Source]})
	}
	if len(c.plan.Rules) > 0 {
		told.Rules = guardRules(c.plan)
		pipe, count, err := makeReports(c.plan.Dir)
		if err != nil {
			return told, err
		}
		told.Files = append(told.Files, pipe, count)
		if c.reports, err = openReports(c.plan.Dir); err != nil {
			return told, err
		}
	}
	if l := c.plan.Link; l != nil {
		args, err := json.Marshal(linkArgs(l))
		if err != nil {
			return told, fmt.Errorf("encode network: %w", err)
		}
		told.Link = string(args)
		for _, f := range []*os.File{l.Guest, l.Far} {
			f, err := duplicateLink(f)
			if err != nil {
				return told, err
			}
			told.Files = append(told.Files, f)
		}
	}
	return told, nil
}

// call makes the sentry do what the claim says.
func (b *booted) call(ctx context.Context, told *claim.Late) error {
	defer closeAll(told.Files)
	fd, err := unix.FcntlInt(pidfd.RawFD(b.late), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	sock, err := unet.NewSocket(fd)
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	defer sock.Close()
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = sock.Close() })
	defer stop()
	if err := urpc.NewClient(sock).Call(claim.CallLate, told, nil); err != nil {
		return fmt.Errorf("claim a booted sandbox: %w", cmp.Or(ctx.Err(), err))
	}
	return nil
}

// connectLate connects the mounts of a claim to a gofer: its own one, which has slots, or another.
func (c *creation) connectLate(ctx context.Context, late []engine.Mount) ([]*os.File, error) {
	if len(late) == 0 {
		return nil, nil
	}
	b := c.waits
	if b.kind.slots == (slots{}) {
		return c.startLateGofer(ctx, late)
	}
	taken, err := attachSlots(c.inst.gofer, b.kind.slots, late)
	if err != nil {
		return nil, err
	}
	var conns []*os.File
	for _, n := range taken {
		conns = append(conns, b.conns[n])
		b.conns[n] = nil
	}
	return conns, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// startLateGofer starts a gofer for mounts, and returns a connection to each.
func (c *creation) startLateGofer(ctx context.Context, mounts []engine.Mount) ([]*os.File, error) {
	late := c.plan
	late.Mounts = mounts
	g := &creation{e: c.e, plan: late, clean: c.clean, rec: c.rec, executable: c.executable, group: c.group, null: c.null, inst: &instance{}, late: true}
	defer g.gofer.close()
	defer g.sentry.close()
	var err error
	if g.spec, err = specJSON(late); err != nil {
		return nil, err
	}
	if err := g.openGofer(); err != nil {
		return nil, err
	}
	defer g.goferCrash.Close()
	err = c.e.spawner.Do(ctx, func() error { return c.group.Enter(g.forkGofer) })
	if g.inst.gofer != nil {
		c.killOnUndo(g.inst.gofer)
		c.inst.late, c.rec.Late = g.inst.gofer, g.inst.gofer.ID
	}
	if err != nil {
		return nil, err
	}
	conns := g.sentry.files
	g.sentry.files = nil
	return conns, c.e.records.Update(c.rec)
}

// ready is what the pool of booted sandboxes can do for a plan.
type ready struct {
	e    *Engine
	plan engine.Plan
	kind bootedKind
	fits bool
}

// readyFor looks what the pool can do for a plan.
func (e *Engine) readyFor(p engine.Plan) ready {
	r := ready{e: e, plan: p}
	if !e.opts.Warm || p.Pool.Ceiling == 0 {
		return r
	}
	if r.kind, r.fits = e.kindOf(p); !r.fits {
		e.unfit.Add(1)
	}
	return r
}

// claim creates the sandbox from a booted one, or returns nil.
func (r ready) claim(ctx context.Context) *instance {
	if !r.fits {
		return nil
	}
	b, name, ok := r.e.booted.Take(r.kind, r.plan.Pool.User)
	if !ok {
		return nil
	}
	defer r.e.booted.Forget(name)
	inst, err := b.claim(ctx, r.plan)
	if err != nil {
		return nil
	}
	return inst
}

// want asks for more sandboxes like the plan's.
func (r ready) want() {
	if !r.fits {
		return
	}
	e, k := r.e, r.kind
	e.booted.Want(k, e.demandBooted(k, generalOf(r.plan), r.plan.Pool))
}

// generalOf is what a plan has in common with all of its kind.
func generalOf(p engine.Plan) engine.Plan {
	g := engine.Plan{
		ID: bootedHostname, Owner: p.Owner, Hostname: bootedHostname, Root: p.Root, Mounts: slices.Clone(staticMounts(p)), Tmpfs: p.Tmpfs,
		Limits: p.Limits, Agent: p.Agent, DieWithParent: p.DieWithParent,
	}
	g.Limits.Pids = 0
	g.Agent.Config = nil
	return g
}

// PoolCounts implements engine.Pooler.
func (e *Engine) PoolCounts() engine.PoolCounts { return e.booted.Counts().Report(e.unfit.Load()) }
