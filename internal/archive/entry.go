// Package archive reads tar archives from any source. Every entry that it returns has a
// clean path below the archive's root. Limits bound the number of entries, their size, the
// depth of paths and the compression ratio. Package localdir writes archives to disk.
package archive

import (
	"path"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Kind is what an entry is.
type Kind uint8

// The kinds. Device, FIFO and Socket carry only their name and kind:
// they are not created from an archive.
const (
	File Kind = iota + 1
	Dir
	Symlink
	HardLink
	Device
	FIFO
	Socket
)

// String names the kind as a person would.
func (k Kind) String() string {
	switch k {
	case File:
		return "file"
	case Dir:
		return "directory"
	case Symlink:
		return "symlink"
	case HardLink:
		return "hard link"
	case Device:
		return "device"
	case FIFO:
		return "FIFO"
	case Socket:
		return "socket"
	}
	return "unknown"
}

// Entry is one validated entry.
type Entry struct {
	// Path is relative and clean: no "..", no empty part, no NUL. The root of the
	// archive is ".".
	Path string
	Kind Kind
	// Target is the text of a symlink, as it stands in the archive, or the clean
	// path of what a hard link is another name of.
	Target string
	// Mode holds the permission, setuid, setgid and sticky bits.
	Mode     uint32
	UID, GID uint32
	ModTime  time.Time
	// Size is the length of a file's content.
	Size int64
	// Whiteout is true for a character device 0:0, by which an overlay filesystem says
	// that the name is gone.
	Whiteout bool
	// Xattrs are the extended attributes, by name.
	Xattrs map[string]string
}

const (
	maxPath   = 4096
	maxTarget = 4095
	maxID     = 1<<32 - 2
)

// cleanPath makes a name of an archive relative and clean. An absolute name is
// taken as below the archive's root, as tar does. A name with ".." is refused:
// archives do not need one, and its meaning depends on symlinks.
func cleanPath(name string, l Limits) (string, error) {
	switch {
	case name == "":
		return "", broken("an entry has no name")
	case len(name) > maxPath:
		return "", tooLarge("the name of an entry has %d bytes, more than %d", len(name), maxPath)
	case strings.ContainsRune(name, 0):
		return "", broken("the name %q holds a NUL", clip(name))
	}
	parts := strings.Split(name, "/")
	depth := 0
	for _, part := range parts {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return "", broken("the name %q leads upwards", clip(name))
		case len(part) > l.NameLen:
			return "", tooLarge("the name %q has a part of %d bytes, more than %d", clip(name), len(part), l.NameLen)
		}
		depth++
	}
	if depth > l.Depth {
		return "", tooLarge("%q is %d levels deep, more than %d", clip(name), depth, l.Depth)
	}
	return path.Clean("./" + strings.TrimLeft(name, "/")), nil
}

func checkTarget(name, target string) error {
	if target == "" || len(target) > maxTarget || strings.ContainsRune(target, 0) {
		return broken("the symlink %q has a target of %d bytes that cannot be one", clip(name), len(target))
	}
	return nil
}

// broken is the error about an archive that is not what it should be.
func broken(format string, args ...any) *api.Error {
	return api.Errorf(api.CodeInvalid, "archive: "+format, args...)
}

// tooLarge is the error about an archive that is over a limit.
func tooLarge(format string, args ...any) *api.Error {
	return api.Errorf(api.CodeTooLarge, "archive: "+format, args...)
}

// clip shortens a name before it is said back.
func clip(s string) string {
	const limit = 128
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
