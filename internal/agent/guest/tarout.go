//go:build linux

package guest

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
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
type frameWriter struct{ p *peer }

func (w frameWriter) Write(b []byte) (int, error) {
	if err := w.p.Bytes(wire.KindData, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// packer writes one tar.
type packer struct {
	tw     *tar.Writer
	report cloche.TarReport
	links  map[[2]uint64]string
	buf    []byte
}

// tarOut sends a tar of what is at name.
func (a *Agent) tarOut(p *peer, name string) error {
	f, err := open(name, unix.O_RDONLY, 0)
	if err != nil {
		return fileError("pack", name, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := fstat(f, &st); err != nil {
		return fileError("pack", name, err)
	}
	out := newBlocks(frameWriter{p})
	k := &packer{tw: tar.NewWriter(out), links: map[[2]uint64]string{}, buf: make([]byte, 64<<10)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = k.directory(f, "", 0)
	case unix.S_IFREG:
		err = k.regular(f, path.Base(name), &st)
	default:
		return cloche.Invalid("path", "pack %.500q: it is neither a file nor a directory", name)
	}
	if err == nil {
		err = k.tw.Close()
	}
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		return fileError("pack", name, err)
	}
	return p.JSON(wire.KindReply, k.report)
}

func (k *packer) skip(name, reason string) {
	if len(k.report.Skipped) < maxSkipped {
		k.report.Skipped = append(k.report.Skipped, cloche.TarSkip{Path: strings.ToValidUTF8(name, "\uFFFD"), Reason: reason})
	}
}

// directory packs the content of an open directory.
func (k *packer) directory(d *os.File, prefix string, depth int) error {
	for {
		names, err := d.Readdirnames(512)
		for _, n := range names {
			if err := k.entry(d, n, prefix+n, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			k.skip(prefix, "the directory cannot be read further")
			return nil
		}
	}
}

// entry packs one name of an open directory. Nothing is opened through a link,
// so what is changed meanwhile cannot lead elsewhere.
func (k *packer) entry(d *os.File, base, name string, depth int) error {
	if k.report.Entries >= maxTarEntries {
		return cloche.Errorf(cloche.CodeTooLarge, "there are more than %d files, which is the most that a tar may hold", maxTarEntries)
	}
	dir := int(d.Fd())
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		k.skip(name, "it was removed while it was packed")
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, buf)
		if err != nil {
			k.skip(name, "the link cannot be read")
			return nil
		}
		h := header(name, &st, tar.TypeSymlink)
		h.Linkname = string(buf[:n])
		return k.header(h)
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		k.skip(name, "it is a FIFO, socket or device")
		return nil
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		k.skip(name, "it cannot be opened")
		return nil
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	// What was opened counts, not what stood there before.
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return k.regular(f, name, &st)
	case unix.S_IFDIR:
		if depth >= maxTarDepth {
			k.skip(name, fmt.Sprintf("it is nested deeper than %d directories", maxTarDepth))
			return nil
		}
		if err := k.header(header(name+"/", &st, tar.TypeDir)); err != nil {
			return err
		}
		return k.directory(f, name+"/", depth+1)
	}
	k.skip(name, "it is a FIFO, socket or device")
	return nil
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
func (k *packer) regular(f *os.File, name string, st *unix.Stat_t) error {
	if st.Nlink > 1 {
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
	h := header(name, st, tar.TypeReg)
	h.Size = st.Size
	if err := k.header(h); err != nil {
		return err
	}
	left := st.Size
	for left > 0 {
		n, err := f.Read(k.buf[:min(left, int64(len(k.buf)))])
		if n > 0 {
			if _, werr := k.tw.Write(k.buf[:n]); werr != nil {
				return werr
			}
			left -= int64(n)
		}
		if err != nil {
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
