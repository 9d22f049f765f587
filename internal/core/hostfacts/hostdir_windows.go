package hostfacts

import (
	"os"

	"golang.org/x/sys/windows"

	"github.com/cloche-dev/cloche/internal/policy"
)

// realPath returns the system's own name of a path, with symlinks, junctions and mount points
// resolved and every name in full.
func realPath(path string) (string, error) {
	h, err := openAny(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = windows.CloseHandle(h) }()
	buf := make([]uint16, windows.MAX_LONG_PATH)
	n, err := windows.GetFinalPathNameByHandle(h, &buf[0], uint32(len(buf)), 0)
	if err == nil && int(n) >= len(buf) {
		err = windows.ERROR_BUFFER_OVERFLOW
	}
	if err != nil {
		return "", &os.PathError{Op: "resolve", Path: path, Err: err}
	}
	return windows.UTF16ToString(buf[:n]), nil
}

// openAny opens a file or a directory, only to query it.
func openAny(path string) (windows.Handle, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err == nil {
		var h windows.Handle
		h, err = windows.CreateFile(name, windows.FILE_READ_ATTRIBUTES, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
		if err == nil {
			return h, nil
		}
	}
	return 0, &os.PathError{Op: "open", Path: path, Err: err}
}

// describe returns the fact about a real path, or the zero value if it cannot be examined. Users
// have no numbers here, so it has no owner.
func describe(real string) policy.DirFact {
	h, err := openAny(real)
	if err != nil {
		return policy.DirFact{}
	}
	defer func() { _ = windows.CloseHandle(h) }()
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &info); err != nil {
		return policy.DirFact{}
	}
	return policy.DirFact{
		Real: real, Dir: info.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0, OwnerUID: -1,
		Dev: uint64(info.VolumeSerialNumber), Ino: uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow),
	}
}
