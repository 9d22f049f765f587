//go:build linux

package native

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// probeTimeout bounds the trial process.
const probeTimeout = 5 * time.Second

// probe looks for everything that a sandbox needs. What can only be known by doing
// it, a process tries that is started as a sandbox's first is.
func (e *Engine) probe(ctx context.Context) engine.Report {
	r := engine.Report{
		SharesHostFS: true,
		Name:         e.name, Tier: api.TierNamespace, Enforces: e.enforcement(),
		Facts: map[string]string{
			"rootless": strconv.FormatBool(e.rootless), "cgroup": e.groups.Describe(), "ids": e.ids.Where(), "landlock": strconv.Itoa(hostrootfs.LandlockVersion()),
		},
	}
	r.Enforces["egress"] = e.egress()
	r.Enforces[api.EnforcesKernelTables], r.Enforces[api.EnforcesKernelFiles] = api.Enforcement{OK: true}, api.Enforcement{OK: true}
	if e.rootless {
		r.Enforces[api.EnforcesKernelTables] = api.Enforcement{
			Reason: "pages of pipes, epoll watches and descriptors on their way in sockets are shared with the daemon's user, and the sandbox gets a quarter of that user's inotify instances, timers, signals and message queues",
		}
	}
	hostrootfs.ReportSockets(r.Enforces, hostrootfs.Closing{ReadOnly: !e.rootless, Covers: true, Landlock: hostrootfs.LandlockVersion()})
	if e.images.Mounted() {
		r.Facts["root"] = "EROFS by the kernel"
	} else {
		r.Facts["root"] = "unpacked images"
	}
	if err := hostrootfs.CheckFilters(); err != nil {
		r.Problems = append(r.Problems, api.Problem{What: err.Error(), Mend: hostrootfs.FilterMend})
	}
	if p := e.try(ctx); p != nil {
		r.Problems = append(r.Problems, *p)
	}
	r.Usable = len(r.Problems) == 0
	return r
}

// egress says whether there can be a link.
func (e *Engine) egress() api.Enforcement {
	if unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) != nil {
		return api.Enforcement{Reason: "the user of the daemon may not open /dev/net/tun"}
	}
	return api.Enforcement{OK: true}
}

// try makes the namespaces, a root of memory and the mounts that need most, and says
// which of it fails.
func (e *Engine) try(ctx context.Context) *api.Problem {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	s, err := newScript()
	if err != nil {
		return &api.Problem{What: err.Error()}
	}
	defer s.free()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return &api.Problem{What: "no pipe can be made: " + err.Error()}
	}
	own, err := e.ids.Take()
	if err != nil {
		return &api.Problem{What: err.Error()}
	}
	if own.Many() {
		defer e.ids.Release(own.UID)
	}
	if p := e.images.CheckOwners(own); p != nil {
		return p
	}
	s.trial(own, fds[0], fds[1])
	if err := s.close(); err != nil {
		return &api.Problem{What: err.Error()}
	}
	var p *pidfd.Process
	err = e.spawner.Do(ctx, func() error {
		var pid, pfd int
		err := own.Create(func() (err error) {
			pid, pfd, err = s.fork(unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, -1)
			return err
		})
		if err == nil {
			p, err = pidfd.New(pid, pfd)
		}
		return err
	})
	_ = unix.Close(fds[0])
	defer func() { _ = unix.Close(fds[1]) }()
	if err != nil {
		return namespaceProblem("no namespaces can be made", err)
	}
	err = own.Write(p.ID.PID)
	if err == nil {
		_, err = unix.Write(fds[1], []byte{1})
	}
	if err != nil {
		p.Kill()
	}
	<-p.Done() // it waits for nothing
	p.Close()
	if err == nil {
		err = s.failure()
	}
	if err != nil {
		return namespaceProblem("the kernel refuses to a new user namespace what a sandbox needs", err)
	}
	return nil
}

// trial is the script of a process that tries what a sandbox needs.
func (s *script) trial(own hostrootfs.IDs, goRead, goOn int) {
	s.await(goRead, goOn)
	s.identity(engine.Plan{}, own)
	s.now = "mount"
	s.do(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_SLAVE, 0)
	proc := s.filesystem("proc", quietAttrs)
	s.filesystem("sysfs", quietAttrs|unix.MOUNT_ATTR_RDONLY)
	s.filesystem("devpts", quietAttrs, "newinstance")
	s.now = "mount a root on an overlay (Linux 6.6 or newer, with overlayfs)"
	s.do(unix.SYS_MOUNT, "none", "/proc", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k")
	s.do(unix.SYS_CHDIR, "/proc")
	for _, dir := range []string{"lower", "upper", "work", "root"} {
		s.mkdir(dir, 0o755)
	}
	s.do(unix.SYS_MOUNT, "root", "root", "overlay", 0, "lowerdir=lower,upperdir=upper,workdir=work,userxattr")
	s.do(unix.SYS_SETXATTR, "upper", "user.overlay.opaque", []byte("y"), 1, 0)
	s.do(unix.SYS_CHDIR, "root")
	s.do(unix.SYS_PIVOT_ROOT, ".", ".")
	s.do(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	s.system(proc, "/proc")
}

// namespaceProblem names the switch that is in the way, if it can be told.
func namespaceProblem(what string, err error) *api.Problem {
	p := &api.Problem{What: fmt.Sprintf("%s: %v", what, err)}
	switch {
	case errors.Is(err, unix.ENOSYS):
		p.Mend = "in a container, whose filter may answer so for clone3: give it CAP_SYS_ADMIN or a seccomp profile that allows clone3; elsewhere install a newer kernel"
	case sysctl("user/max_user_namespaces") == "0":
		p.Mend = "sysctl -w user.max_user_namespaces=15000"
	case sysctl("kernel/unprivileged_userns_clone") == "0":
		p.Mend = "sysctl -w kernel.unprivileged_userns_clone=1"
	case sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		p.Mend = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give the executable an AppArmor profile that allows userns"
	default:
		p.Mend = "run it as root, or where user namespaces are allowed: in a container, with CAP_SYS_ADMIN or a seccomp profile that allows clone and mount"
	}
	return p
}
