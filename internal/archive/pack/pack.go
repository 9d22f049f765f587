//go:build linux

// Package pack writes the tar of a directory that is open.
package pack

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/dirent"
)

const (
	// MaxEntries bounds the entries of an archive.
	MaxEntries = 4 << 20
	// maxLinks bounds the hard links that are remembered: later ones become
	// copies.
	maxLinks = 1 << 16
	// MaxDepth bounds the nested directories, which are open.
	MaxDepth = 512
)

// packer writes one tar.
type packer struct {
	tw     *tar.Writer
	report api.TarReport
	links  map[[2]uint64]string // nil makes copies of hard links
	o      Options
	// only are the entries that are packed, with above, the directories on the way to them; nil is all.
	only, above map[string]bool
	buf         []byte
}

// Options say what is packed and how.
type Options struct {
	// Exclude are paths below the directory to leave out, with everything below them.
	Exclude archive.PathSet
	// Only are the entries to pack, without what is in them; nil packs everything.
	Only []string
	// Roots are the absolute names of the directory. An absolute symlink to something below one of them is
	// made relative. None keeps links as they are.
	Roots []string
	// CopyHardLinks writes the content of a file again for each further name.
	CopyHardLinks bool
	// Leave says why a file or directory is left out; "" packs it. Nil packs all of them.
	Leave func(st *unix.Stat_t) string
	// Owner returns the owner in the archive; nil keeps the numbers.
	Owner func(uid, gid uint32) (int, int)
}

// ErrKind is the error for what is neither a file nor a directory.
var ErrKind = errors.New("it is neither a file nor a directory")

// Write packs what fd has open, a directory or a file, which has the name base in the archive. No link is
// followed, and no device or FIFO is opened.
func Write(w io.Writer, fd int, base string, o Options) (api.TarReport, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return api.TarReport{}, os.NewSyscallError("fstat", err)
	}
	out := bufio.NewWriterSize(w, blockBytes)
	k := &packer{tw: tar.NewWriter(out), o: o, links: map[[2]uint64]string{}, buf: make([]byte, 256<<10)}
	if o.CopyHardLinks {
		k.links = nil
	}
	if o.Only != nil {
		k.choose(o.Only)
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = k.directory(fd, "", 0)
	case unix.S_IFREG:
		err = k.regular(fd, base, &st)
	default:
		return api.TarReport{}, ErrKind
	}
	if err == nil {
		err = k.tw.Close()
	}
	if err == nil {
		err = out.Flush()
	}
	return k.report, err
}

// choose packs these entries alone.
func (k *packer) choose(only []string) {
	k.only, k.above = make(map[string]bool, len(only)), map[string]bool{}
	for _, name := range only {
		k.only[name] = true
		for dir := path.Dir(name); dir != "." && !k.above[dir]; dir = path.Dir(dir) {
			k.above[dir] = true
		}
	}
}

func (k *packer) skip(name, reason string) { archive.Skip(&k.report, name, reason) }

// directory packs the content of an open directory.
func (k *packer) directory(d int, prefix string, depth int) error {
	buf := make([]byte, dirent.Bytes)
	for {
		list, err := dirent.Read(d, buf)
		if err != nil {
			k.skip(prefix, "the directory cannot be read further")
			return nil
		}
		if len(list) == 0 {
			return nil
		}
		for _, e := range list {
			if err := k.entry(d, e, prefix+e.Name, depth); err != nil {
				return err
			}
		}
	}
}

