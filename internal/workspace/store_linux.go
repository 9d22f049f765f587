package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
)

// namedDir is the directory of named workspaces below the home.
const namedDir = "workspaces"

// Store keeps the named workspaces of every tenant. It is safe for concurrent
// use, also by several processes.
type Store struct {
	dir string
}

// Open opens the store of named workspaces below the home directory, which must
// exist and belong to this user.
func Open(home string) (*Store, error) {
	f, err := openOwn(home)
	if err != nil {
		return nil, fmt.Errorf("open home: %w", err)
	}
	defer f.Close()
	dir, err := ensureDir(f, namedDir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("open named workspaces: %w", err)
	}
	defer dir.Close()
	path, err := os.Readlink(procPath(dir))
	if err != nil {
		return nil, fmt.Errorf("read path of named workspaces: %w", err)
	}
	return &Store{dir: path}, nil
}

// Named opens the tenant's workspace called name, which is made when it does not
// exist. A name that cannot be one is cloche.CodeInvalid. The caller closes what
// it gets.
func (s *Store) Named(tenant, name string) (*Dir, error) {
	if !cloche.ValidName(tenant) {
		return nil, cloche.Errorf(cloche.CodeInvalid, "tenant %q has no name under which workspaces can be kept", clip(tenant))
	}
	if !cloche.ValidName(name) {
		return nil, cloche.Invalid("workspace.name", "workspace name %q is not one", clip(name)).
			WithHint("a name has 1 to %d of a-z, 0-9, '-', '_' and '.', and begins with a letter or digit", cloche.MaxNameLen)
	}
	root, err := openPath(unix.AT_FDCWD, s.dir)
	if err != nil {
		return nil, fmt.Errorf("open named workspaces: %w", err)
	}
	defer root.Close()
	// Only this user gets past the tenant's directory, so the workspace itself may
	// be open to whichever user the sandbox runs as.
	owner, err := ensureDir(root, tenant, 0o700)
	if err != nil {
		return nil, fmt.Errorf("open workspaces of tenant %s: %w", tenant, err)
	}
	defer owner.Close()
	f, err := ensureDir(owner, name, 0o777)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, cloche.Invalid("workspace.name", "workspace %q is kept as something that is not a directory", name).
			WithHint("remove what lies in its place, or choose another name").WithCause(err)
	}
	if err != nil {
		return nil, fmt.Errorf("open workspace %s: %w", name, err)
	}
	return newDir(f, true)
}

// Private makes the directory at path, the parent of which only this user may
// enter, and opens it. The caller closes what it gets and owns what is on disk.
func Private(path string) (*Dir, error) {
	parent, err := openOwn(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("open parent of private workspace: %w", err)
	}
	defer parent.Close()
	if err := ours(parent, 0o077); err != nil {
		return nil, fmt.Errorf("make private workspace: parent: %w", err)
	}
	f, err := ensureDir(parent, filepath.Base(path), 0o777)
	if err != nil {
		return nil, fmt.Errorf("make private workspace: %w", err)
	}
	return newDir(f, true)
}

// openPath opens a directory as a place only; no part of the path may be a
// symlink.
func openPath(at int, path string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(at, path, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// openOwn opens a directory that Cloche's own configuration names: how its path
// leads there is the operator's affair.
func openOwn(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// ensureDir opens the directory name in parent, making it when it is missing. It
// must be this user's, and is given exactly the permissions perm.
func ensureDir(parent *os.File, name string, perm uint32) (*os.File, error) {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return nil, fmt.Errorf("make directory %q: not a name", name)
	}
	fd := int(parent.Fd())
	if err := unix.Mkdirat(fd, name, perm); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make directory %s: %w", name, err)
	}
	f, err := openPath(fd, name)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", name, err)
	}
	if err := ours(f, 0); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("open directory %s: %w", name, err)
	}
	// The mode is set at each opening: a sandbox may have changed that of its own.
	// The umask had a say; and descriptors of this kind take no fchmod.
	if err := unix.Fchmodat(unix.AT_FDCWD, procPath(f), perm, 0); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("chmod directory %s: %w", name, err)
	}
	return f, nil
}

// ours refuses a directory that belongs to somebody else or has any of the
// permissions in forbidden.
func ours(f *os.File, forbidden uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, not to this one", st.Uid)
	}
	if st.Mode&forbidden != 0 {
		return fmt.Errorf("its mode %#o lets others in", st.Mode&0o7777)
	}
	return nil
}

// procPath names an open file for calls that take a path only.
func procPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
