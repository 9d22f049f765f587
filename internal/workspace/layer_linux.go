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

// Names in the directory of a layer.
const (
	upperDir = "upper"
	workDir  = "work"
	// commitMark is there from the first change that a commit makes to its last.
	commitMark = "commit"
)

// opaqueXattr marks a directory of a layer that hides all that is below it.
const opaqueXattr = "trusted.overlay.opaque"

// Layer is what one sandbox writes over a workspace, kept apart from it until it
// is committed or discarded. It is a directory of the host, in the form that the
// kernel's overlay filesystem gives it. It is not safe for concurrent use.
type Layer struct {
	dir string
	// trap, which only tests set, stops a commit at a step.
	trap func(step string) error
}

// LayersUsable says why no layers can be made here; nil is that they can.
func LayersUsable() error {
	if os.Geteuid() != 0 {
		return api.Errorf(api.CodeUnsupported, "a layered workspace takes an overlay filesystem that only root can mount").
			WithHint("run the daemon as root, or leave workspace.layered out")
	}
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return api.Errorf(api.CodeUnsupported, "this machine mounts no overlay filesystems: %w", err).
			WithHint("load the kernel's module overlay, or give the daemon CAP_SYS_ADMIN, or leave workspace.layered out")
	}
	return unix.Close(fd)
}

// layerAt is where a layer over the directory lies: at path, or on the disk of a
// workspace with bounds, which then hold for both together.
func (d *Dir) layerAt(path string) string {
	if d.space == "" {
		return path
	}
	return filepath.Join(d.space, diskLayer)
}

// MakeLayer makes an empty layer over lower at path, the parent of which only this
// user may enter, or on the disk of lower if it has one. The caller owns what is on
// disk, and uses the layer for as long as lower is open.
func MakeLayer(ctx context.Context, path string, lower *Dir) (*Layer, error) {
	if err := LayersUsable(); err != nil {
		return nil, err
	}
	if err := lower.DropLayer(ctx); err != nil {
		return nil, err
	}
	path = lower.layerAt(path)
	parent, err := openOwn(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("open parent of layer: %w", err)
	}
	defer parent.Close()
	if lower.space == "" { // only this user gets to a disk
		if err := ours(parent, 0o077); err != nil {
			return nil, fmt.Errorf("make layer: parent: %w", err)
		}
	}
	dir, err := ensureDir(parent, filepath.Base(path), 0o700)
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	defer dir.Close()
	l := &Layer{dir: path}
	return l, l.fill(dir, lower)
}

// DropLayer ends what lies on the disk of a workspace of a layer whose sandbox is
// gone: a commit that has begun is finished, everything else is discarded. The
// caller is the only one that has the workspace for writing, or finds nothing.
func (d *Dir) DropLayer(ctx context.Context) error {
	if d.space == "" {
		return nil
	}
	l, err := OpenLayer("", d)
	if err == nil && l.Unfinished() {
		err = l.Commit(ctx, d)
	}
	if ignoreMissing(err) != nil {
		return fmt.Errorf("end an earlier layer: %w", err)
	}
	return RemoveTree(d.layerAt(""))
}

// fill makes the two directories of an empty layer. What is seen at the top of the
// mount is the upper one's owner and mode.
func (l *Layer) fill(dir *os.File, lower *Dir) error {
	work, err := ensureDir(dir, workDir, 0o700)
	if err != nil {
		return fmt.Errorf("make layer: %w", err)
	}
	work.Close()
	upper, err := ensureDir(dir, upperDir, lower.stat.Mode&0o7777)
	if err != nil {
		return fmt.Errorf("make layer: %w", err)
	}
	defer upper.Close()
	if err := unix.Fchownat(unix.AT_FDCWD, procPath(upper), int(lower.stat.Uid), int(lower.stat.Gid), 0); err != nil {
		return fmt.Errorf("make layer: %w", err)
	}
	return nil
}

// OpenLayer finds again the layer that MakeLayer has made with the same arguments.
func OpenLayer(path string, lower *Dir) (*Layer, error) {
	path = lower.layerAt(path)
	if _, err := os.Lstat(filepath.Join(path, upperDir)); err != nil {
		return nil, fmt.Errorf("open layer: %w", err)
	}
	return &Layer{dir: path}, nil
}

