package docker

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/inner"
)

// shmTarget is a memory filesystem that the daemon makes by itself.
const shmTarget = "/dev/shm"

// ownPids are for the threads of the agent and of package inner, which the daemon's
// limit counts too. Both make theirs before anything else runs.
const ownPids = 64

// oomScore has the kernel kill what is in a container before our daemon and theirs when
// memory runs out. The agent has the same as its programs: no process inside can write to /proc.
const oomScore = 500

// sysProcessors is what is kept of /sys.
const sysProcessors = "/sys/devices/system/cpu"

// cgroupRoot is where the hierarchies of cgroups are, on the host and inside.
const cgroupRoot = "/sys/fs/cgroup"

// capabilities are what a process of uid 0 is given inside: enough to install
// packages, change owners and serve low ports; nothing that mounts, traces, makes
// devices, loads code into the kernel, reconfigures the network or gives files
// capabilities. The agent has no more, because it can only give what it has; of these it
// gives all but FSETID.
func capabilities() []string {
	return []string{
		"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
		"NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE",
	}
}

// linkPort is the agent's port where it is given the socket with a link; 0 where it
// makes the socket by itself.
func linkPort(p engine.Plan) int {
	if p.Link == nil {
		return 0
	}
	return p.Agent.Port
}

// podmanFiles and podmanProcesses are the limits of a process where a Podman service is on
// another machine: what it gives by itself, a million files, is more than many are allowed
// to give, and then it starts nothing.
const podmanFiles, podmanProcesses = 1 << 14, 1 << 15

// ulimits are the limits of each process; none is that the daemon's own hold.
func (c *creation) ulimits() []*container.Ulimit {
	if !c.shared && c.e.opts.Name == Podman {
		return []*container.Ulimit{{Name: "nofile", Soft: podmanFiles, Hard: podmanFiles}, {Name: "nproc", Soft: podmanProcesses, Hard: podmanProcesses}}
	}
	return limits(c.shared)
}

// masked are the paths of /proc that the daemon covers, in the place of its own list. What
// this machine's kernel has is asked of this machine: another one's may have more. The last
// two are empty where nothing better can be put there, see cover.
func masked() []string {
	files, dirs := hostrootfs.Covers()
	return slices.Concat(files, dirs, []string{"/proc/sys/kernel/random/boot_id", "/proc/vmstat"})
}

// securityOptions are those that are text. Podman takes what is covered and that /proc is
// read-only as such, and passes over what the request has for that. (Elsewhere the agent
// makes it so, by confine.Proc; here it has no capability for that.)
func (c *creation) securityOptions() []string {
	list := []string{"no-new-privileges"}
	if c.e.opts.Name == Podman {
		list = append(list, "mask="+strings.Join(masked(), ":"), "proc-opts=nosuid,nodev,noexec,ro")
	}
	return list
}

// options describe the plan to the daemon. image and volume are its names for the root
// and for the agent.
func (c *creation) options(image, volume string) client.ContainerCreateOptions {
	p := c.p
	program := path.Join(p.Agent.Target, inner.Argv0)
	volumePlaces := writable(p.Volumes)
	start := []string{inner.Start, strconv.FormatUint(uint64(p.Agent.UID), 10), strconv.Itoa(linkPort(p)), strconv.Itoa(len(volumePlaces))}
	config := &container.Config{
		Hostname: p.Hostname, Image: image, User: "0:0", WorkingDir: "/", Labels: labels(p, c.try),
		AttachStdin: true, AttachStdout: true, AttachStderr: true, OpenStdin: true, StdinOnce: true,
		Entrypoint: []string{program},
		Cmd:        slices.Concat(start, volumePlaces, p.Agent.Argv),
		Env:        []string{"HOME=/"},
	}
	no := false
	h := &container.HostConfig{
		NetworkMode: "none", IpcMode: "private", CgroupnsMode: "private", Runtime: c.e.opts.Runtime,
		CapDrop: []string{"ALL"}, CapAdd: capabilities(),
		SecurityOpt:    c.securityOptions(),
		ReadonlyRootfs: p.Root.ReadOnly, OomScoreAdj: oomScore,
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:     container.LogConfig{Type: "none"},
		// No server answers there: the host's resolvers are not for the sandbox.
		DNS: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, DNSSearch: []string{"."},
		Init: &no,
		Resources: container.Resources{
			Memory: p.Limits.MemoryBytes, MemorySwap: p.Limits.MemoryBytes,
			NanoCPUs: int64(p.Limits.CPUs * 1e9),
			Ulimits:  c.ulimits(),
		},
		Tmpfs: map[string]string{
			"/sys":     "ro,nosuid,nodev,noexec,mode=755,size=4k",
			cgroupRoot: "ro,nosuid,nodev,noexec,mode=755,size=4k",
		},
		MaskedPaths: masked(), ReadonlyPaths: []string{"/proc"},
		Mounts: []mount.Mount{{
			Type: mount.TypeVolume, Source: volume, Target: p.Agent.Target, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}},
	}
	if p.Limits.Pids > 0 {
		most := p.Limits.Pids + ownPids
		h.PidsLimit = &most
	}
	if p.Limits.DiskBytes > 0 {
		h.StorageOpt = map[string]string{"size": strconv.FormatInt(p.Limits.DiskBytes, 10)}
	}
	for _, t := range p.Tmpfs {
		if t.Target == shmTarget {
			h.ShmSize = t.SizeBytes
			continue
		}
		h.Tmpfs[t.Target] = fmt.Sprintf("rw,exec,nosuid,nodev,size=%d,mode=%o", t.SizeBytes, t.Mode)
	}
	h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: sysProcessors, Target: sysProcessors, ReadOnly: true})
	h.Mounts = append(h.Mounts, volumes(p)...)
	for _, m := range p.Mounts {
		h.Mounts = append(h.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	return client.ContainerCreateOptions{Config: config, HostConfig: h, Name: containerName(p)}
}