// entry packs one name of an open directory. Nothing is opened through a link,
// so what is changed meanwhile cannot lead elsewhere.
func (k *packer) entry(dir int, e dirent.Entry, name string, depth int) error {
	if k.report.Entries >= MaxEntries {
		return api.Errorf(api.CodeTooLarge, "there are more than %d files, which is the most that a tar may hold", MaxEntries)
	}
	if k.o.Exclude.Holds(name) || k.only != nil && !k.only[name] && !k.above[name] {
		return nil
	}
	if depth == 0 && archive.IsImport(e.Name) {
		k.skip(name, "it is an import on its way")
		return nil
	}
	base := e.Name
	var st unix.Stat_t
	// What the directory says is a file or a directory is opened without a look,
	// which is a call to the file server. To open a device may do something,
	// so all else is looked at.
	if e.Kind != unix.DT_REG && e.Kind != unix.DT_DIR {
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			k.skip(name, "it was removed while it was packed")
			return nil
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFDIR:
		case unix.S_IFLNK:
			return k.symlink(dir, base, name, &st)
		default:
			k.skip(name, "it is a FIFO, socket or device")
			return nil
		}
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		k.skip(name, "it was removed while it was packed")
		return nil
	case err != nil:
		k.skip(name, "it cannot be opened")
		return nil
	}
	// An os.File would ask the kernel whether it can wait for it.
	defer unix.Close(fd)
	// What was opened counts, not what stood there before.
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if k.o.Leave != nil {
		if reason := k.o.Leave(&st); reason != "" {
			k.skip(name, reason)
			return nil
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return k.regular(fd, name, &st)
	case unix.S_IFDIR:
		if depth >= MaxDepth {
			k.skip(name, fmt.Sprintf("it is nested deeper than %d directories", MaxDepth))
			return nil
		}
		if k.only == nil || k.only[name] {
			if err := k.header(k.head(name+"/", &st, tar.TypeDir)); err != nil {
				return err
			}
		}
		if k.only != nil && !k.above[name] {
			return nil
		}
		return k.directory(fd, name+"/", depth+1)
	}
	k.skip(name, "it is a FIFO, socket or device")
	return nil
}

// symlink packs a link.
func (k *packer) symlink(dir int, base, name string, st *unix.Stat_t) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, base, buf)
	if err != nil {
		k.skip(name, "the link cannot be read")
		return nil
	}
	h := k.head(name, st, tar.TypeSymlink)
	h.Linkname = k.relink(name, string(buf[:n]))
	return k.header(h)
}

// relink makes the target of a symlink relative where it is absolute and leads to
// something in the archive. Every directory on the way to the symlink is a real
// one, so counting them is enough.
func (k *packer) relink(name, target string) string {
	for _, root := range k.o.Roots {
		rest, ok := strings.CutPrefix(target, strings.TrimSuffix(root, "/"))
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		rest = strings.TrimLeft(rest, "/")
		if slices.Contains(strings.Split(rest, "/"), "..") {
			return target // what that means depends on other links
		}
		up := strings.Repeat("../", strings.Count(name, "/"))
		switch {
		case rest != "":
			return up + rest
		case up != "":
			return strings.TrimSuffix(up, "/")
		}
		return "."
	}
	return target
}

func (k *packer) head(name string, st *unix.Stat_t, kind byte) *tar.Header {
	uid, gid := int(st.Uid), int(st.Gid)
	if k.o.Owner != nil {
		uid, gid = k.o.Owner(st.Uid, st.Gid)
	}
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(st.Mode & 0o7777), Uid: uid, Gid: gid,
		ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX,
	}
}

func (k *packer) header(h *tar.Header) error {
	if err := k.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write tar header: %w", err)
	}
	k.report.Entries++
	return nil
}

// regular packs a file. One that shrinks meanwhile is filled with zeros, as its
// size has been announced.
func (k *packer) regular(fd int, name string, st *unix.Stat_t) error {
	if st.Nlink > 1 && k.links != nil {
		id := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := k.links[id]; ok {
			h := k.head(name, st, tar.TypeLink)
			h.Linkname = first
			return k.header(h)
		}
		if len(k.links) < maxLinks {
			k.links[id] = name
		}
	}
	if k.only != nil {
		if n, err := unix.Fgetxattr(fd, "security.capability", nil); err == nil && n > 0 {
			k.skip(name, "its file capabilities are lost")
		}
	}
	h := k.head(name, st, tar.TypeReg)
	h.Size = st.Size
	if err := k.header(h); err != nil {
		return err
	}
	left := st.Size
	for left > 0 {
		n, err := readFD(fd, k.buf[:min(left, int64(len(k.buf)))])
		if n > 0 {
			if _, werr := k.tw.Write(k.buf[:n]); werr != nil {
				return werr
			}
			left -= int64(n)
		}
		if err != nil || n == 0 {
			break
		}
	}
	if left > 0 {
		k.skip(name, fmt.Sprintf("it shrank while it was packed: the last %d bytes are zeros", left))
		clear(k.buf)
		for left > 0 {
			n, err := k.tw.Write(k.buf[:min(left, int64(len(k.buf)))])
			if err != nil {
				return err
			}
			left -= int64(n)
		}
	}
	k.report.Bytes += st.Size
	return nil
}

// readFD reads of a descriptor; 0 is the end.
func readFD(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// blockBytes is how much is written at once.
const blockBytes = 256 << 10
