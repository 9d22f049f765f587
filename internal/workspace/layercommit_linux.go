//go:build !remoteonly

package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Commit makes what the layer holds part of lower, and the layer empty. Nothing may
// be mounted from either. Once it has begun it can only be finished: after an error
// or a crash Unfinished says so, and another Commit goes on where this one stopped.
// ctx is heeded until then.
func (l *Layer) Commit(ctx context.Context, lower *Dir) error {
	dir, err := l.reader(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	upper, err := l.reader(upperDir)
	if err != nil {
		return err
	}
	defer upper.Close()
	below, err := lower.reader()
	if err != nil {
		return err
	}
	defer below.Close()
	if !l.Unfinished() {
		if err := l.begin(ctx, lower, dir, upper); err != nil {
			return err
		}
	}
	m := merge{ctx: context.WithoutCancel(ctx), trap: l.trap}
	if err := m.dir(upper, below); err != nil {
		return fmt.Errorf("commit layer: %w", err)
	}
	if err := unix.Syncfs(int(below.Fd())); err != nil {
		return fmt.Errorf("commit layer: %w", err)
	}
	if err := m.at("merged"); err != nil {
		return err
	}
	if err := l.clear(dir, lower); err != nil {
		return fmt.Errorf("empty committed layer: %w", err)
	}
	if err := m.at("emptied"); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(dir.Fd()), commitMark, 0); err != nil {
		return fmt.Errorf("end commit: %w", err)
	}
	return dir.Sync()
}

// begin sets the mark, after which there is no way back. A layer that could never
// be gone through to its end is refused before.
func (l *Layer) begin(ctx context.Context, lower *Dir, dir, upper *os.File) error {
	if err := l.Walk(ctx, lower, func(api.Change) error { return nil }); err != nil {
		return err
	}
	if err := l.fits(ctx, lower); err != nil {
		return err
	}
	// What is about to be moved must not be lost where the move is not.
	if err := unix.Syncfs(int(upper.Fd())); err != nil {
		return fmt.Errorf("begin commit: %w", err)
	}
	fd, err := unix.Openat(int(dir.Fd()), commitMark, unix.O_CREAT|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("begin commit: %w", err)
	}
	_ = unix.Close(fd)
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("begin commit: %w", err)
	}
	return nil
}

// fits refuses a commit that could stop because the disk is full: then the workspace would be a mix
// of two states. A commit within one filesystem takes only the space of directories that get more names.
func (l *Layer) fits(ctx context.Context, lower *Dir) error {
	below, err := lower.reader()
	if err != nil {
		return err
	}
	defer below.Close()
	var free unix.Statfs_t
	if err := unix.Fstatfs(int(below.Fd()), &free); err != nil {
		return fmt.Errorf("begin commit: %w", err)
	}
	upper, err := l.reader(upperDir)
	if err != nil {
		return err
	}
	defer upper.Close()
	need, err := growth(ctx, upper, below)
	if err != nil {
		return fmt.Errorf("begin commit: %w", err)
	}
	if have := int64(free.Bavail) * free.Bsize; need > have {
		e := api.Errorf(api.CodeNoCapacity, "a commit may take %d bytes more in directories, and there is space for %d", need, have)
		return e.WithHint("roll the workspace back; or take a snapshot of it and begin with that in a larger one")
	}
	return nil
}

// growth is how much directories may grow that a layer is merged into: a directory
// that has become full is split in halves.
func growth(ctx context.Context, upper, lower *os.File) (int64, error) {
	var own unix.Stat_t
	if err := unix.Fstat(int(upper.Fd()), &own); err != nil {
		return 0, err
	}
	var need int64
	names := 0
	err := eachName(ctx, upper, func(name string) error {
		now, err := lstatAt(upper, name)
		if err != nil || whiteout(&now) {
			return err
		}
		before, err := lstatAt(lower, name)
		switch {
		case errors.Is(err, os.ErrNotExist):
			names++
			return nil
		case err != nil:
			return err
		case !isDir(&now) || !isDir(&before):
			return nil // it takes the other's place
		}
		u, err := openDirAt(upper, name)
		if err != nil {
			return err
		}
		defer u.Close()
		below, err := openDirAt(lower, name)
		if err != nil {
			return err
		}
		defer below.Close()
		more, err := growth(ctx, u, below)
		need += more
		return err
	})
	if names > 0 {
		need += 2 * max(own.Size, own.Blksize)
	}
	return need, err
}

