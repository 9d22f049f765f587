//go:build linux

package pathwalk

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// setIDBits are set-user-ID and set-group-ID.
const setIDBits = unix.S_ISUID | unix.S_ISGID

// SetMode gives an open file a mode, fd may be of O_PATH. It and restoreMode are the only
// functions of the package that change one, so that no writer can leave a set-id file
// where the host executes it: the bits stay off everywhere but in the sandbox's own root.
// The rest of the mode is kept. A directory that is set-group-ID already stays so when
// the mode says it.
func SetMode(fd int, mode uint32) error {
	if mode&setIDBits != 0 && InRoot(fd) {
		return chmodFD(fd, mode)
	}
	return SetModeInMount(fd, mode)
}

// SetModeInMount is SetMode of a file that is in a mount. It is for a process that has another root than the sandbox.
func SetModeInMount(fd int, mode uint32) error {
	if mode&setIDBits == 0 {
		return chmodFD(fd, mode)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&unix.S_ISGID == 0 {
		return chmodFD(fd, mode&^setIDBits)
	}
	return RestoreMode(fd, mode)
}

// RestoreMode gives an open directory the mode that it had before. Set-group-ID is given
// up where the kernel or the host refuses it.
func RestoreMode(fd int, mode uint32) error {
	plain, want := mode&^setIDBits, mode&^unix.S_ISUID
	if want == plain {
		return chmodFD(fd, plain)
	}
	err := chmodFD(fd, want)
	if errors.Is(err, unix.EPERM) {
		return chmodFD(fd, plain)
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o7777 == want {
		return err
	}
	return chmodFD(fd, plain) // gVisor does not tell that the host has refused it
}

// setModeAt is setMode of the directory name in the open directory at.
func setModeAt(at int, name string, mode uint32) error {
	fd, err := OpenDirAt(at, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return SetMode(fd, mode)
}

// SetModeOf is setMode of a file.
func SetModeOf(f *os.File, mode uint32) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = raw.Control(func(fd uintptr) { cerr = SetMode(int(fd), mode) })
	return errors.Join(err, cerr)
}

// DropSetID takes the set-id bits from a regular file whose content is about to change
// in place. The kernel does that for most processes, and not for one with CAP_FSETID.
func DropSetID(f *os.File) error {
	var st unix.Stat_t
	if err := Fstat(f, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&setIDBits == 0 {
		return nil
	}
	return SetModeOf(f, st.Mode&0o7777&^setIDBits)
}

// chmodFD changes the mode of an open file.
func chmodFD(fd int, mode uint32) error {
	err := unix.Fchmod(fd, mode)
	if errors.Is(err, unix.EBADF) { // opened as a path only
		return unix.Chmod(ProcFD(fd), mode)
	}
	return err
}

// InRoot says whether an open file is in the sandbox's root filesystem, which only the
// sandbox's own kernel reads, and not in a mount. What cannot be told is not.
func InRoot(fd int) bool {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	a, ok := mountOf(fd)
	if !ok {
		return false
	}
	b, ok := mountOf(root)
	return ok && a == b
}

// mountOf is the id of the mount that an open file is in.
func mountOf(fd int) (id uint64, ok bool) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		return st.Mnt_id, true
	}
	// Before Linux 5.8.
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, "mnt_id:"); found {
			id, err = strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return id, err == nil
		}
	}
	return 0, false
}
