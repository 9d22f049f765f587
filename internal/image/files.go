package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/erofstar"
)

// Walk calls fn with what is at from and below it, each directory before what is in it and with its own
// path. It follows no symlink.
func (t *Tree) Walk(from string, fn func(name string, info fs.FileInfo) error) error {
	return fs.WalkDir(t.root, from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info() // of a symlink itself, and without a walk from the root
		if name == from {
			info, err = t.lstat(name)
		}
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

// Pack adds what is at name to a tar, as [erofstar.Packer.Add] does.
func (t *Tree) Pack(ctx context.Context, p *erofstar.Packer, name, called string, skip func(name string) bool) error {
	return p.Add(ctx, t.root, name, called, skip)
}

// packStream is the whole tree as a tar. Close ends it and waits.
func (t *Tree) stream(ctx context.Context) io.ReadCloser {
	return PackStream(func(w *tar.Writer) error {
		return t.Pack(ctx, &erofstar.Packer{Tar: w}, ".", ".", nil)
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
	if isDiskFull(err) {
		return nil, diskFull("the context of a build", err)
	}
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

// PackStream runs pack and gives what it writes. Close ends it and waits.
func PackStream(pack func(*tar.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := tar.NewWriter(w)
		err := pack(t)
		if err == nil {
			err = t.Close()
		}
		w.CloseWithError(err)
	}()
	return &packing{PipeReader: r, done: done}
}

type packing struct {
	*io.PipeReader
	done chan struct{}
}

func (p *packing) Close() error {
	err := p.PipeReader.Close()
	<-p.done
	return err
}
