//go:build linux

package pathwalk

import (
	"os"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Describe makes the FileInfo of a file.
func Describe(name string, st *unix.Stat_t) api.FileInfo {
	info := api.FileInfo{
		Name: name, Size: st.Size, Mode: uint32(st.Mode) & 0o7777, UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
	if !utf8.ValidString(name) {
		info.Name, info.NameBytes = Text(name), []byte(name)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		info.Type = api.TypeFile
	case unix.S_IFDIR:
		info.Type = api.TypeDir
	case unix.S_IFLNK:
		info.Type = api.TypeSymlink
	default:
		info.Type = api.TypeOther
	}
	return info
}

// Lstat describes a file, and a symlink itself.
func Lstat(name string) (api.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return api.FileInfo{}, err
	}
	info := Describe(path.Base(name), &st)
	if info.Type == api.TypeSymlink {
		target, err := os.Readlink(name)
		if err != nil {
			return api.FileInfo{}, err
		}
		info.LinkTarget = Text(target)
	}
	return info, nil
}

// DescribeAt describes what is in an open directory.
func DescribeAt(at int, name string, st *unix.Stat_t) (api.FileInfo, error) {
	info := Describe(name, st)
	if name == "" {
		info.Name = "/"
	}
	if info.Type != api.TypeSymlink {
		return info, nil
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, buf)
	if err != nil {
		return info, err
	}
	info.LinkTarget = strings.ToValidUTF8(string(buf[:n]), "\uFFFD")
	return info, nil
}

// Text is a path as valid UTF-8.
func Text(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }
