//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Made are directories of the host that MakeBelow has made.
type Made struct {
	parents []*os.File
	names   []string
}

// Undo removes those of the directories that are still empty, the deepest
// first, and Close lets go of them.
func (m *Made) Undo() error {
	for i, name := range slices.Backward(m.names) {
		err := unix.Unlinkat(int(m.parents[i].Fd()), name, unix.AT_REMOVEDIR)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			break // it is in use, or has been removed
		}
		if err != nil {
			return fmt.Errorf("remove directory that was made: %w", err)
		}
	}
	return nil
}

// Close lets go of the directories, which stay.
func (m *Made) Close() {
	for _, f := range m.parents {
		_ = f.Close()
	}
	m.parents, m.names = nil, nil
}

// MakeBelow makes the directory rel below this one, with what is missing on the
// way, each 0700 and owner's from its first moment on, and opens it. No part of
// rel may be a symlink, and what exists already must be owner's: another process
// has made it since it was found missing. The caller closes both results; on error
// nothing of it is left.
func (d *Dir) MakeBelow(rel string, owner int) (*Dir, *Made, error) {
	made := &Made{}
	dir, err := d.makeBelow(rel, owner, made)
	if err != nil {
		_ = made.Undo()
		made.Close()
		return nil, nil, err
	}
	return dir, made, nil
}

func (d *Dir) makeBelow(rel string, owner int, made *Made) (*Dir, error) {
	if euid := os.Geteuid(); owner < 0 || euid != 0 && owner != euid {
		return nil, api.Errorf(api.CodeDenied, "a directory for user %d cannot be made by a daemon that runs as user %d", owner, euid).
			WithHint("make the directory first, or run Cloche as that user")
	}
	group := owner
	if d.stat.Uid == uint32(owner) {
		group = int(d.stat.Gid)
	}
	at, err := openPath(int(d.file.Fd()), ".")
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := made.step(at, name, owner, group)
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(next.Fd()), &st); err != nil || int(st.Uid) != owner {
			_ = next.Close()
			return nil, api.Errorf(api.CodeDenied, "the directory %q was made by another process meanwhile", clip(name)).
				WithHint("ask again").WithCause(err)
		}
		at = next
	}
	return newDir(at, false)
}

// step makes one directory and opens it. It takes over at.
func (m *Made) step(at *os.File, name string, owner, group int) (*os.File, error) {
	if name == "" || name == "." || name == ".." {
		_ = at.Close()
		return nil, fmt.Errorf("make directory %q: not a name", name)
	}
	err := mkdirAs(at, name, owner, group)
	if err == nil {
		m.parents, m.names = append(m.parents, at), append(m.names, name)
	} else {
		defer at.Close()
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, makeError(name, err)
	}
	next, err := openPath(int(at.Fd()), name)
	if err != nil {
		return nil, openError(name, err)
	}
	return next, nil
}

func makeError(name string, err error) error {
	e := api.Errorf(api.CodeInvalid, "the directory %q does not exist and cannot be made: %w", clip(name), err)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return e.WithHint("make it as a user who may, or mount one that exists")
	case errors.Is(err, unix.EROFS):
		return e.WithHint("its disk is read-only: mount it to read")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Code = api.CodeNoCapacity
		return e.WithHint("free space on its disk")
	}
	return e.WithHint("make it first")
}

// mkdirAs makes a directory that belongs to uid and gid when it appears: a
// later change of owner could change the owner of a file that replaced it.
func mkdirAs(at *os.File, name string, uid, gid int) error {
	fd := int(at.Fd())
	if os.Geteuid() != 0 || uid == 0 && gid == 0 {
		return unix.Mkdirat(fd, name, 0o700)
	}
	done := make(chan error, 1)
	go func() {
		// The thread is not unlocked, so that it ends with the goroutine: nothing
		// else ever runs on it.
		runtime.LockOSThread()
		if err := becomeForFiles(uid, gid); err != nil {
			done <- err
			return
		}
		done <- unix.Mkdirat(fd, name, 0o700)
	}()
	return <-done
}

// becomeForFiles makes the calling thread another user in the eyes of file
// systems, who keeps the capabilities that root has on files: whether the
// directory may be made is what policy has decided.
func becomeForFiles(uid, gid int) error {
	if err := unix.Setfsgid(gid); err != nil {
		return fmt.Errorf("set group for files: %w", err)
	}
	if err := unix.Setfsuid(uid); err != nil {
		return fmt.Errorf("set user for files: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	return nil
}

// FindDir looks whether rel is a directory below dir, over no symlink. The error
// wraps the kernel's.
func FindDir(dir, rel string) error {
	top, err := openOwn(dir)
	if err != nil {
		return err
	}
	defer top.Close()
	f, err := openPath(int(top.Fd()), rel)
	if err != nil {
		return fmt.Errorf("find %s: %w", clip(rel), err)
	}
	return f.Close()
}
