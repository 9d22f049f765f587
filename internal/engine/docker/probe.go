package docker

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// Probe implements engine.Engine. A daemon that hangs is one that does not answer.
func (e *Engine) Probe(ctx context.Context) engine.Report {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	r := engine.Report{
		Name: e.opts.Name, Tier: e.opts.RuntimeTier,
		Enforces: map[string]api.Enforcement{}, Facts: map[string]string{},
	}
	for _, limit := range []string{"cpus", "memory_bytes", "pids", "disk_bytes", "egress"} {
		r.Enforces[limit] = api.Enforcement{Reason: "no daemon answers"}
	}
	d, problems := e.findDaemon(ctx)
	if d == nil {
		r.Problems = append([]api.Problem{e.absent()}, problems...)
		return r
	}
	r.Facts["host"] = d.host
	answer, err := d.Info(ctx, client.InfoOptions{})
	if err != nil {
		r.Problems = []api.Problem{{What: "the daemon at " + d.host + " does not say what it is: " + brief(err), Mend: "look at its log"}}
		return r
	}
	shared := e.sharesFiles(d.host, answer.Info)
	d.shared.Store(&shared)
	r.SharesHostFS = shared
	e.describe(&r, d, answer.Info)
	r.Usable = len(r.Problems) == 0
	return r
}

// absent is the first of the problems where no daemon answers.
func (e *Engine) absent() api.Problem { return absentOn(runtime.GOOS, e.opts.Name) }

// absentOn says how the daemon of an engine is started on a system.
func absentOn(system, name string) api.Problem {
	p := api.Problem{What: "no Docker daemon answers", Mend: "start it (systemctl start docker), or name its socket in DOCKER_HOST or the setting docker.host"}
	if name == Podman {
		p = api.Problem{What: "no Podman service answers", Mend: "start it (systemctl start podman.socket, or podman system service), or name its socket in the setting podman.host"}
	}
	switch {
	case system == "linux":
	case name == Podman:
		p.Mend = "start it (podman machine start), or name it in the setting podman.host"
	default:
		p.Mend = "start Docker Desktop, or name another daemon in DOCKER_HOST or the setting docker.host"
	}
	return p
}

// reportSockets says what keeps programs from sockets of the host in its directories. As
// root, read-only directories are closed to them when they are staged.
func (e *Engine) reportSockets(r *engine.Report, d *daemon, info system.Info) {
	if r.SharesHostFS {
		hostrootfs.ReportSockets(r.Enforces, hostrootfs.Closing{ReadOnly: os.Geteuid() == 0, Covers: e.covers(d, info), Landlock: -1})
		return
	}
	// Nothing of a host is mounted.
	ok := api.Enforcement{OK: true}
	r.Enforces[api.EnforcesMountSockets], r.Enforces[api.EnforcesReadOnlyMountSockets] = ok, ok
}

// describe makes a report of what a daemon says of itself.
func (e *Engine) describe(r *engine.Report, d *daemon, info system.Info) {
	for name, value := range map[string]string{
		"version": info.ServerVersion, "api": d.ClientVersion(), "cgroup": "v" + info.CgroupVersion, "storage": info.Driver,
		"kernel": info.KernelVersion, "runtime": e.runtime(info), "shares_files": yesNo(r.SharesHostFS),
	} {
		r.Facts[name] = value
	}
	if e.opts.Runtime != "" && e.opts.Runtime != "runc" && e.opts.Runtime != "crun" {
		r.Facts["runtime"] += " (untested: its tier is what the operator says)"
	}
	problem := func(what, mend string) { r.Problems = append(r.Problems, api.Problem{What: what, Mend: mend}) }
	if info.OSType != "linux" {
		problem("the daemon runs containers of "+info.OSType, "switch it to Linux containers")
	}
	if arch := goArch(info.Architecture); arch != runtime.GOARCH {
		problem("the daemon's machine is "+info.Architecture+", and this build's agent is for "+runtime.GOARCH, "use a build for the daemon's machine")
	}
	if !slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.HasPrefix(o, "name=seccomp") }) {
		problem("the daemon filters no system calls", "use a kernel and a daemon with seccomp")
	}
	if _, ok := info.Runtimes[e.opts.Runtime]; e.opts.Runtime != "" && !ok {
		problem("the daemon has no runtime "+e.opts.Runtime, "install it and name it in the daemon's configuration")
	}
	limit := func(name string, ok bool, controller string) {
		if ok {
			r.Enforces[name] = api.Enforcement{OK: true}
			return
		}
		r.Enforces[name] = api.Enforcement{Reason: "the daemon has no cgroup controller for it (" + controller + "): a rootless one needs cgroup v2 with delegation"}
	}
	limit("cpus", info.CPUCfsQuota, "cpu")
	limit("memory_bytes", info.MemoryLimit, "memory")
	limit("pids", info.PidsLimit, "pids")
	r.Enforces["disk_bytes"] = diskEnforcement(info)
	r.Enforces["egress"] = e.egress(d, info)
	e.reportSockets(r, d, info)
	r.Enforces[api.EnforcesKernelFiles] = e.kernelFiles(d, info)
	// A container's root is the daemon's root, and no daemon limits terminals.
	r.Enforces[api.EnforcesKernelTables] = api.Enforcement{Reason: tables(info)}
}

// kernelFiles says whether what tells of the machine in /proc is covered. The daemon's own
// means empty a file, and programs do not start with an empty /proc/stat.
func (e *Engine) kernelFiles(d *daemon, info system.Info) api.Enforcement {
	if e.opts.RuntimeTier != api.TierNamespace || e.covers(d, info) {
		return api.Enforcement{OK: true}
	}
	return api.Enforcement{
		Reason: "/proc/stat and /proc/swaps show what the daemon's machine does; to cover them, Cloche needs root on it and must see the daemon's processes",
	}
}

// tables says with whom a container shares what the kernel counts by user.
func tables(info system.Info) string {
	with := "root of the daemon's machine"
	if slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.Contains(o, "rootless") }) {
		with = "the daemon's user"
	}
	return "inotify instances and watches, pages of pipes and all terminals are shared with " + with + " and other containers"
}

// diskEnforcement: few of the daemon's storage drivers bound the layer of one
// container, and overlay2 does not say whether it can.
func diskEnforcement(info system.Info) api.Enforcement {
	switch info.Driver {
	case "btrfs", "zfs":
		return api.Enforcement{OK: true}
	}
	return api.Enforcement{Reason: "the daemon's storage driver " + info.Driver + " does not bound the layer of one container"}
}

func (e *Engine) runtime(info system.Info) string {
	if e.opts.Runtime != "" {
		return e.opts.Runtime
	}
	return info.DefaultRuntime
}

// goArch is Go's name of a machine that uname names.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