// Stage mounts the layer over lower for an engine, as Dir.Stage does with a plain
// directory: nosuid and nodev. Everything that the kernel could leave out of the
// layer and find elsewhere is switched off, so that the layer says itself what it
// is; renaming a directory that was there before is EXDEV, which programs take as
// a reason to copy.
func (l *Layer) Stage(lower *Dir, staging string) (*Staged, error) {
	upper, err := l.open(upperDir)
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	work, err := l.open(workDir)
	if err != nil {
		return nil, err
	}
	defer work.Close()
	tree, err := overlay(map[string]string{
		"lowerdir": procPath(lower.file), "upperdir": procPath(upper), "workdir": procPath(work),
		"redirect_dir": "nofollow", "metacopy": "off", "index": "off",
	}, 0)
	if err != nil {
		return nil, fmt.Errorf("mount layer: %w", err)
	}
	defer func() { _ = unix.Close(tree) }()
	return placeTree(tree, staging)
}

// view is lower with the layer over it, read-only, as it is at this moment. It is
// mounted nowhere and ends with the file. While a sandbox writes to the layer, what
// is seen may be half of it.
func (l *Layer) view(lower *Dir) (*os.File, error) {
	upper, err := l.open(upperDir)
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	tree, err := overlay(map[string]string{
		"lowerdir":     procPath(upper) + ":" + procPath(lower.file),
		"redirect_dir": "nofollow", "metacopy": "off", "index": "off",
	}, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("view layer: %w", err)
	}
	defer func() { _ = unix.Close(tree) }()
	fd, err := unix.Openat(tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("view layer: %w", err)
	}
	return os.NewFile(uintptr(fd), "view"), nil
}

// open opens one of the layer's directories, both of which only this user can
// replace.
func (l *Layer) open(name string) (*os.File, error) {
	f, err := openPath(unix.AT_FDCWD, filepath.Join(l.dir, name))
	if err != nil {
		return nil, fmt.Errorf("open layer: %w", err)
	}
	return f, nil
}

// overlay makes a mount that is not yet anywhere.
func overlay(options map[string]string, attr int) (int, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open overlay filesystem: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigSetString(fs, "source", "cloche"); err != nil {
		return -1, fmt.Errorf("name overlay: %w", err)
	}
	for key, value := range options {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return -1, fmt.Errorf("set %s of overlay: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		e := api.Errorf(api.CodeUnsupported, "the filesystem of Cloche's home cannot be part of an overlay: %w", err)
		return -1, e.WithHint("keep the home on ext4, xfs or btrfs, or leave workspace.layered out")
	}
	tree, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("mount overlay: %w", err)
	}
	return tree, nil
}

// placeTree attaches a mount to a mount point of its own in the staging directory.
func placeTree(tree int, staging string) (*Staged, error) {
	place, err := openOwn(staging)
	if err != nil {
		return nil, fmt.Errorf("open staging directory: %w", err)
	}
	defer place.Close()
	if err := ours(place, 0o077); err != nil {
		return nil, fmt.Errorf("use staging directory %s: %w", staging, err)
	}
	at, err := os.Readlink(procPath(place))
	if err != nil {
		return nil, fmt.Errorf("read path of staging directory: %w", err)
	}
	name := api.NewID(stagedPrefix)
	if err := unix.Mkdirat(int(place.Fd()), name, 0o700); err != nil {
		return nil, fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.MoveMount(tree, "", int(place.Fd()), name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		_ = unix.Unlinkat(int(place.Fd()), name, unix.AT_REMOVEDIR)
		return nil, fmt.Errorf("mount staged directory: %w", err)
	}
	return &Staged{Path: filepath.Join(at, name), mount: true}, nil
}

// Unfinished reports whether a commit has begun and not ended.
func (l *Layer) Unfinished() bool {
	_, err := os.Lstat(filepath.Join(l.dir, commitMark))
	return !errors.Is(err, os.ErrNotExist)
}
