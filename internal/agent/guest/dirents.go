//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// dirent is one name of a directory. Its kind is what the directory says, one of
// DT_*, and may be DT_UNKNOWN.
type dirent struct {
	name string
	kind byte
}

// direntBytes is how much of a directory is read at once.
const direntBytes = 64 << 10

// readDirents reads the next names of an open directory; none is its end. The
// os package would look at each file whose kind is not told, and by a path.
func readDirents(fd int, buf []byte) ([]dirent, error) {
	for {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return nil, err
		}
		if list := parseDirents(buf[:n]); len(list) > 0 {
			return list, nil
		}
	}
}

// parseDirents reads what the kernel wrote, without "." and "..". Each record is
// inode, offset, length of the record, kind and the name, ended by a NUL.
func parseDirents(b []byte) []dirent {
	const (
		lengthAt = 16
		kindAt   = 18
		nameAt   = 19
	)
	var list []dirent
	for len(b) >= nameAt {
		size := int(binary.NativeEndian.Uint16(b[lengthAt:]))
		if size < nameAt || size > len(b) {
			break
		}
		name := b[nameAt:size]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if s := string(name); s != "." && s != ".." && s != "" {
			list = append(list, dirent{s, b[kindAt]})
		}
		b = b[size:]
	}
	return list
}
