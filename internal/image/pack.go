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
	"strings"
	"time"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/internal/archive"
)

// Walk calls fn with what is at from and below it, each directory before what is in it and with its own
// path. It follows no symlink.
func (t *Tree) Walk(from string, fn func(name string, info fs.FileInfo) error) error {
	return fs.WalkDir(t.root, from, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := t.lstat(name)
		if err != nil {
			return err
		}
		return fn(name, info)
	})
}

// Follow resolves the symlinks of a path, which stay in the tree. The result is relative and clean.
func (t *Tree) Follow(name string) (string, error) {
	l, ok := t.root.(fs.ReadLinkFS)
	if !ok {
		return "", fmt.Errorf("follow %s: %w", clip(name), errors.ErrUnsupported)
	}
	return follow(l, name)
}

// Open opens a file of the tree.
func (t *Tree) Open(name string) (fs.File, error) { return t.root.Open(name) }

// Packer writes parts of trees into a tar. It is not safe for concurrent use.
type Packer struct {
	Tar *tar.Writer
	// Change edits a header before it is written; nil keeps it.
	Change func(*tar.Header)

	first map[int64]string // the name of an inode that was packed
	of    *Tree            // whose inodes these are
}

// Add writes what is at name in a tree to the tar, as called, or what is below it if called is ".". Names
// of one inode are hard links as long as they come from one tree.
func (p *Packer) Add(ctx context.Context, t *Tree, name, called string, skip func(name string) bool) error {
	if p.of != t {
		p.of, p.first = t, map[int64]string{}
	}
	return t.Walk(name, func(at string, info fs.FileInfo) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if skip != nil && skip(at) {
			if info.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		to := called
		if at != name {
			below := at
			if name != "." {
				below = strings.TrimPrefix(at, name+"/")
			}
			to = path.Join(called, below)
		}
		if to == "." {
			return nil
		}
		return p.entry(t, at, to, info)
	})
}

func (p *Packer) entry(t *Tree, name, to string, info fs.FileInfo) error {
	st, ok := info.Sys().(*erofs.Stat)
	if !ok {
		return fmt.Errorf("pack %s: its image does not say what it is", clip(name))
	}
	own, _ := t.Lstat(name)
	h := &tar.Header{
		Name: to, Mode: int64(own.Mode), Uid: int(st.UID), Gid: int(st.GID),
		ModTime: time.Unix(int64(st.Mtime), int64(st.MtimeNs)), Format: tar.FormatPAX,
	}
	write := func() error {
		if p.Change != nil {
			p.Change(h)
		}
		if err := p.Tar.WriteHeader(h); err != nil {
			return fmt.Errorf("pack %s: %w", clip(name), err)
		}
		return nil
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, to+"/"
		return write()
	case fs.ModeSymlink:
		target, err := t.root.(fs.ReadLinkFS).ReadLink(name)
		if err != nil {
			return fmt.Errorf("pack %s: %w", clip(name), err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return write()
	case 0:
	default:
		return nil
	}
	if st.Nlink > 1 {
		if first, ok := p.first[st.Ino]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return write()
		}
		p.first[st.Ino] = to
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := write(); err != nil {
		return err
	}
	f, err := t.Open(name)
	if err != nil {
		return fmt.Errorf("pack %s: %w", clip(name), err)
	}
	defer f.Close()
	if _, err := io.Copy(p.Tar, f); err != nil {
		return fmt.Errorf("pack %s: %w", clip(name), err)
	}
	return nil
}

// packStream is the whole tree as a tar. Close ends it and waits.
func (t *Tree) packStream(ctx context.Context) io.ReadCloser {
	return packStream(func(w *tar.Writer) error {
		return (&Packer{Tar: w}).Add(ctx, t, ".", ".", nil)
	})
}

// OpenFiles opens the files of an image, which is a name or a digest; the caller closes them. Of an image on
// host these are not the tools of this machine.
func (s *Store) OpenFiles(ctx context.Context, ref string) (*Tree, error) {
	base, err := s.stackBase(ctx, ref)
	if err != nil {
		return nil, err
	}
	return OpenTree(base.file)
}

// Spool keeps the files of a tar, compressed or not, in a file without a name, until the tree is closed.
// What is in it is looked at without leaving it, as in an image.
func (s *Store) Spool(ctx context.Context, r io.Reader, l archive.Limits) (_ *Tree, err error) {
	f, err := s.oci.temp("context-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	out := &contents{f: f}
	out.next.Store(1) // the superblock is written last
	source := layerSource{open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(r), nil }}
	u, err := readLayers(ctx, []layerSource{source}, l, out)
	if err != nil {
		return nil, err
	}
	t := newTree()
	if err := t.merge(u.layers[0]); err != nil {
		return nil, err
	}
	if err := finish(t, out); err != nil {
		return nil, err
	}
	root, err := erofs.Open(f)
	if err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	return &Tree{file: f, root: root}, nil
}
