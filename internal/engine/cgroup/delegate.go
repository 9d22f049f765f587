//go:build linux

package cgroup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// delegationTimeout bounds the conversation with systemd, on all its buses.
const delegationTimeout = 2 * time.Second

// daemonGroup is where this process goes when it has to leave a group to those
// of the sandboxes: on version 2 a group has either processes or groups with
// controllers.
const daemonGroup = "daemon"

// delegation is what to ask systemd for: one transient scope with Delegate=yes,
// into which it moves this process, and below which all sandboxes are.
//
// The process itself has to go there. The kernel lets a user fork into a group
// only if the user may also manage the group that both have in common, and the
// group that a login session and the user's systemd have in common is root's. Only systemd can move
// a process from one to the other, and it may only move the user's processes.
//
// The scope lives while a process is in it: this one, or any sandbox. A later
// daemon asks for a scope of its own, under another name, and finds the sandboxes
// in the old one by their records. So nothing has to keep a scope open, and no
// create waits for systemd.
type delegation struct {
	pid     int
	root    bool
	layout  Layout
	slice   string
	buses   []bus
	timeout time.Duration
}

func newDelegation(l Layout, root bool) delegation {
	d := delegation{pid: os.Getpid(), root: root, layout: l, slice: "app.slice", timeout: delegationTimeout}
	if root {
		d.slice = "system.slice"
	}
	d.buses = findBuses(root, os.Getenv)
	return d
}

// delegated uses what of the unified hierarchy was handed to this
// user: the highest ancestor of the own group that the user may manage. A
// process can only be started into another group below that. Nothing below it
// takes the controllers away again, although systemd manages that directory as
// well: the kernel refuses, while a group below hands them down.
func delegated(mounts []Mount, own string, d delegation) Maker {
	for _, mount := range mounts {
		if mount.Version != 2 {
			continue
		}
		found, ok := mount.managed(own)
		if !ok {
			return d.maker(mounts, None("no cgroup was delegated to this user"))
		}
		m := d.below(found, mount)
		if len(m.All) == 0 {
			return d.maker(mounts, m)
		}
		m.scopes = filepath.Join(found, d.slice, d.layout.Parent+"-*.scope")
		return m
	}
	return None("a normal user owns no cgroup of version 1 and none of version 2 is mounted; run cloche as root")
}

// managed is the highest ancestor of the own group that this process may manage
// together with all that are between.
func (m Mount) managed(own string) (string, bool) {
	dir, ok := m.own(own)
	found := ""
	for ; ok; dir = filepath.Dir(dir) {
		if !managed(dir) {
			break
		}
		found = dir
		if dir == m.Path || dir == filepath.Dir(dir) {
			break
		}
	}
	return found, found != ""
}

// managed reports whether this process may make groups in a directory and move
// processes between them.
func managed(dir string) bool {
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if unix.Access(filepath.Join(dir, name), unix.W_OK) != nil {
			return false
		}
	}
	return true
}

// below makes the groups below a directory that was delegated. The reason names
// the controllers that were not.
func (d delegation) below(dir string, mount Mount) Maker {
	mount.Root, mount.Path = "", dir
	m := d.layout.from([]Mount{mount}, "")
	missing := m.missing()
	h := d.layout.hierarchy(mount)
	missing = slices.DeleteFunc(missing, h.Has)
	if len(missing) == 0 {
		return m
	}
	what := fmt.Sprintf("not delegated: %s", strings.Join(missing, ", "))
	if !d.root {
		what += `; an administrator has to put "[Service]" and "Delegate=cpu memory pids" into` +
			` /etc/systemd/system/user@.service.d/delegate.conf, run systemctl daemon-reload,` +
			` and this user has to log in again`
	}
	if len(m.All) == 0 && len(h.Uses) > 0 {
		what = m.Reason + "; " + what // the others are there, and could not be used
	}
	m.Reason = what
	return m
}

