//go:build linux

package native

import (
	"encoding/binary"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// Descriptors of the agent, see engine.Agent.
const (
	configFD = 3
	readyFD  = 4
	listenFD = 5
	tapFD    = 6
	guestFD  = 7
	farFD    = 8
	groupFD  = 9
	// aboveFDs is above all of them: where what is handed over lies until then.
	aboveFDs = 64
)

// handed are the descriptors that a script uses, all of them aboveFDs.
type handed struct {
	goRead, goOn, null, config, ready, listener int // goOn is the daemon's end
	guest, far                                  int // -1: no link
	jail, jailLog                               int // -1: none
	root, agent                                 source
	mounts                                      []source
	devices                                     []source // one for each name in devices
	join                                        []int    // "tasks" of version 1 that the child joins
	groups                                      []int    // what the agent puts its processes into
	shown                                       []source // what programs see of their cgroups
	names                                       []string // where each of shown is in /sys
}

// source is what is mounted: a detached mount that the engine has made, or a path
// that the child makes one of, where the engine may not.
type source struct {
	fd    int
	path  string // empty: fd
	attrs uint64 // to set, of what has a path
	file  bool
	// unpacked says that it is a directory of the home's, with what an image holds.
	unpacked bool
	at       any // the argument that names it in the script
}

// write writes the script that makes the place and executes the agent in it.
func (s *script) write(e *Engine, p engine.Plan, ids hostrootfs.IDs, h handed) error {
	s.begin(p, h)
	tap := slot(0)
	if h.guest >= 0 {
		// As the daemon's user, whom the device lets in.
		s.now = "open /dev/net/tun"
		tap = s.get(unix.SYS_OPENAT, unix.AT_FDCWD, "/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC)
		tap = s.get(unix.SYS_FCNTL, tap, unix.F_DUPFD_CLOEXEC, aboveFDs)
	}
	named := p
	if e.jail != nil {
		named.Hostname = "" // it is not in a namespace of its own yet
	}
	s.identity(named, ids)
	s.sources(&h)
	var host slot
	if e.jail != nil {
		s.network(p, tap)
		s.lowPorts()
		s.boundUser(ids)
		host = s.stage(p, &h)
	} else {
		s.root(p, &h)
		s.network(p, tap)
	}
	s.kernel(h, ids, e.jail == nil)
	s.places(p, h)
	s.readOnly(p)
	if e.jail != nil {
		s.imprison(e, p, ids, h, host, tap)
		return s.close()
	}
	s.limitUser(e, p, ids)
	s.weaken(p, ids)
	s.execute(p, h, tap)
	return s.close()
}

// begin waits until the child has its ids, and takes it to its groups.
func (s *script) begin(p engine.Plan, h handed) {
	s.await(h.goRead, h.goOn)
	if !p.DieWithParent {
		s.do(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0)
	}
	s.now = "enter the cgroups"
	for _, fd := range h.join {
		s.do(unix.SYS_WRITE, fd, []byte("0"), 1)
	}
}

// awaitTime bounds the wait for the ids.
const awaitTime = 30 * time.Second

// await waits until the daemon has given the ids, and is all that a script waits for.
// Meanwhile the child has what descriptors the daemon has: its locks, its socket, the
// far ends of other children's pipes. So it dies with the daemon, and does not wait
// indefinitely if the daemon has died before that was set.
func (s *script) await(goRead, goOn int) {
	s.now = "wait for the ids"
	s.do(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL))
	s.do(unix.SYS_CLOSE, goOn)
	readable := unix.PollFd{Fd: int32(goRead), Events: unix.POLLIN}
	limit := unix.NsecToTimespec(int64(awaitTime))
	s.do(unix.SYS_PPOLL, s.bytes(unsafe.Slice((*byte)(unsafe.Pointer(&readable)), unsafe.Sizeof(readable))), 1,
		s.bytes(unsafe.Slice((*byte)(unsafe.Pointer(&limit)), unsafe.Sizeof(limit))), 0, 0)
	s.calls[len(s.calls)-1].want = 1
	s.do(unix.SYS_READ, goRead, make([]byte, 1), 1)
	s.calls[len(s.calls)-1].want = 1
}

// identity leaves the daemon's groups and names and becomes root of the sandbox.
func (s *script) identity(p engine.Plan, ids hostrootfs.IDs) {
	s.now = "leave the session"
	s.do(unix.SYS_SETSID)
	s.try(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	s.become(p, ids)
}

// become makes it root of the user namespace that it is in.
func (s *script) become(p engine.Plan, ids hostrootfs.IDs) {
	s.now = "become root of the sandbox"
	s.do(unix.SYS_SETRESGID, 0, 0, 0)
	if ids.Many() {
		s.do(unix.SYS_SETGROUPS, 0, 0)
	}
	s.do(unix.SYS_SETRESUID, 0, 0, 0)
	s.now = "set the hostname"
	if p.Hostname != "" {
		s.do(unix.SYS_SETHOSTNAME, p.Hostname, len(p.Hostname))
	}
	s.do(unix.SYS_UMASK, 0)
}

// filesystem makes a detached mount of a filesystem.
func (s *script) filesystem(kind string, attrs int, options ...string) slot {
	fs := s.get(unix.SYS_FSOPEN, kind, unix.FSOPEN_CLOEXEC)
	for _, o := range options {
		key, value, ok := strings.Cut(o, "=")
		if ok {
			s.do(unix.SYS_FSCONFIG, fs, unix.FSCONFIG_SET_STRING, key, value, 0)
		} else {
			s.do(unix.SYS_FSCONFIG, fs, unix.FSCONFIG_SET_FLAG, key, 0, 0)
		}
	}
	s.do(unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, 0, 0, 0)
	m := s.get(unix.SYS_FSMOUNT, fs, unix.FSMOUNT_CLOEXEC, attrs)
	s.do(unix.SYS_CLOSE, fs)
	return m
}

const (
	plainAttrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	quietAttrs = plainAttrs | unix.MOUNT_ATTR_NOEXEC
)

// sources makes mounts of paths while they can be seen.
func (s *script) sources(h *handed) {
	s.now = "keep mounts from the host"
	s.do(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_SLAVE, 0)
	open := func(x *source) {
		if x.path == "" {
			x.at = x.fd
			return
		}
		s.now = "open what is to be mounted"
		x.at = s.get(unix.SYS_OPEN_TREE, unix.AT_FDCWD, x.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if x.attrs != 0 {
			s.do(unix.SYS_MOUNT_SETATTR, x.at, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, s.mountAttr(x.attrs), unix.MOUNT_ATTR_SIZE_VER0)
		}
	}
	open(&h.root)
	open(&h.agent)
	for i := range h.mounts {
		open(&h.mounts[i])
	}
	for i := range h.devices {
		open(&h.devices[i])
	}
	for i := range h.shown {
		open(&h.shown[i])
	}
}

// root makes the root filesystem and leaves the host's behind. What is mounted later
// is found in the sandbox's own root only, wherever a link of its image leads.
func (s *script) root(p engine.Plan, h *handed) {
	// The kernel gives a new user namespace those two only as long as the host's are
	// in sight.
	s.now = "make /proc"
	proc := s.filesystem("proc", quietAttrs)
	s.now = "make /sys"
	sys := s.filesystem("sysfs", quietAttrs|unix.MOUNT_ATTR_RDONLY)
	s.now = "make the root"
	s.do(unix.SYS_MOUNT, "none", "/proc", "tmpfs", layerFlags, layer(p))
	s.do(unix.SYS_CHDIR, "/proc")
	s.overlay(h, unix.MS_NODEV)
	s.now = "enter the root"
	s.do(unix.SYS_CHDIR, "root")
	s.pivot()
	s.now = mountSystem
	s.system(proc, "/proc")
	s.system(sys, "/sys")
}

// mountSystem is what is said of a root in which there is a link in their place.
const mountSystem = "mount /proc, /sys and /dev (none of them may be a link of the image)"

// pivot makes the working directory the root, and leaves the one before.
func (s *script) pivot() {
	s.do(unix.SYS_PIVOT_ROOT, ".", ".")
	s.do(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	s.do(unix.SYS_CHDIR, "/")
}

// layer is the options of the filesystem that overlay uses, which holds what is written
// in the sandbox.
func layer(p engine.Plan) string {
	size := p.Limits.DiskBytes
	if p.Root.ReadOnly || size <= 0 {
		size = hostrootfs.NoDiskLimit
	}
	// A little more for the directories that are there already, at most as many.
	return strings.Join(hostrootfs.TmpfsOptions(size+8*4096, 0o755), ",")
}

// layerFlags are the flags of a layer's mount. Only the kernel uses it.
const layerFlags = unix.MS_NOSUID | unix.MS_NODEV

// overlay makes the root filesystem at root in the working directory, which is a
// layer's.
func (s *script) overlay(h *handed, flags int) {
	s.mkdir("lower", 0o755)
	s.move(h.root.at, "lower")
	s.mkdir("upper", 0o755)
	s.mkdir("work", 0o700)
	s.mkdir("root", 0o755)
	s.do(unix.SYS_MOUNT, "root", "root", "overlay", flags, "lowerdir=lower,upperdir=upper,workdir=work,userxattr")
	if h.agent.unpacked {
		// The kernel shows of a mount where its directory is in its filesystem, and of an
		// overlay what is said here.
		s.mkdir("agent", 0o755)
		s.mkdir("nothing", 0o555)
		s.move(h.agent.at, "agent")
		h.agent.at = s.filesystem("overlay", plainAttrs|unix.MOUNT_ATTR_RDONLY, "lowerdir=agent:nothing", "userxattr")
	}
}

func (s *script) mkdir(name string, mode int) { s.do(unix.SYS_MKDIRAT, unix.AT_FDCWD, name, mode) }

// move attaches a detached mount, a slot or a number, to a path.
func (s *script) move(mount any, to string) {
	s.do(unix.SYS_MOVE_MOUNT, mount, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// system attaches what must be where its name says and nowhere else.
func (s *script) system(mount any, to string) {
	s.try(unix.SYS_MKDIRAT, unix.AT_FDCWD, to, 0o755)
	at := s.get(unix.SYS_OPENAT, unix.AT_FDCWD, to, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC)
	s.do(unix.SYS_MOVE_MOUNT, mount, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	s.do(unix.SYS_CLOSE, at)
}

// kernel makes /dev and covers what of /proc and /sys is not the sandbox's business.
func (s *script) kernel(h handed, ids hostrootfs.IDs, proc bool) {
	s.now = "make /dev"
	dev := s.filesystem("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "size=64k", "mode=755", "nr_inodes=64")
	s.system(dev, "/dev")
	for i, d := range hostrootfs.Devices() {
		s.makeFile("/dev/"+d.Name, 0o666)
		s.move(h.devices[i].at, "/dev/"+d.Name)
	}
	for _, l := range [][2]string{{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"}} {
		s.do(unix.SYS_SYMLINKAT, l[0], unix.AT_FDCWD, "/dev/"+l[1])
	}
	s.mkdir("/dev/pts", 0o755)
	s.mkdir("/dev/shm", 0o1777)
	s.move(s.filesystem("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "newinstance", "ptmxmode=0666", "mode=0620", "max="+strconv.Itoa(hostrootfs.MaxTerminals)), "/dev/pts")
	if proc {
		s.boundUser(ids)
	}
	s.cover(h, proc)
}

// boundUser bounds what the sandbox may take of the tables of the daemon's own user.
func (s *script) boundUser(ids hostrootfs.IDs) {
	if ids.Many() {
		return
	}
	s.now = "bound what is counted by user"
	for _, set := range hostrootfs.UserSettings() {
		s.set(set.Path, set.Value)
	}
}

// set writes a setting of the kernel's, where there is that one.
func (s *script) set(path, value string) {
	fd := s.slot()
	s.optional(func() {
		s.try(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_WRONLY|unix.O_CLOEXEC)
		s.calls[len(s.calls)-1].save = fd
	}, func() {
		s.do(unix.SYS_WRITE, slot(fd), []byte(value), len(value))
		s.do(unix.SYS_CLOSE, slot(fd))
	})
}

// limitUser bounds what is counted by user and limited by process: in the sandbox's own user
// namespace, and so for all that is in it. Processes are more than the sandbox may have by
// those of the agent.
func (s *script) limitUser(e *Engine, p engine.Plan, ids hostrootfs.IDs) {
	if ids.Many() {
		return
	}
	s.now = "bound what is counted by user"
	limits := hostrootfs.UserLimits()
	if e.countsByUser() && p.Limits.Pids > 0 {
		limits = append(limits, hostrootfs.Limit{Kind: unix.RLIMIT_NPROC, Most: uint64(p.Limits.Pids + ownThreads)})
	}
	for _, l := range limits {
		s.do(unix.SYS_PRLIMIT64, 0, l.Kind, binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, l.Most), l.Most), 0)
	}
}

// Where what covers is mounted while it is copied: at an empty file and an empty
// directory of /dev, which are what they are called again afterwards.
const (
	coverFile = "/dev/.null"
	coverDir  = "/dev/shm"
	// What is in the filesystem that covers.
	coverEmpty = coverDir + "/empty"
	coverMade  = coverDir + "/made"
	coverSys   = coverDir + "/sys"
)

// cover covers what of /proc and /sys is the host's business: files by a null device that
// cannot be opened for writing, directories by one directory that nothing can be made in,
// and /sys by one that has what is kept of it. Each is a copy of one mount, for a filesystem
// of its own costs the kernel a hundred times as much, and costs it for each other sandbox
// again when a group of memory ends.
func (s *script) cover(h handed, proc bool) {
	s.now = "cover what is the host's in /proc and /sys"
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	s.do(unix.SYS_MOUNT, "none", coverDir, "tmpfs", flags, "size=1m,nr_inodes=64,mode=755")
	s.mkdir(coverEmpty, 0o555)
	made := hostrootfs.StandIns()
	if proc {
		s.standIns(coverMade, made)
	}
	s.keepSys(h)
	s.do(unix.SYS_MOUNT, "none", coverDir, 0, unix.MS_REMOUNT|unix.MS_RDONLY|flags, 0)
	s.coverSys(h)
	if proc {
		s.coverProc(made)
	}
	s.do(unix.SYS_UMOUNT2, coverDir, unix.MNT_DETACH)
}

// standIns makes a directory with the files that stand for those of /proc.
func (s *script) standIns(dir string, made []hostrootfs.StandIn) {
	s.mkdir(dir, 0o755)
	for _, f := range made {
		fd := s.get(unix.SYS_OPENAT, unix.AT_FDCWD, dir+"/"+f.Name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o444)
		s.do(unix.SYS_WRITE, fd, []byte(f.Text), len(f.Text))
		s.do(unix.SYS_CLOSE, fd)
	}
}

// keepSys makes the places where what is kept of /sys is mounted.
func (s *script) keepSys(h handed) {
	for _, name := range hostrootfs.KeptSys() {
		s.parents(coverSys+strings.TrimPrefix(name, "/sys"), true)
	}
	for i, name := range h.names {
		at := coverSys + strings.TrimPrefix(name, "/sys")
		s.parents(at, !h.shown[i].file)
		if h.shown[i].file {
			s.makeFile(at, 0o444)
		}
	}
}

// coverSys leaves of /sys what is kept, and shows the sandbox's own cgroups in it.
func (s *script) coverSys(h handed) {
	var kept []slot
	for _, name := range hostrootfs.KeptSys() {
		kept = append(kept, s.get(unix.SYS_OPEN_TREE, unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	}
	s.do(unix.SYS_UMOUNT2, "/sys", unix.MNT_DETACH)
	s.do(unix.SYS_MOUNT, coverSys, "/sys", 0, unix.MS_BIND, 0)
	for i, name := range hostrootfs.KeptSys() {
		s.move(kept[i], name)
		s.do(unix.SYS_CLOSE, kept[i])
	}
	for i, name := range h.names {
		s.move(h.shown[i].at, name)
	}
}

// coverProc covers what is covered of /proc, and makes of the rest read-only what only the
// host may change.
func (s *script) coverProc(made []hostrootfs.StandIn) {
	readOnly := s.mountAttr(unix.MOUNT_ATTR_RDONLY)
	for _, name := range hostrootfs.ReadOnlyPaths() {
		s.do(unix.SYS_MOUNT, name, name, 0, unix.MS_BIND, 0)
		s.do(unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, name, 0, readOnly, unix.MOUNT_ATTR_SIZE_VER0)
	}
	over := func(what, name string) {
		s.optional(func() { s.try(unix.SYS_FACCESSAT, unix.AT_FDCWD, name, 0) }, func() {
			s.do(unix.SYS_MOUNT, what, name, 0, unix.MS_BIND, 0)
		})
	}
	s.makeFile(coverFile, 0)
	s.do(unix.SYS_MOUNT, "/dev/null", coverFile, 0, unix.MS_BIND, 0)
	s.do(unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, coverFile, 0, readOnly, unix.MOUNT_ATTR_SIZE_VER0)
	files, dirs := hostrootfs.Covers()
	for _, name := range files {
		over(coverFile, name)
	}
	s.do(unix.SYS_UMOUNT2, coverFile, unix.MNT_DETACH)
	s.do(unix.SYS_UNLINKAT, unix.AT_FDCWD, coverFile, 0)
	for _, name := range dirs {
		over(coverEmpty, name)
	}
	for _, f := range made {
		over(coverMade+"/"+f.Name, f.Target)
	}
}

// makeFile makes an empty file where none is.
func (s *script) makeFile(name string, mode int) {
	fd := s.slot()
	s.optional(func() {
		s.try(unix.SYS_OPENAT, unix.AT_FDCWD, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
		s.calls[len(s.calls)-1].save = fd
	}, func() { s.do(unix.SYS_CLOSE, slot(fd)) })
}

// parents makes the directories above name, and name as well with all.
func (s *script) parents(name string, all bool) {
	name = path.Clean(name)
	for i, r := range name {
		if r == '/' && i > 0 {
			s.try(unix.SYS_MKDIRAT, unix.AT_FDCWD, name[:i], 0o755)
		}
	}
	if all {
		s.try(unix.SYS_MKDIRAT, unix.AT_FDCWD, name, 0o755)
	}
}

// places mounts what the plan names, in its order.
func (s *script) places(p engine.Plan, h handed) {
	s.now = "mount the agent"
	s.parents(p.Agent.Target, true)
	s.system(h.agent.at, p.Agent.Target)
	for _, t := range p.Tmpfs {
		s.now = "mount " + t.Target
		s.parents(t.Target, true)
		s.move(s.filesystem("tmpfs", plainAttrs, hostrootfs.TmpfsOptions(t.SizeBytes, t.Mode)...), t.Target)
	}
	for i, m := range p.Mounts {
		s.now = "mount " + m.Target
		s.parents(m.Target, !h.mounts[i].file)
		if h.mounts[i].file {
			s.makeFile(m.Target, 0o644)
		}
		s.move(h.mounts[i].at, m.Target)
	}
	s.coverSockets(p, h)
}

// readOnly closes the root, when everything is in it.
func (s *script) readOnly(p engine.Plan) {
	if p.Root.ReadOnly {
		s.now = "make the root read-only"
		s.do(unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, "/", 0, s.mountAttr(unix.MOUNT_ATTR_RDONLY), unix.MOUNT_ATTR_SIZE_VER0)
	}
}

// weaken takes from the first process what it does not need.
func (s *script) weaken(p engine.Plan, ids hostrootfs.IDs) {
	s.now = "give up capabilities"
	keep := ids.AgentCaps()
	s.limitCore()
	s.do(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	for c := range unix.CAP_LAST_CAP + 1 {
		if keep>>uint(c)&1 == 0 {
			s.try(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
	}
	inherit := uint64(0)
	if p.Agent.UID != 0 {
		s.now = "become the agent's user"
		inherit = keep
		s.do(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
		s.do(unix.SYS_SETRESGID, int(p.Agent.UID), int(p.Agent.UID), int(p.Agent.UID))
		s.do(unix.SYS_SETRESUID, int(p.Agent.UID), int(p.Agent.UID), int(p.Agent.UID))
	}
	var data []byte
	for _, half := range []uint{0, 32} {
		caps := uint32(keep >> half)
		data = binary.NativeEndian.AppendUint32(data, caps)
		data = binary.NativeEndian.AppendUint32(data, caps)
		data = binary.NativeEndian.AppendUint32(data, uint32(inherit>>half))
	}
	s.do(unix.SYS_CAPSET, binary.NativeEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3), data)
	if inherit != 0 {
		for c := range unix.CAP_LAST_CAP + 1 {
			if inherit>>uint(c)&1 != 0 {
				s.do(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0)
			}
		}
	}
}

// limitCore lets neither a file nor a program of the host's get what a process had in
// memory. It is one byte, for a limit of nothing would still start the program.
func (s *script) limitCore() {
	s.do(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, 1), 1), 0)
}

// execute becomes the agent.
func (s *script) execute(p engine.Plan, h handed, tap slot) {
	s.handOver(h, tap)
	s.do(unix.SYS_CLOSE_RANGE, groupFD+maxGroups, maxFD, 0)
	s.quiet(p)
	s.now = executeAgent
	s.do(unix.SYS_EXECVE, p.Agent.Argv[0], s.vector(p.Agent.Argv), s.vector(nil))
}

const (
	maxFD        = math.MaxInt32
	executeAgent = "execute the agent"
)

// handOver puts the descriptors where the agent expects them.
func (s *script) handOver(h handed, tap slot) {
	s.now = "hand over descriptors"
	for fd := range 3 {
		s.do(unix.SYS_DUP3, h.null, fd, 0)
	}
	s.do(unix.SYS_DUP3, h.config, configFD, 0)
	s.do(unix.SYS_DUP3, h.ready, readyFD, 0)
	s.do(unix.SYS_DUP3, h.listener, listenFD, 0)
	s.do(unix.SYS_CLOSE_RANGE, tapFD, groupFD+maxGroups-1, 0)
	if h.guest >= 0 {
		s.do(unix.SYS_DUP3, tap, tapFD, 0)
		s.do(unix.SYS_DUP3, h.guest, guestFD, 0)
		s.do(unix.SYS_DUP3, h.far, farFD, 0)
	}
	for i, fd := range h.groups {
		s.do(unix.SYS_DUP3, fd, groupFD+i, 0)
	}
}

// slack is how late the agent's timers may be. The Go runtime has a thread that looks
// after the others every 20 microseconds for as long as there is anything to do: with
// the kernel's own slack of 50 that was a tenth of what a sandbox costs. What the agent
// starts has the kernel's own, see package guest.
const slack = time.Millisecond

// quiet makes a process as a program expects to begin.
func (s *script) quiet(p engine.Plan) {
	s.do(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, int(slack))
	s.do(unix.SYS_UMASK, 0o022)
	if p.DieWithParent {
		// Each change of the identity has taken it back.
		s.do(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL))
	}
	s.do(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, make([]byte, 8), 0, 8)
}

// mountAttr is the argument of mount_setattr.
func (s *script) mountAttr(set uint64) uintptr {
	a := unix.MountAttr{Attr_set: set}
	return s.bytes(unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a)))
}
