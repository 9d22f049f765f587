//go:build linux

package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// stage is a thread with a mount namespace of its own, in which runtimes are started:
// no other process sees what is mounted there, and it is gone with its last process.
type stage struct{ thread *pidfd.Spawner }

// enterStage makes one. Where the runtime wants it, the hierarchy of version 2 is hidden:
// crun runs nothing where it sees both versions of cgroups.
func enterStage(ctx context.Context, hide []string) (*stage, error) {
	s := &stage{pidfd.NewSpawner()}
	err := s.do(ctx, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("keep mounts from the host: %w", err)
		}
		unix.Umask(0) // of this thread alone
		for _, mount := range hide {
			if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("hide a cgroup hierarchy: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) do(ctx context.Context, f func() error) error { return s.thread.Do(ctx, f) }

// close ends the thread, and with it the namespace as far as no process is in it.
func (s *stage) close() { s.thread.Close() }

// covers are directories one of which the stage is mounted over: everybody may go
// through it, which the sandbox's root has to, and no path that is used is in it.
var covers = [...]string{"/mnt", "/media", "/srv", "/opt", "/tmp", "/home"}

// cover chooses one.
func cover(used ...string) (string, error) {
	for _, dir := range covers {
		var st unix.Stat_t
		free := unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
		for _, path := range used {
			real, err := filepath.EvalSymlinks(path)
			free = free && err == nil && !strings.HasPrefix(real+"/", dir+"/")
		}
		if free {
			return dir, nil
		}
	}
	return "", errors.New("find a directory to prepare the root at: none of " + strings.Join(covers[:], ", ") + " is free")
}

// Names in the stage.
const (
	stageRoot = "root"
	stageUser = "user"
	stageNet  = "net"
	stageMade = "made"
	// stageGroups has what programs see of their cgroups.
	stageGroups = "groups"

	stageInert = "inert"
)

// tree is a root filesystem on its way.
type tree struct {
	at  string // where the stage is mounted
	ids hostrootfs.IDs
	top *os.File // the root, as a path
}

// source is what is going to be mounted: detached, its owners mapped already.
type source struct {
	fd   int
	file bool
	// unpacked says that it is a directory of the home's, with what an image holds.
	unpacked bool
}

// sources are those of a plan. They are made before the stage covers anything.
type sources struct {
	root, agent source
	mounts      []source
}

func (s *sources) close() {
	for _, x := range append([]source{s.root, s.agent}, s.mounts...) {
		if x.fd >= 0 {
			_ = unix.Close(x.fd)
		}
	}
	*s = noSources()
}

func noSources() sources { return sources{root: source{fd: -1}, agent: source{fd: -1}} }

// openSources makes the mounts of a plan.
func (c *creation) openSources() error {
	var err error
	if c.sources.root, err = c.openImage(c.plan.Root.Image); err != nil {
		return err
	}
	if err := mapOwners(c.sources.root.fd, c.ns.user); err != nil {
		return c.e.images.OwnersError(err)
	}
	if c.sources.agent, err = c.openImage(c.plan.Agent.Image); err != nil {
		return err
	}
	for _, m := range c.plan.Mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return fmt.Errorf("open mount: %w", err)
		}
		attrs := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if m.ReadOnly {
			attrs |= unix.MOUNT_ATTR_RDONLY
		}
		fd, err := hostrootfs.Detach(m.Source, attrs)
		if err != nil {
			return err
		}
		c.sources.mounts = append(c.sources.mounts, source{fd: fd, file: !info.IsDir()})
		by := c.ns.user
		if hostrootfs.Closes(m) {
			if by, err = c.ids.Closed(); err != nil {
				return err
			}
			defer by.Close()
		}
		// What may only be read can be read as it is, by whom its mode lets.
		if err := mapOwners(fd, by); err != nil && !m.ReadOnly {
			return api.Errorf(api.CodeUnsupported,
				"the oci engine cannot map the owners in what is mounted at %s to those of the sandbox: its filesystem does not allow it, or it belongs to another user than the daemon's", m.Target).
				WithHint("mount it read-only, use a workspace of cloche's own, or engine gvisor").WithCause(err)
		}
	}
	return nil
}

// openImage is a detached mount of an image, or of what it is unpacked in.
func (c *creation) openImage(image string) (source, error) {
	fd, dir, err := c.e.images.Mount(image)
	if err != nil || fd >= 0 {
		return source{fd: fd}, err
	}
	fd, err = hostrootfs.Detach(dir, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	return source{fd: fd, unpacked: true}, err
}

// mapOwners shows in a detached mount the files of the host's root as the sandbox's.
func mapOwners(fd int, user *os.File) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(user.Fd())}
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
}

