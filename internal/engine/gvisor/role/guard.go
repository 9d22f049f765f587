//go:build linux

package role

import (
	"encoding/binary"
	"path"
	"strings"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/cloche-dev/cloche/api"
)

// guard stands behind the system calls of one sentry. It is used by every task at
// once; what changes in it is the teller's, and that it gets rules.
type guard struct {
	mounts *mounts
	// ruled is nil until there are rules.
	ruled atomic.Pointer[ruled]
	// kernel is nil until the first of the calls, with which begun is closed.
	kernel atomic.Pointer[kernel.Kernel]
	begun  chan struct{}
}

// ruled are rules, and who is told what they refuse.
type ruled struct {
	rules rules
	tell  *teller
}

// use has the guard answer and tell by rules from now on. The descriptors are its own.
func (g *guard) use(r rules, pipe, count int) error {
	b, err := mapCount(count)
	if err != nil {
		return err
	}
	g.ruled.Store(&ruled{rules: r, tell: &teller{pipe: pipe, count: b, seen: binary.LittleEndian.Uint64(b)}})
	return nil
}

// watch puts the guard behind the calls of a table.
func (g *guard) watch(table *kernel.SyscallTable) {
	known, attributes := calls(), xattrCalls()
	for nr, sc := range table.Table {
		c, ok := known[sc.Name]
		if !ok {
			continue
		}
		do := sc.Fn
		if own, ok := attributes[sc.Name]; ok {
			do = own
		}
		sc.Fn = func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if g.kernel.Load() == nil && g.kernel.CompareAndSwap(nil, t.Kernel()) {
				close(g.begun)
			}
			if c.early {
				if err := g.judge(t, c, args, nil); err != nil {
					return 0, nil, err
				}
			}
			ret, control, err := do(t, sysno, args)
			if err != nil && mayBeRule(err) {
				err = g.judge(t, c, args, err)
			}
			return ret, control, err
		}
		table.Table[nr] = sc
	}
	table.Init()
}

// mayBeRule is true for the errors that the mount of a rule makes, and for those
// that come before it where several things are wrong.
func mayBeRule(err error) bool {
	return is(err, linuxerr.EROFS) || is(err, linuxerr.EACCES) || is(err, linuxerr.EPERM) || is(err, linuxerr.EXDEV) || is(err, linuxerr.EBUSY)
}

// judge returns the error of a call that failed with err, or has not been made yet:
// EACCES, told, when a rule refuses what was asked.
func (g *guard) judge(t *kernel.Task, c call, args arch.SyscallArguments, err error) error {
	by := g.ruled.Load()
	// The agent is not held by rules; what it does for a caller it judges and tells
	// itself.
	if by == nil || t.ThreadGroup() == t.Kernel().GlobalInit() {
		return err
	}
	change := c.change(t, args)
	names := make([]string, 0, 2)
	for _, p := range c.places {
		if name, ok := g.name(t, p, args); ok {
			names = append(names, name)
		}
	}
	if len(names) < len(c.places) {
		return err // an invalid argument: no rule is needed
	}
	n, name, ok := by.rules.refuses(c, names, change, err)
	if !ok {
		return err
	}
	if !c.quiet {
		by.tell.note(t, n, c.op, name, by.rules.Rules[n])
	}
	return linuxerr.EACCES
}

// refuses is the rule, if any, that what was asked at names is refused by.
func (r rules) refuses(c call, names []string, change bool, err error) (rule int, name string, ok bool) {
	busy, apart := err != nil && is(err, linuxerr.EBUSY), err != nil && is(err, linuxerr.EXDEV)
	for i, name := range names {
		n, ok := r.covering(name)
		switch {
		case !ok:
		case r.Rules[n].Access == api.AccessNone:
			return n, name, true
		case r.Rules[n].Access != api.AccessRead || !change:
		case !c.places[i].shared:
			return n, name, true
		case apart && within(names[1], r.Rules[n].Target):
			// By another name in the same mount it could be written to.
			return n, name, true
		}
	}
	if !busy || !change {
		return 0, "", false
	}
	// What is above a rule stays where it is.
	for _, name := range names {
		if n, ok := r.below(name); ok {
			return n, name, true
		}
	}
	return 0, "", false
}

// tellLayer tells of a layer of an overlay that was refused, by a rule of its file
// system. It may be seen at any path, so the path in its file system counts.
func (g *guard) tellLayer(t *kernel.Task, layer vfs.VirtualDentry) {
	by := g.ruled.Load()
	if by == nil {
		return
	}
	ns, ok := g.mounts.hold(t)
	if !ok {
		return
	}
	defer ns.DecRef(t)
	w := walk{t: t, vfs: t.Kernel().VFS(), root: ns.Root(t), creds: auth.NewRootCredentials(t.Kernel().RootUserNamespace())}
	defer w.root.DecRef(t)
	w.start = w.root
	inside, err := w.vfs.PathnameInFilesystem(t, layer)
	if err != nil {
		return
	}
	of := -1 // the first rule of the file system
	for n, r := range by.rules.Rules {
		top, err := w.vfs.GetDentryAt(t, w.creds, w.operation(r.Target, false), &vfs.GetDentryOptions{})
		if err != nil {
			continue
		}
		same := top.Mount().Filesystem() == layer.Mount().Filesystem()
		above, err := w.vfs.PathnameInFilesystem(t, top)
		top.DecRef(t)
		if err != nil || !same || !within(inside, above) {
			continue
		}
		name := path.Join(r.Target, strings.TrimPrefix(inside, above))
		if m, ok := by.rules.covering(name); ok && by.rules.Rules[m].Access != api.AccessWrite {
			n = m
		} else if m, ok := by.rules.below(name); ok {
			n = m
		} else if of < 0 {
			of = n
			continue
		} else {
			continue
		}
		by.tell.note(t, n, opMount, name, by.rules.Rules[n])
		return
	}
	if of >= 0 {
		by.tell.note(t, of, opMount, path.Join(by.rules.Rules[of].Target, inside), by.rules.Rules[of])
	}
}

// opMount is what is told of layers.
const opMount = "mount"

// is also takes the host's error numbers, which a gofer's are.
func is(err error, want *errors.Error) bool { return linuxerr.Equals(want, err) }
