//go:build linux

package fsop

import (
	"archive/tar"
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
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	maxTarEntries = 4 << 20
	// maxLinks bounds the hard links that are remembered: later ones become
	// copies.
	maxLinks = 1 << 16
	// maxTarDepth bounds open directories.
	maxTarDepth = 512
	maxSkipped  = 1000
)

// frameWriter sends what is written as data frames.
type frameWriter struct{ p *session.Call }

func (w frameWriter) Write(b []byte) (int, error) {
	if err := w.p.Bytes(wire.KindData, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// packer writes one tar.
type packer struct {
	tw      *tar.Writer
	report  api.TarReport
	links   map[[2]uint64]string // nil makes copies of hard links
	exclude pathwalk.PathSet
	// only are the entries that are packed, with above, the directories on the way to them; nil is all.
	only, above map[string]bool
	// roots are the names of the directory itself, in front of which an absolute
	// link leads to something in it; none keeps links as they are.
	roots []string
	buf   []byte
}

// tarOut sends a tar of what is at name.
func (fo *Files) tarOut(p *session.Call, name string, o wire.Tar) error {
	p.Attend(nil) // as for a large file
	f, err := pathwalk.Open(name, unix.O_RDONLY, 0)
	if err != nil {
		return pathwalk.FileError("pack", name, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := pathwalk.Fstat(f, &st); err != nil {
		return pathwalk.FileError("pack", name, err)
	}
	out := newBlocks(frameWriter{p})
	k := &packer{tw: tar.NewWriter(out), links: map[[2]uint64]string{}, exclude: pathwalk.NewPathSet(o.Exclude), buf: make([]byte, 256<<10)}
	if o.CopyHardLinks {
		k.links = nil
	}
	if o.Only != nil {
		k.choose(o.Only)
	}
	if !o.KeepLinks {
		k.roots = []string{path.Clean(name)}
		if real, err := os.Readlink(pathwalk.ProcFD(int(f.Fd()))); err == nil && real != k.roots[0] {
			k.roots = append(k.roots, real)
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = k.directory(int(f.Fd()), "", 0)
	case unix.S_IFREG:
		err = k.regular(int(f.Fd()), path.Base(name), &st)
	default:
		return api.Invalid("path", "pack %.500q: it is neither a file nor a directory", name)
	}
	if err == nil {
		err = k.tw.Close()
	}
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		return pathwalk.FileError("pack", name, err)
	}
	return p.JSON(wire.KindReply, k.report)
}

// choose packs these entries alone.
func (k *packer) choose(only []api.Bytes) {
	k.only, k.above = make(map[string]bool, len(only)), map[string]bool{}
	for _, name := range only {
		k.only[string(name)] = true
		for dir := path.Dir(string(name)); dir != "." && !k.above[dir]; dir = path.Dir(dir) {
			k.above[dir] = true
		}
	}
}

func (k *packer) skip(name, reason string) {
	if len(k.report.Skipped) < maxSkipped {
		k.report.Skipped = append(k.report.Skipped, api.TarSkip{Path: strings.ToValidUTF8(name, "\uFFFD"), Reason: reason})
	}
}

// directory packs the content of an open directory.
func (k *packer) directory(d int, prefix string, depth int) error {
	buf := make([]byte, pathwalk.DirentBytes)
	for {
		list, err := pathwalk.ReadDirents(d, buf)
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
func (k *packer) entry(dir int, e pathwalk.Dirent, name string, depth int) error {
	if k.report.Entries >= maxTarEntries {
		return api.Errorf(api.CodeTooLarge, "there are more than %d files, which is the most that a tar may hold", maxTarEntries)
	}
	if k.exclude.Holds(name) || k.only != nil && !k.only[name] && !k.above[name] {
		return nil
	}
	if depth == 0 && isStaging(e.Name) {
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
	if pathwalk.IsMask(&st) {
		k.skip(name, "a rule of its mount allows no access")
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return k.regular(fd, name, &st)
	case unix.S_IFDIR:
		if depth >= maxTarDepth {
			k.skip(name, fmt.Sprintf("it is nested deeper than %d directories", maxTarDepth))
			return nil
		}
		if k.only == nil || k.only[name] {
			if err := k.header(header(name+"/", &st, tar.TypeDir)); err != nil {
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
	h := header(name, st, tar.TypeSymlink)
	h.Linkname = k.relink(name, string(buf[:n]))
	return k.header(h)
}

// relink makes the target of a symlink relative where it is absolute and leads to
// something in the archive. Every directory on the way to the symlink is a real
// one, so counting them is enough.
func (k *packer) relink(name, target string) string {
	for _, root := range k.roots {
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

func header(name string, st *unix.Stat_t, kind byte) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
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
			h := header(name, st, tar.TypeLink)
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
	h := header(name, st, tar.TypeReg)
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

// blocks gathers the small writes of a tar writer into whole frames.
type blocks struct {
	w   io.Writer
	buf []byte
}

func newBlocks(w io.Writer) *blocks { return &blocks{w: w, buf: make([]byte, 0, wire.MaxData)} }

func (b *blocks) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := min(cap(b.buf)-len(b.buf), len(p))
		b.buf = append(b.buf, p[:n]...)
		p = p[n:]
		if len(b.buf) == cap(b.buf) {
			if err := b.flush(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (b *blocks) flush() error {
	if len(b.buf) == 0 {
		return nil
	}
	_, err := b.w.Write(b.buf)
	b.buf = b.buf[:0]
	return err
}
