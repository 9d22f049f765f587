//go:build linux || darwin

package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// openStore makes the directory of named workspaces below the home, and returns its real
// path.
func openStore(home string) (string, error) {
	f, err := openOwn(home)
	if err != nil {
		return "", fmt.Errorf("open home: %w", err)
	}
	defer f.Close()
	dir, err := ensureDir(f, namedDir, 0o700)
	if err != nil {
		return "", fmt.Errorf("open named workspaces: %w", err)
	}
	defer dir.Close()
	path, err := pathOf(dir)
	if err != nil {
		return "", fmt.Errorf("read path of named workspaces: %w", err)
	}
	return path, nil
}

// open opens the directories of a tenant, which are made when they are missing.
func (t *tenant) open() error {
	root, err := openPath(unix.AT_FDCWD, t.store.dir)
	if err != nil {
		return fmt.Errorf("open named workspaces: %w", err)
	}
	defer root.Close()
	// Only this user gets past the tenant's directory, so the workspace itself may
	// be open to whichever user the sandbox runs as.
	place, err := ensureDir(root, t.name, 0o700)
	if err != nil {
		return fmt.Errorf("open workspaces of tenant %s: %w", t.name, err)
	}
	defer place.Close()
	own, err := ensureDir(place, ownDir, 0o700)
	if err != nil {
		return fmt.Errorf("open records of tenant %s: %w", t.name, err)
	}
	defer own.Close()
	if t.files, err = rootOf(place); err != nil {
		return fmt.Errorf("open workspaces of tenant %s: %w", t.name, err)
	}
	if t.own, err = rootOf(own); err != nil {
		return fmt.Errorf("open records of tenant %s: %w", t.name, err)
	}
	return nil
}

// plain opens the directory of a workspace without bounds, which is made when it
// is missing.
func (t *tenant) plain(name string) (*Dir, error) {
	if err := keepsFiles(); err != nil {
		return nil, err
	}
	place, err := openPath(unix.AT_FDCWD, filepath.Join(t.store.dir, t.name))
	if err != nil {
		return nil, fmt.Errorf("open workspaces of tenant %s: %w", t.name, err)
	}
	defer place.Close()
	f, err := ensureFiles(place, name, 0o777)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, api.Invalid("workspace.name", "workspace %q is kept as something that is not a directory", name).
			WithHint("remove what lies in its place, or choose another name").WithCause(err)
	}
	if err != nil {
		return nil, noSpace(fmt.Errorf("open workspace %s: %w", name, err))
	}
	return newDir(f, true)
}

// ensureDir opens the directory name in parent, making it when it is missing. It
// must be this user's, and is given exactly the permissions perm.
func ensureDir(parent *os.File, name string, perm uint32) (*os.File, error) {
	return makeOrOpen(parent, name, perm, false)
}

// ensureFiles is ensureDir for a directory that sandboxes have to write. As root
// it takes one of any owner: a sandbox may have given its own to another user,
// and only this user can enter its parent.
func ensureFiles(parent *os.File, name string, perm uint32) (*os.File, error) {
	return makeOrOpen(parent, name, perm, os.Geteuid() == 0)
}

func makeOrOpen(parent *os.File, name string, perm uint32, anyOwner bool) (*os.File, error) {
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
	if !anyOwner {
		if err := ours(f, 0); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("open directory %s: %w", name, err)
		}
	}
	// The mode is set at each opening: a sandbox may have changed the mode of its own
	// directory, and the umask applied.
	if err := chmod(f, perm); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("chmod directory %s: %w", name, err)
	}
	return f, nil
}

// ours refuses a directory that belongs to another user or has any of the
// permissions in forbidden.
func ours(f *os.File, forbidden uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, not to this one", st.Uid)
	}
	if uint32(st.Mode)&forbidden != 0 {
		return fmt.Errorf("its mode %#o lets others in", st.Mode&0o7777)
	}
	return nil
}
