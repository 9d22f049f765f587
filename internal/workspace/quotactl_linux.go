//go:build !remoteonly

package workspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel has for quotas of projects, and x/sys has no names for: see
// quotactl(2), quotactl_fd(2) and ioctl_xfs_fsgetxattr(2).
const (
	quotaProject     = 2
	quotaGet         = 0x800007
	quotaSet         = 0x800008
	quotaState       = 'X'<<8 + 8
	quotaBlockLimits = 1
	quotaInodeLimits = 4
	// quotaStateSize is the size of the state, quotaStateVersion its form, and
	// quotaEnforced the flag that projects are held to their limits.
	quotaStateSize    = 160
	quotaStateVersion = 1
	quotaEnforced     = 1 << 5
	// quotaBlock is what limits of space count in, in bytes.
	quotaBlock = 1024

	ioctlGetAttributes = 0x801c581f
	ioctlSetAttributes = 0x401c5820
	// attributeInherit: what is made in a directory is of its project.
	attributeInherit = 0x200
)

// quota is what the kernel knows of a project: its limits and what it uses.
type quota struct {
	blockHard, blockSoft, bytes   uint64
	inodeHard, inodeSoft, inodes  uint64
	blockGraceUntil, inodeGraceAt uint64
	valid, _                      uint32
}

// isFree is true for an unused project: it has neither files nor limits.
func (q quota) isFree() bool {
	return q.bytes == 0 && q.inodes == 0 && q.blockHard == 0 && q.inodeHard == 0
}

// attributes are those of a file that FS_IOC_FSGETXATTR gets.
type attributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// quotactl asks the filesystem that f is on, which may be open as a place only.
func quotactl(f *os.File, argv int, id uint32, addr unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(argv<<8|quotaProject), uintptr(id), uintptr(addr), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// holdsProjects says whether the filesystem of f holds projects to their limits.
// One that has no such quotas, and a kernel that cannot be asked, do not.
func holdsProjects(f *os.File) bool {
	state := [quotaStateSize]byte{quotaStateVersion}
	if err := quotactl(f, quotaState, 0, unsafe.Pointer(&state)); err != nil {
		return false
	}
	return binary.NativeEndian.Uint16(state[2:])&quotaEnforced != 0
}

// projectQuota is what the kernel knows of a project; of one that never was, nothing.
func projectQuota(f *os.File, id uint32) (quota, error) {
	var q quota
	if err := quotactl(f, quotaGet, id, unsafe.Pointer(&q)); err != nil && !errors.Is(err, unix.ENOENT) {
		return quota{}, fmt.Errorf("read quota of project %d: %w", id, err)
	}
	return q, nil
}

// setProjectQuota gives a project its limits; zero is unlimited.
func setProjectQuota(f *os.File, id uint32, b Bounds) error {
	q := quota{
		blockHard: uint64(b.SizeBytes+quotaBlock-1) / quotaBlock, inodeHard: uint64(b.Inodes),
		valid: quotaBlockLimits | quotaInodeLimits,
	}
	if err := quotactl(f, quotaSet, id, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("set quota of project %d: %w", id, err)
	}
	return nil
}

// projectOf is the project of an open directory; 0 where it has none that what is
// made in it inherits.
func projectOf(dir *os.File) (uint32, error) {
	a, err := attributesOf(dir)
	if err != nil || a.flags&attributeInherit == 0 {
		return 0, err
	}
	return a.project, nil
}

// setProject makes an open directory, in which nothing is yet, and all that will be
// in it part of a project.
func setProject(dir *os.File, id uint32) error {
	a, err := attributesOf(dir)
	if err != nil {
		return err
	}
	a.project, a.flags = id, a.flags|attributeInherit
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), ioctlSetAttributes, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return fmt.Errorf("set project of directory: %w", errno)
	}
	return nil
}

func attributesOf(dir *os.File) (attributes, error) {
	var a attributes
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), ioctlGetAttributes, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return a, fmt.Errorf("read project of directory: %w", errno)
	}
	return a, nil
}