// Maker asks systemd, where that can help. What was found before is m, and
// remains when it does not.
func (d delegation) maker(mounts []Mount, m Maker) Maker {
	i := slices.IndexFunc(mounts, func(mount Mount) bool {
		return mount.Version == 2 && (len(d.layout.hierarchy(mount).Uses) > 0 || mount.limited())
	})
	if i < 0 {
		m.Reason += "; the cgroup file system of version 2 has neither the memory nor the cpu controller here" + d.mend(false)
		return m
	}
	// The engine is being made: there is no caller yet who could have given up.
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout) //nolint:forbidigo // bounded by itself
	defer cancel()
	dir, name, err := d.scope(ctx, mounts[i])
	if err != nil {
		m.Reason += "; " + err.Error() + d.mend(true)
		return m
	}
	got := d.below(dir, mounts[i])
	got.scope = name
	got.scopes = filepath.Join(filepath.Dir(dir), d.layout.Parent+"-*.scope")
	return got
}

// limited reports whether the top of what is mounted is not the top of the
// hierarchy. Then its controllers are no sign of what systemd could give.
func (m Mount) limited() bool { return m.Root != "" && m.Root != "/" }

func (d delegation) mend(systemd bool) string {
	switch {
	case d.root:
		return "; run cloche where root may write to /sys/fs/cgroup: in a container, with a cgroup namespace and a writable cgroup mount, and not beside other processes in its first cgroup"
	case systemd:
		return "; run cloche where systemctl --user status works (after a login by ssh or on a terminal, not by su or sudo;" +
			" loginctl enable-linger keeps it so after the logout), as a systemd user service, or as root"
	}
	return "; run cloche as root"
}

// scope asks one bus after the other. It returns the scope's directory, with
// this process in a group below it, and its name.
func (d delegation) scope(ctx context.Context, mount Mount) (dir, name string, err error) {
	if len(d.buses) == 0 {
		return "", "", errors.New("systemd was not asked: no message bus is known")
	}
	var tried []string
	for _, b := range d.buses {
		name = fmt.Sprintf("%s-%d-%s.scope", d.layout.Parent, d.pid, strings.ToLower(rand.Text()[:8]))
		if err = b.startScope(ctx, scope{name: name, slice: d.slice, pid: d.pid}); err == nil {
			dir, err = d.enter(name, mount)
		}
		if err == nil {
			return dir, name, nil
		}
		if ctx.Err() != nil {
			err = ctx.Err() // and not what its end did to the connection
		}
		tried = append(tried, b.name+": "+busErrText(err))
	}
	return "", "", errors.New("systemd was asked for a scope by " + strings.Join(tried, ", and by "))
}

// enter finds the scope in which the process is now, and takes the process out
// of the way.
func (d delegation) enter(name string, mount Mount) (string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(d.pid) + "/cgroup")
	if err != nil {
		return "", errors.New("the cgroup of the process cannot be read")
	}
	dir, ok := mount.own(string(b))
	if !ok || filepath.Base(dir) != name {
		return "", errors.New("systemd made the scope, but the process is not in it")
	}
	if err := vacate(dir, d.pid); err != nil {
		return "", err
	}
	return dir, nil
}

// errShared says that a group has processes that are not the engine's to move.
var errShared = errors.New("other processes are in the same cgroup")

// vacate moves a process that is alone in its group into one below.
func vacate(dir string, pid int) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("read own cgroup: %w", err)
	}
	self := strconv.Itoa(pid)
	for _, f := range strings.Fields(string(b)) {
		if f != self {
			return errShared
		}
	}
	leaf := filepath.Join(dir, daemonGroup)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make own cgroup: %w", err)
	}
	if err := pidfd.Write(leaf, "cgroup.procs", self); err != nil {
		return fmt.Errorf("move into own cgroup: %w", err)
	}
	return nil
}

// handDownFromTop hands controllers down from the top of what is used. That fails if the top has
// processes; if this process is the only one, it leaves.
func (h Hierarchy) handDownFromTop() error {
	err := h.handDown(h.Mount.Path)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := vacate(h.Mount.Path, os.Getpid()); err != nil {
		return err
	}
	return h.handDown(h.Mount.Path)
}
