//go:build linux || darwin

package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/ctxio"
)

// maxDirDepth bounds a directory that is packed.
const maxDirDepth = 256

// packer writes files of this machine into a tar.
type packer struct {
	ctx  context.Context
	tar  *tar.Writer
	root *os.Root
	// dev is the filesystem that is not left.
	dev uint64
	// self is whose files become root's: those of a normal user who packs his own.
	self uint32
	// first is the name under which an inode was packed already.
	first map[[2]uint64]string
}

// packDir gives the directory as a tar: names in order, no symlink followed,
// nothing of what is mounted in it.
func packDir(ctx context.Context, root *os.Root) io.ReadCloser {
	return PackStream(func(t *tar.Writer) error {
		p := &packer{ctx: ctx, tar: t, root: root, self: uint32(os.Geteuid()), first: map[[2]uint64]string{}}
		info, err := root.Stat(".")
		if err != nil {
			return fmt.Errorf("look at directory: %w", err)
		}
		p.dev = uint64(statOf(info).Dev)
		return p.pack(".", info, 0)
	})
}

func statOf(info fs.FileInfo) syscall.Stat_t {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return *st
	}
	return syscall.Stat_t{}
}

// pack writes what is called name, and what is below it.
func (p *packer) pack(name string, info fs.FileInfo, depth int) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if depth > maxDirDepth {
		return fmt.Errorf("pack %s: more than %d levels", clip(name), maxDirDepth)
	}
	st := statOf(info)
	h := p.header(name, info, st)
	switch {
	case info.Mode().IsRegular():
		return p.packFile(h, name, st)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := p.root.Readlink(name)
		if err != nil {
			return fmt.Errorf("pack %s: %w", clip(name), err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case info.IsDir():
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		if err := p.write(h); err != nil {
			return err
		}
		if uint64(st.Dev) != p.dev {
			return nil
		}
		return p.packEntries(name, depth)
	case info.Mode()&fs.ModeNamedPipe != 0:
		h.Typeflag = tar.TypeFifo
	case info.Mode()&fs.ModeDevice != 0:
		h.Typeflag = tar.TypeChar
	default:
		return nil // a socket is nothing without who listens
	}
	return p.write(h)
}

func (p *packer) header(name string, info fs.FileInfo, st syscall.Stat_t) *tar.Header {
	uid, gid := int(st.Uid), int(st.Gid)
	if p.self != 0 && st.Uid == p.self {
		uid, gid = 0, 0
	}
	mode := int64(info.Mode().Perm())
	for bit, value := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			mode |= value
		}
	}
	return &tar.Header{Name: name, Mode: mode, Uid: uid, Gid: gid, ModTime: info.ModTime().Truncate(time.Microsecond), Format: tar.FormatPAX}
}

func (p *packer) write(h *tar.Header) error {
	if err := p.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("pack %s: %w", clip(h.Name), err)
	}
	return nil
}

func (p *packer) packEntries(name string, depth int) error {
	d, err := p.root.Open(name)
	if err != nil {
		return fmt.Errorf("pack %s: %w", clip(name), err)
	}
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return fmt.Errorf("pack %s: %w", clip(name), err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		below := path.Join(name, e.Name())
		info, err := p.root.Lstat(below)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = p.pack(below, info, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) packFile(h *tar.Header, name string, st syscall.Stat_t) error {
	if id := [2]uint64{uint64(st.Dev), st.Ino}; st.Nlink > 1 {
		if first, ok := p.first[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.write(h)
		}
		p.first[id] = name
	}
	f, err := p.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("pack %s: %w", clip(name), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("pack %s: it changed meanwhile: %w", clip(name), errors.Join(err, fs.ErrInvalid))
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.write(h); err != nil {
		return err
	}
	if _, err := io.CopyN(p.tar, ctxio.Reader(p.ctx, f), h.Size); err != nil {
		return fmt.Errorf("pack %s: %w", clip(name), err)
	}
	return nil
}
