//go:build linux

// Package dirent reads the names of open directories, with the kinds that the directories tell.
package dirent

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Entry is one name of a directory. Its kind is what the directory says, one of
// DT_*, and may be DT_UNKNOWN.
type Entry struct {
	Name string
	Kind byte
}

// Bytes is how much of a directory is read at once.
const Bytes = 64 << 10

// Read reads the next names of an open directory; none is its end. The
// os package would look at each file whose kind is not told, and by a path.
func Read(fd int, buf []byte) ([]Entry, error) {
	for {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return nil, err
		}
		if list := parse(buf[:n]); len(list) > 0 {
			return list, nil
		}
	}
}

// parse reads what the kernel wrote, without "." and "..". Each record is
// inode, offset, length of the record, kind and the name, ended by a NUL.
func parse(b []byte) []Entry {
	const (
		lengthAt = 16
		kindAt   = 18
		nameAt   = 19
	)
	var list []Entry
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
			list = append(list, Entry{s, b[kindAt]})
		}
		b = b[size:]
	}
	return list
}

// KindAt is the kind of a name in an open directory, for a file system whose directories do not
// tell it.
func KindAt(d int, name string) byte {
	var st unix.Stat_t
	if unix.Fstatat(d, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return unix.DT_UNKNOWN
	}
	return byte(st.Mode & unix.S_IFMT >> 12)
}
