//go:build linux

package gvisor

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// probeTimeout bounds the trial process.
const probeTimeout = 5 * time.Second

// oldestKernel is the first that can wait for a process by its descriptor and
// fork into a cgroup.
const oldestKernel = "5.7"

// probe looks for everything that a sandbox needs. What can only be known by
// doing it, a process tries: a user namespace in which one may mount.
func (e *Engine) probe(ctx context.Context) engine.Report {
	r := engine.Report{
		SharesHostFS: true,
		Suspends:     true,
		Name:         Name,
		Tier:         api.TierGVisor,
		Enforces:     e.groups.Enforcement(),
		Facts: map[string]string{
			"platform": "systrap",
			"rootless": strconv.FormatBool(e.rootless),
			"gvisor":   e.version,
			"cgroup":   e.groups.Describe(),
		},
	}
	if e.rootless {
		r.Facts["ids"] = engine.OneUser
	}
	r.Enforces["pids"], r.Enforces["disk_bytes"] = api.Enforcement{OK: true}, api.Enforcement{OK: true}
	r.Enforces["egress"] = api.Enforcement{OK: true}
	// The gofer opens no socket of the host, and the sentry no pipe to write in what is read-only.
	r.Enforces[api.EnforcesMountSockets] = api.Enforcement{OK: true}
	r.Enforces[api.EnforcesReadOnlyMountSockets] = api.Enforcement{OK: true}
	for _, check := range []func(context.Context, *engine.Report) *api.Problem{
		checkKernel, e.checkExecutable, checkSeccomp, e.checkNamespaces,
	} {
		if p := check(ctx, &r); p != nil {
			r.Problems = append(r.Problems, *p)
		}
	}
	r.Usable = len(r.Problems) == 0
	return r
}

// gvisorVersion is the version of gVisor that is compiled in, as go.mod has it. A
// test's executable does not know.
const gvisorVersion = "v0.0.0-20260905035102-160fafc42237"

func checkKernel(_ context.Context, r *engine.Report) *api.Problem {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return &api.Problem{What: "the kernel's version cannot be read"}
	}
	release := unix.ByteSliceToString(u.Release[:])
	r.Facts["kernel"] = release
	if olderThan(release, oldestKernel) {
		return &api.Problem{
			What: fmt.Sprintf("the kernel is %s, and the engine needs %s", release, oldestKernel),
			Mend: "install a newer kernel",
		}
	}
	return nil
}

// olderThan compares the first two numbers of kernel releases.
func olderThan(release, than string) bool {
	var a, b, c, d int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	_, _ = fmt.Sscanf(than, "%d.%d", &c, &d)
	return a < c || a == c && b < d
}

// checkExecutable: the sentry executes this file again in an empty root
// directory, as nobody.
func (e *Engine) checkExecutable(context.Context, *engine.Report) *api.Problem {
	if e.executables.carried != nil {
		return nil // the build made it so
	}
	f, err := os.Open(e.opts.ExePath)
	if err != nil {
		return &api.Problem{What: "the running executable cannot be opened", Mend: "make it readable for the user that runs it"}
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !e.rootless && info.Mode()&0o001 == 0 {
		return &api.Problem{
			What: "not every user can execute the executable, and the sandbox runs as the user nobody",
			Mend: "chmod 755 the executable",
		}
	}
	bin, err := elf.NewFile(f)
	if err != nil {
		return &api.Problem{What: "the running executable is no ELF file"}
	}
	for _, p := range bin.Progs {
		if p.Type == elf.PT_INTERP {
			return &api.Problem{
				What: "the executable is dynamically linked: there is no loader where gVisor executes it",
				Mend: "build it with CGO_ENABLED=0",
			}
		}
	}
	return nil
}

func checkSeccomp(context.Context, *engine.Report) *api.Problem {
	if _, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		return &api.Problem{What: "the kernel has no seccomp", Mend: "use a kernel with CONFIG_SECCOMP_FILTER"}
	}
	if scope := sysctl("kernel/yama/ptrace_scope"); scope == "3" {
		return &api.Problem{
			What: "ptrace is switched off for everybody (kernel.yama.ptrace_scope is 3), and the systrap platform needs it to start",
			Mend: "set kernel.yama.ptrace_scope to 2 or less and reboot",
		}
	}
	return nil
}

// checkNamespaces starts a process exactly as a sentry is started and lets it
// mount.
func (e *Engine) checkNamespaces(ctx context.Context, _ *engine.Report) *api.Problem {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return &api.Problem{What: "/dev/null cannot be opened", Mend: "mount a /dev"}
	}
	defer null.Close()
	// The result is read from a pipe: the exit status may be reaped by others.
	out, in, err := os.Pipe()
	if err != nil {
		return &api.Problem{What: "no pipe can be made: " + pidfd.ErrText(err)}
	}
	defer out.Close()
	c := creation{e: e, executable: e.executables.open(ctx, true)}
	defer c.executable.close()
	if err := c.executable.wait(); err != nil {
		return &api.Problem{What: "the running executable cannot be opened", Mend: "make it readable for the user that runs it"}
	}
	c.sentry.args = []string{early.Probe}
	c.sentry.add(in)
	var p *pidfd.Process
	err = e.spawner.Do(ctx, func() (err error) {
		e.isolate(&c.sentry, c.executable, false, -1)
		p, err = c.sentry.spawn(null)
		return err
	})
	c.sentry.close()
	if err != nil {
		return namespaceProblem("no user namespace can be made", err)
	}
	defer p.Close()
	defer func() { <-p.Done() }()
	defer p.Kill()
	b := make([]byte, 2) // written at once
	if n, err := lifecycle.ReadFirst(ctx, out, b); err != nil || n < len(b) {
		return &api.Problem{What: "the executable does not start again as a role: its main does not begin with the dispatch of roles"}
	}
	errno := syscall.Errno(b[1])
	switch b[0] {
	case early.ProbeOK:
		return nil
	case early.ProbeMount:
		return namespaceProblem("nothing can be mounted in a new user namespace", errno)
	default:
		return &api.Problem{
			What: fmt.Sprintf("ptrace is refused (%v), and the systrap platform needs it", errno),
			Mend: "allow the ptrace system call: in a container, run it with a seccomp profile that does",
		}
	}
}

// namespaceProblem names the switch that is in the way, if it can be told.
func namespaceProblem(what string, err error) *api.Problem {
	p := &api.Problem{What: fmt.Sprintf("%s: %v", what, err)}
	switch {
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

func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