// Discard empties the layer. Nothing may be mounted from it.
func (l *Layer) Discard(lower *Dir) error {
	if l.Unfinished() {
		return api.Errorf(api.CodeState, "the layer is being committed, and a part of it is in the workspace already").
			WithHint("finish the commit")
	}
	dir, err := l.reader(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := l.clear(dir, lower); err != nil {
		return fmt.Errorf("discard layer: %w", err)
	}
	return nil
}

// clear makes the layer an empty one.
func (l *Layer) clear(dir *os.File, lower *Dir) error {
	for _, name := range []string{upperDir, workDir} {
		if err := RemoveTree(filepath.Join(l.dir, name)); err != nil {
			return err
		}
	}
	return l.fill(dir, lower)
}

// reader opens one of the layer's directories for reading.
func (l *Layer) reader(name string) (*os.File, error) {
	place, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	return openDirAt(place, ".")
}

// merge moves a layer into the directory below. Each step may be taken again after
// a crash: what has been moved is not in the layer any more, and what is to be
// removed is removed before the layer forgets it.
type merge struct {
	ctx  context.Context
	trap func(step string) error
}

// at is a point at which a test may stop.
func (m merge) at(step string) error {
	if m.trap == nil {
		return nil
	}
	return m.trap(step)
}

func (m merge) dir(upper, lower *os.File) error {
	return eachName(m.ctx, upper, func(name string) error {
		if err := m.entry(upper, lower, name); err != nil {
			return fmt.Errorf("%q: %w", clip(name), err)
		}
		return nil
	})
}

func (m merge) entry(upper, lower *os.File, name string) error {
	now, err := lstatAt(upper, name)
	if err != nil {
		return err
	}
	if err := m.at("entry"); err != nil {
		return err
	}
	if whiteout(&now) {
		if err := errors.Join(removeAt(lower, name), m.at("removed")); err != nil {
			return err
		}
		return unix.Unlinkat(int(upper.Fd()), name, 0)
	}
	before, err := lstatAt(lower, name)
	there := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if isDir(&now) && there && isDir(&before) {
		return m.both(upper, lower, name, &now)
	}
	// A file replaces a file in one step. Anything else is removed first.
	if there && (isDir(&now) || isDir(&before)) {
		if err := errors.Join(removeAt(lower, name), m.at("removed before")); err != nil {
			return err
		}
	}
	return m.move(upper, lower, name)
}

// both merges a directory into one that was there before.
func (m merge) both(upper, lower *os.File, name string, now *unix.Stat_t) error {
	u, err := openDirAt(upper, name)
	if err != nil {
		return err
	}
	defer u.Close()
	if opaque(u) {
		if err := errors.Join(removeAt(lower, name), m.at("removed before")); err != nil {
			return err
		}
		return m.move(upper, lower, name)
	}
	below, err := openDirAt(lower, name)
	if err != nil {
		return err
	}
	defer below.Close()
	if err := m.dir(u, below); err != nil {
		return err
	}
	if err := copyXattrs(u, below); err != nil {
		return err
	}
	return setAttributes(below, now)
}

// move takes an entry, with all that is in it, out of the layer.
func (m merge) move(upper, lower *os.File, name string) error {
	plain(upper, name)
	if err := m.dropSetID(upper, name); err != nil {
		return err
	}
	if err := m.at("move"); err != nil {
		return err
	}
	err := unix.Renameat(int(upper.Fd()), name, int(lower.Fd()), name)
	if errors.Is(err, unix.EXDEV) {
		return m.carry(upper, lower, name)
	}
	return err
}

// dropSetID takes the set-id bits from the files of an entry that is about to leave the
// layer: the layer keeps them of a file whose content a program has changed.
func (m merge) dropSetID(dir *os.File, name string) error {
	st, err := lstatAt(dir, name)
	if err != nil {
		return err
	}
	if isDir(&st) {
		sub, err := openDirAt(dir, name)
		if err != nil {
			return err
		}
		defer sub.Close()
		return eachName(m.ctx, sub, func(name string) error { return m.dropSetID(sub, name) })
	}
	if !isFile(&st) || hostMode(&st) == st.Mode&0o7777 {
		return nil
	}
	f, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("take set-id bits off: %w", err)
	}
	place := os.NewFile(uintptr(f), name)
	defer place.Close()
	if err := unix.Chmod(procPath(place), hostMode(&st)); err != nil {
		return fmt.Errorf("take set-id bits off: %w", err)
	}
	return nil
}

// carryName is where an entry is made that comes from another filesystem.
const carryName = ".cloche-commit"

// carry is move between two filesystems: what is seen under the name is the whole
// of it or nothing.
func (m merge) carry(upper, lower *os.File, name string) error {
	if err := removeAt(lower, carryName); err != nil {
		return err
	}
	if err := copyEntry(m.ctx, upper, name, lower, carryName); err != nil {
		return err
	}
	if err := m.at("copied"); err != nil {
		return err
	}
	if err := unix.Renameat(int(lower.Fd()), carryName, int(lower.Fd()), name); err != nil {
		return err
	}
	return removeAt(upper, name)
}

// plain takes from an entry what only a layer has a use for.
func plain(dir *os.File, name string) {
	path := procPath(dir) + "/" + name
	for _, attr := range []string{opaqueXattr, "trusted.overlay.origin", "trusted.overlay.impure", "trusted.overlay.nlink"} {
		_ = unix.Lremovexattr(path, attr)
	}
}

// removeAt removes name in dir with all that is in it; nothing is fine.
func removeAt(dir *os.File, name string) error {
	done, err := unlinkAny(int(dir.Fd()), name)
	if done || err != nil {
		return err
	}
	return RemoveTree(procPath(dir) + "/" + name)
}
