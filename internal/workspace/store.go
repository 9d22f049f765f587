//go:build linux || darwin

package workspace

import (
	"errors"
	"fmt"
	"os"
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
	// Alive says whether an owner still has what it attached; nil is that all do.
	// It is set before the Store is used.
	Alive func(owner string) bool
	// RemoveVolume has an engine remove what it keeps under a name; nil is that there
	// are no engines that keep any. A tenant's other workspaces wait for it. It is set
	// before the Store is used.
	RemoveVolume func(engine, name string) error
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
	path, err := pathOf(dir)
	if err != nil {
		return nil, fmt.Errorf("read path of named workspaces: %w", err)
	}
	return &Store{dir: path}, nil
}

// ensureDir opens the directory name in parent, making it when it is missing. It
// must be this user's, and is given exactly the permissions perm.
func ensureDir(parent *os.File, name string, perm uint32) (*os.File, error) {
	return makeOrOpen(parent, name, perm, false)
}

// ensureFiles is ensureDir for a directory that sandboxes have to write. As root
// it takes one of any owner: a sandbox may have given its own to another user,
// and nobody but this user gets to where it lies.
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
	// The mode is set at each opening: a sandbox may have changed that of its own.
	// The umask had a say.
	if err := chmod(f, perm); err != nil {
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
	if uint32(st.Mode)&forbidden != 0 {
		return fmt.Errorf("its mode %#o lets others in", st.Mode&0o7777)
	}
	return nil
}

// noRoom is err, as cloche.CodeNoCapacity where it says that the home's disk is
// full.
func noRoom(err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	e := cloche.Errorf(cloche.CodeNoCapacity, "the workspace could not be made ready: the disk is full").WithCause(err)
	e.Retryable = true
	return e.WithHint("make room where Cloche keeps its state, and try again")
}
