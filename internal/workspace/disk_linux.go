//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace/ext4"
)

// A disk is a sparse file that holds a filesystem of its own, which is how the
// kernel bounds what is written to a workspace. What a sandbox sees is a
// directory in it.

const (
	// diskOwn is what of a disk's blocks and inodes is not the workspace's: the
	// directory itself.
	diskOwn = 1
)

// shape is the filesystem that holds the bounds.
func (b Bounds) shape(keep durability) ext4.Shape {
	inodes := b.Inodes
	if inodes == 0 {
		inodes = DefaultInodes(b.SizeBytes)
	}
	return ext4.Shape{SizeBytes: b.SizeBytes + diskOwn*ext4.BlockSize, Inodes: inodes + diskOwn, Journal: keep == durable}
}

// HardQuota says whether the kernel can bound workspaces in a home, for this process.
func HardQuota(home string) api.Enforcement {
	if HasProjects(home) {
		return api.Enforcement{OK: true}
	}
	no := func(format string, args ...any) api.Enforcement {
		return api.Enforcement{Reason: fmt.Sprintf(format, args...)}
	}
	if os.Geteuid() != 0 {
		return no("only root can mount a filesystem of its own for a workspace; run the daemon as root, or ask for the measured quota")
	}
	if unix.Access(loopControl, unix.R_OK|unix.W_OK) != nil {
		return no("%s cannot be opened; load the kernel's loop module, and give a container the device", loopControl)
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil || !slices.Contains(strings.Fields(string(known)), "ext4") {
		return no("this kernel has no ext4; load that module")
	}
	return api.Enforcement{OK: true}
}

// durability says what becomes of a disk when the machine loses its power.
type durability bool

const (
	// durable: it is as it was when it was last synced.
	durable durability = true
	// fleeting: nothing of it is needed then, so it has no journal, and a sync
	// inside waits for no disk.
	fleeting durability = false
)

// makeDisk writes an empty disk to a new file. What a crash leaves may be a part of it.
func makeDisk(path string, b Bounds, keep durability) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return noSpace(fmt.Errorf("make disk: %w", err))
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(path)
			err = noSpace(err)
		}
	}()
	if err := ext4.Make(f, b.shape(keep)); err != nil {
		if errors.Is(err, unix.EFBIG) {
			e := api.Errorf(api.CodeUnsupported, "the filesystem where Cloche keeps its state has no files as large as a workspace of %d bytes", b.SizeBytes).WithCause(err)
			e.Field = "workspace.size_bytes"
			return e.WithHint("ask for a smaller one")
		}
		return err
	}
	if keep == durable {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync disk: %w", err)
		}
	}
	return nil
}

// diskInUse reports whether a disk is attached to a device.
func diskInUse(path string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return false, fmt.Errorf("stat disk: %w", err)
	}
	dev, err := findLoop(filepath.Base(path), &st)
	if err != nil || dev == nil {
		return false, err
	}
	return true, dev.Close()
}

// openDisk mounts the disk for as long as the Dir is not closed, at a mount
// point of its own below staging, a 0700 directory of this user; SweepStaging
// finds it there. What is staged from the Dir keeps the disk in use. The caller
// holds the lock of the disk.
func openDisk(path, staging string, keep durability) (dir *Dir, err error) {
	m, err := mountDisk(path, keep)
	if err != nil {
		return nil, err
	}
	defer unix.Close(m)
	place, err := openOwn(staging)
	if err != nil {
		return nil, fmt.Errorf("open staging directory: %w", err)
	}
	defer place.Close()
	if err := ours(place, 0o077); err != nil {
		return nil, fmt.Errorf("use staging directory %s: %w", staging, err)
	}
	name := api.NewID(stagedPrefix)
	at := filepath.Join(staging, name)
	if err := unix.Mkdirat(int(place.Fd()), name, 0o700); err != nil {
		return nil, fmt.Errorf("make mount point: %w", err)
	}
	s := &Staged{Path: at, mount: true}
	if err := unix.MoveMount(m, "", int(place.Fd()), name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		_ = unix.Unlinkat(int(place.Fd()), name, unix.AT_REMOVEDIR)
		return nil, fmt.Errorf("mount disk: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	root, err := openPath(int(place.Fd()), name)
	if err != nil {
		return nil, fmt.Errorf("open disk: %w", err)
	}
	defer root.Close()
	f, err := ensureFiles(root, diskFiles, 0o777)
	if err != nil {
		return nil, fmt.Errorf("open files of disk: %w", err)
	}
	if dir, err = newDir(f, true); err != nil {
		return nil, err
	}
	dir.space, dir.closed = at, s.Close
	return dir, nil
}

// mountDisk makes a mount of the disk that is nowhere yet.
func mountDisk(path string, keep durability) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, fmt.Errorf("open disk: %w", err)
	}
	defer f.Close()
	dev, err := attachLoop(f)
	if err != nil {
		return -1, err
	}
	// The mount keeps the device; without one it goes when this is closed.
	defer dev.Close()
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open ext4: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", dev.Name()); err != nil {
		return -1, fmt.Errorf("configure ext4: source: %w", err)
	}
	// What is removed inside is given back to the home's filesystem.
	if err := unix.FsconfigSetFlag(fs, "discard"); err != nil {
		return -1, fmt.Errorf("configure ext4: discard: %w", err)
	}
	if keep == fleeting {
		if err := unix.FsconfigSetFlag(fs, "nobarrier"); err != nil {
			return -1, fmt.Errorf("configure ext4: nobarrier: %w", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("mount disk: %w", err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("mount disk: %w", err)
	}
	return m, nil
}

// diskUsage is what the disk of a named workspace holds. One that is mounted is asked in a mount of a
// moment; of any other the superblock is read. The caller holds its lock.
func diskUsage(path string, b Bounds) (used Bounds, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return used, fmt.Errorf("open disk: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return used, fmt.Errorf("stat disk: %w", err)
	}
	var free ext4.Usage
	dev, err := findLoop(filepath.Base(path), &st)
	if err != nil {
		return used, err
	}
	if dev == nil {
		free, err = ext4.ReadUsage(f)
	} else {
		free, err = mountedUsage(path)
		err = errors.Join(err, dev.Close())
	}
	if err != nil {
		return used, err
	}
	space, err := b.shape(durable).Space()
	if err != nil {
		return used, err
	}
	return Bounds{
		SizeBytes: max(0, space.FreeBytes-diskOwn*ext4.BlockSize-free.FreeBytes),
		Inodes:    max(0, space.FreeInodes-diskOwn-free.FreeInodes),
	}, nil
}

func mountedUsage(path string) (ext4.Usage, error) {
	m, err := mountDisk(path, durable)
	if err != nil {
		return ext4.Usage{}, err
	}
	defer unix.Close(m)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(m, &fs); err != nil {
		return ext4.Usage{}, fmt.Errorf("stat disk: %w", err)
	}
	return ext4.Usage{FreeBytes: int64(fs.Bavail) * fs.Bsize, FreeInodes: int64(fs.Ffree)}, nil
}
