//go:build linux

package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/confine"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// specVersion is of the form that runtimes of every age take.
const specVersion = "1.0.2"

// bundle describes the sandbox whose root is prepared at stage, in the form of the
// runtime specification. group is its cgroup below each hierarchy's mount, and shown what
// its programs see of it.
func bundle(p engine.Plan, ids hostrootfs.IDs, stage, group string, shown []cgroup.Shown) *specs.Spec {
	caps := capabilities(hostrootfs.AgentCaps)
	process := &specs.Process{
		User: specs.User{UID: p.Agent.UID, GID: p.Agent.UID, Umask: new(uint32(0o022))},
		Args: p.Agent.Argv, Env: []string{"HOME=/"}, Cwd: "/", NoNewPrivileges: true,
		Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		// One byte: neither a file nor a program of the host's gets what a process had in
		// memory. A limit of nothing would still start the program.
		OOMScoreAdj: new(pidfd.OOMSandbox()),
		Rlimits:     []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Hard: 1, Soft: 1}},
	}
	if p.Agent.UID != 0 {
		process.Capabilities.Inheritable, process.Capabilities.Ambient = caps, caps
	}
	mapping := []specs.LinuxIDMapping{{HostID: ids.UID, Size: ids.Size}}
	return &specs.Spec{
		Version: specVersion, Process: process, Hostname: p.Hostname, Mounts: mounts(p, stage, shown),
		Root: &specs.Root{Path: filepath.Join(stage, stageRoot), Readonly: p.Root.ReadOnly},
		Linux: &specs.Linux{
			UIDMappings: mapping, GIDMappings: mapping, CgroupsPath: group,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace, Path: filepath.Join(stage, stageUser)},
				{Type: specs.NetworkNamespace, Path: filepath.Join(stage, stageNet)},
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace},
			},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			Seccomp:       filter(),
			MaskedPaths:   masked(),
			ReadonlyPaths: hostrootfs.ReadOnlyPaths(),
		},
	}
}

// mounts are those that the runtime makes, in their order: what the kernel gives each
// sandbox, and what of the plan is in that.
func mounts(p engine.Plan, stage string, shown []cgroup.Shown) []specs.Mount {
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
		{Destination: "/sys", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "ro", "mode=755", "size=4k", "nr_inodes=16"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=" + strconv.Itoa(hostrootfs.MaxTerminals)}},
	}
	// The processors are the same for every reader; the rest of a sysfs belongs to the
	// network namespace that it is mounted in.
	list = append(list, bind(sysProcessors, sysProcessors))
	// Not the runtime's own mount of cgroups: on version 1 it shows groups of the runtime's,
	// which have no limits.
	for _, g := range shown {
		list = append(list, bind(filepath.Join(stage, stageGroups, g.Name), filepath.Join(hostrootfs.ShownGroups, g.Name)))
	}
	for _, f := range hostrootfs.StandIns() {
		if bindable(f) {
			list = append(list, bind(filepath.Join(stage, stageMade, f.Name), f.Target))
		}
	}
	shm := false
	for _, t := range p.Tmpfs {
		if kernels(t.Target) {
			shm = shm || filepath.Clean(t.Target) == "/dev/shm"
			list = append(list, specs.Mount{
				Destination: t.Target, Type: "tmpfs", Source: "tmpfs",
				Options: append([]string{"nosuid", "nodev"}, hostrootfs.TmpfsOptions(t.SizeBytes, t.Mode)...),
			})
		}
	}
	if !shm {
		list = append(list, specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", "size=64k"}})
	}
	return list
}

// sysProcessors is what is kept of the host's /sys.
const sysProcessors = "/sys/devices/system/cpu"

func bind(source, target string) specs.Mount {
	return specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}
}

// bindable reports whether runtimes accept a stand-in at that path: runc does so for a
// few of /proc and refuses a bundle with any other.
func bindable(f hostrootfs.StandIn) bool {
	return f.Target == "/proc/stat" || f.Target == "/proc/swaps"
}

// masked are the paths that the runtime covers.
func masked() []string {
	files, dirs := hostrootfs.Covers()
	for _, f := range hostrootfs.StandIns() {
		if !bindable(f) {
			files = append(files, f.Target)
		}
	}
	return append(files, dirs...)
}

// capabilities are the names of a set.
func capabilities(set uint64) []string {
	names := map[int]string{
		unix.CAP_CHOWN: "CHOWN", unix.CAP_DAC_OVERRIDE: "DAC_OVERRIDE", unix.CAP_DAC_READ_SEARCH: "DAC_READ_SEARCH", unix.CAP_FOWNER: "FOWNER",
		unix.CAP_FSETID: "FSETID", unix.CAP_KILL: "KILL", unix.CAP_SETGID: "SETGID", unix.CAP_SETUID: "SETUID", unix.CAP_SETPCAP: "SETPCAP",
		unix.CAP_NET_BIND_SERVICE: "NET_BIND_SERVICE", unix.CAP_SYS_CHROOT: "SYS_CHROOT", unix.CAP_AUDIT_WRITE: "AUDIT_WRITE",
		unix.CAP_SYS_ADMIN: "SYS_ADMIN",
	}
	var out []string
	for c := range unix.CAP_LAST_CAP + 1 {
		if set>>uint(c)&1 != 0 {
			out = append(out, "CAP_"+names[c])
		}
	}
	return out
}

// agentCalls are those that the agent makes beside what programs may: to mount for
// rules on paths, to give processes groups and namespaces, to look into a path. What it
// starts is confined by the agent itself, whose list is the narrower one.
func agentCalls() []string {
	return []string{
		"clone3", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree", "openat2",
		"pidfd_getfd", "pivot_root", "sethostname", "setns", "umount2", "vhangup",
	}
}

// filter is the runtime's own list of system calls, for everything inside; others do
// not exist. Sets of calls of other architectures go by the same list, so that the
// agent's answers for them.
func filter() *specs.LinuxSeccomp {
	archs := map[string][]specs.Arch{
		"amd64": {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
		"arm64": {specs.ArchAARCH64, specs.ArchARM},
	}
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: new(uint(unix.ENOSYS)), Architectures: archs[runtime.GOARCH],
		Syscalls: []specs.LinuxSyscall{{Names: append(confine.Names(), agentCalls()...), Action: specs.ActAllow}},
	}
}

// writeBundle writes a bundle's only file and returns its directory.
func writeBundle(dir string, s *specs.Spec) (string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode bundle: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("make bundle: %w", err)
	}
	defer root.Close()
	err = root.Mkdir("bundle", 0o700)
	if err == nil {
		err = root.WriteFile("bundle/config.json", b, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("write bundle: %w", err)
	}
	return filepath.Join(dir, "bundle"), nil
}

// groupPath is what the runtime calls the cgroup at dir, in the hierarchy at mount.
func groupPath(mount, dir string) string {
	rel, err := filepath.Rel(mount, dir)
	if err != nil || strings.HasPrefix(rel, "..") {
		return ""
	}
	return "/" + rel
}