// build makes the root at a directory of the stage. It runs on the stage's thread.
func (t *tree) build(p engine.Plan, s sources, n namespaces, shown []cgroup.Shown) error {
	if err := t.overlay(p, s.root); err != nil {
		return err
	}
	for name, ns := range map[string]*os.File{stageUser: n.user, stageNet: n.net} {
		path := filepath.Join(t.at, name)
		if err := unix.Mknod(path, unix.S_IFREG|0o600, 0); err != nil {
			return fmt.Errorf("show namespace: %w", err)
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show namespace: %w", err)
		}
	}
	if err := t.groups(shown); err != nil {
		return fmt.Errorf("show cgroups: %w", err)
	}
	if err := t.standIns(); err != nil {
		return fmt.Errorf("make files of /proc: %w", err)
	}
	top, err := unix.Open(filepath.Join(t.at, stageRoot), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open root: %w", err)
	}
	t.top = os.NewFile(uintptr(top), stageRoot)
	defer t.top.Close()
	// What the runtime mounts on must be what its name says.
	for _, name := range []string{"proc", "sys", "dev"} {
		if err := t.directory(name); err != nil {
			return fmt.Errorf("mount /proc, /sys and /dev (none of them may be a link of the image): %w", err)
		}
	}
	agent, err := t.hide(s.agent)
	if err == nil {
		err = t.attach(agent, p.Agent.Target)
		_ = unix.Close(agent.fd)
	}
	if err != nil {
		return fmt.Errorf("mount the agent: %w", err)
	}
	for _, m := range p.Tmpfs {
		if kernels(m.Target) {
			continue // the runtime's, after its own
		}
		fd, err := t.memory(m)
		if err == nil {
			err = t.attach(source{fd: fd}, m.Target)
			_ = unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	for i, m := range p.Mounts {
		if err := t.attach(s.mounts[i], m.Target); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	return t.coverSockets(p, s.mounts)
}

// coverSockets covers the sockets of a plan's mounts.
func (t *tree) coverSockets(p engine.Plan, mounts []source) error {
	var in []hostrootfs.Covered
	for i, m := range p.Mounts {
		if len(m.Sockets) > 0 {
			in = append(in, hostrootfs.Covered{Mount: mounts[i].fd, Sockets: m.Sockets})
		}
	}
	if in == nil {
		return nil
	}
	over := filepath.Join(t.at, stageInert)
	if err := os.Mkdir(over, 0o755); err != nil {
		return fmt.Errorf("cover sockets of the host: %w", err)
	}
	return hostrootfs.CoverSockets(over, in)
}

// groups mounts what programs see of their cgroups. One of version 2 is the directory itself.
func (t *tree) groups(shown []cgroup.Shown) error {
	if err := os.Mkdir(filepath.Join(t.at, stageGroups), 0o755); err != nil {
		return err
	}
	for _, g := range shown {
		at := filepath.Join(t.at, stageGroups, g.Name)
		dir := at
		if g.File {
			dir = filepath.Dir(at)
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if g.File {
			if err := unix.Mknod(at, unix.S_IFREG|0o444, 0); err != nil {
				return err
			}
		}
		if err := unix.Mount(g.Path, at, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// standIns makes the files that stand for those of /proc.
func (t *tree) standIns() error {
	dir := filepath.Join(t.at, stageMade)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range hostrootfs.StandIns() {
		if err := root.WriteFile(f.Name, []byte(f.Text), 0o444); err != nil {
			return err
		}
	}
	return nil
}

// hide returns a mount of what is in another one. The kernel shows of a mount where its
// directory is in its filesystem, so one of the home's goes below an overlay.
func (t *tree) hide(s source) (source, error) {
	if !s.unpacked {
		fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
		return source{fd: fd}, err
	}
	lower := make([]string, 0, 2)
	for _, name := range []string{"agent", "nothing"} {
		path := filepath.Join(t.at, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			return source{}, err
		}
		lower = append(lower, path)
	}
	if err := move(s.fd, unix.AT_FDCWD, lower[0], 0); err != nil {
		return source{}, err
	}
	if err := unix.Mount("agent", lower[1], "overlay", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "lowerdir="+strings.Join(lower, ":")); err != nil {
		return source{}, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, lower[1], unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	return source{fd: fd}, err
}

// kernels reports whether a path is in one of the directories that the runtime mounts.
func kernels(target string) bool {
	target = filepath.Clean(target)
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if target == dir || strings.HasPrefix(target, dir+"/") {
			return true
		}
	}
	return false
}

// overlay makes the image with a layer of memory above it. The options of the mount,
// which are seen inside, have no path of the host's.
func (t *tree) overlay(p engine.Plan, root source) error {
	if err := unix.Mount("none", t.at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=256k,mode=755"); err != nil {
		return fmt.Errorf("make the stage: %w", err)
	}
	for _, dir := range []string{"lower", "rw", stageRoot} {
		if err := os.Mkdir(filepath.Join(t.at, dir), 0o755); err != nil {
			return fmt.Errorf("make the stage: %w", err)
		}
	}
	if err := unix.Chdir(t.at); err != nil {
		return fmt.Errorf("enter the stage: %w", err)
	}
	defer func() { _ = unix.Chdir("/") }()
	if err := move(root.fd, unix.AT_FDCWD, "lower", 0); err != nil {
		return fmt.Errorf("mount the image: %w", err)
	}
	size := p.Limits.DiskBytes
	if p.Root.ReadOnly || size <= 0 {
		size = hostrootfs.NoDiskLimit
	}
	// A little more for the two directories that are there already.
	rw, err := t.memory(engine.Tmpfs{SizeBytes: size + 2*4096, Mode: 0o755})
	if err != nil {
		return fmt.Errorf("make the writable layer: %w", err)
	}
	defer func() { _ = unix.Close(rw) }()
	if err := move(rw, unix.AT_FDCWD, "rw", 0); err != nil {
		return fmt.Errorf("mount the writable layer: %w", err)
	}
	for name, mode := range map[string]os.FileMode{"rw/upper": 0o755, "rw/work": 0o700} {
		if err := os.Mkdir(filepath.Join(t.at, name), mode); err != nil {
			return fmt.Errorf("make the writable layer: %w", err)
		}
		if err := unix.Lchown(filepath.Join(t.at, name), int(t.ids.UID), int(t.ids.GID)); err != nil {
			return fmt.Errorf("make the writable layer: %w", err)
		}
	}
	options := "lowerdir=lower,upperdir=rw/upper,workdir=rw/work"
	if keepsMarks("rw/upper") {
		options += ",userxattr"
	}
	if err := unix.Mount("root", stageRoot, "overlay", unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	return nil
}

// keepsMarks reports whether a user namespace could keep on a filesystem what an overlay
// notes of directories. In memory it can since Linux 6.6; before, the overlay's marks are
// root's, without which no directory of the image could be removed.
func keepsMarks(dir string) bool {
	const mark = "user.overlay.cloche"
	return unix.Setxattr(dir, mark, []byte("y"), 0) == nil && unix.Removexattr(dir, mark) == nil
}

// memory makes a detached memory filesystem that belongs to the sandbox's root.
func (t *tree) memory(m engine.Tmpfs) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a memory filesystem: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	options := append(hostrootfs.TmpfsOptions(m.SizeBytes, m.Mode), fmt.Sprintf("uid=%d", t.ids.UID), fmt.Sprintf("gid=%d", t.ids.GID))
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return -1, fmt.Errorf("make a memory filesystem: set %s: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make a memory filesystem: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("make a memory filesystem: %w", err)
	}
	return fd, nil
}

func move(fd, dir int, path string, flags int) error {
	return unix.MoveMount(fd, "", dir, path, unix.MOVE_MOUNT_F_EMPTY_PATH|flags)
}

// attach mounts what is detached at a path of the root, whose parents are made. A link
// in the path leads where it leads inside, and never out.
func (t *tree) attach(s source, target string) error {
	at, err := t.open(target, s.file)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	return move(s.fd, at, "", unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// inside resolves a path as it is seen in the root.
func (t *tree) inside(path string, flags uint64) (int, error) {
	return unix.Openat2(int(t.top.Fd()), path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// open finds a path in the root and makes what of it is not there.
func (t *tree) open(target string, file bool) (int, error) {
	path := ""
	parts := strings.Split(strings.Trim(filepath.Clean(target), "/"), "/")
	for i, part := range parts {
		parent := path
		path = filepath.Join(path, part)
		fd, err := t.inside(path, 0)
		if errors.Is(err, unix.ENOENT) {
			if err = t.make(parent, part, file && i == len(parts)-1); err == nil {
				fd, err = t.inside(path, 0)
			}
		}
		if err != nil {
			return -1, err
		}
		if i == len(parts)-1 {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	return -1, unix.EINVAL
}

// make makes a directory, or an empty file, in an existing one. In a mount whose
// owners are mapped, only a mapped user can make one: the sandbox's root.
func (t *tree) make(parent, name string, file bool) error {
	if parent == "" {
		parent = "."
	}
	err := t.makeAs(parent, name, file)
	if errors.Is(err, unix.EOVERFLOW) {
		_ = unix.Setfsgid(int(t.ids.GID)) // of this thread; neither call says whether it did
		_ = unix.Setfsuid(int(t.ids.UID))
		err = t.makeAs(parent, name, file)
		_ = unix.Setfsuid(0)
		_ = unix.Setfsgid(0)
	}
	return err
}

// makeAs is make as the user of the thread.
func (t *tree) makeAs(parent, name string, file bool) error {
	dir, err := t.inside(parent, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if file {
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
	} else if err := unix.Mkdirat(dir, name, 0o755); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Uid == t.ids.UID && st.Gid == t.ids.GID {
		return err
	}
	return unix.Fchownat(dir, name, int(t.ids.UID), int(t.ids.GID), unix.AT_SYMLINK_NOFOLLOW)
}

// directory makes one in the root, or sees that there is one and no link.
func (t *tree) directory(name string) error {
	err := t.make("", name, false)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := t.inside(name, unix.O_NOFOLLOW|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
