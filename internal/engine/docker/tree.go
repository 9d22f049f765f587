package docker

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	erofs "github.com/erofs/go-erofs"
)

// writeTree writes the whole of an EROFS image as a tar.
func writeTree(ctx context.Context, w io.Writer, image string) error {
	t := tar.NewWriter(w)
	if err := addTree(ctx, t, image); err != nil {
		return err
	}
	return t.Close()
}

// addTree adds what is in an EROFS image to a tar.
func addTree(ctx context.Context, t *tar.Writer, image string) error {
	f, err := os.Open(image)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	root, err := erofs.Open(f)
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	b := treeWriter{root: root, tar: t, seen: map[uint64]string{}}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		return b.add(name)
	})
	if err != nil {
		return fmt.Errorf("pack image: %w", err)
	}
	return nil
}

// treeWriter writes a tree.
type treeWriter struct {
	root fs.FS
	tar  *tar.Writer
	// seen are the names of files that have several, by their number.
	seen map[uint64]string
}

// add writes one file.
func (b *treeWriter) add(name string) error {
	info, err := b.lstat(name)
	if err != nil {
		return err
	}
	var link string
	if info.Mode().Type() == fs.ModeSymlink {
		if link, err = fs.ReadLink(b.root, name); err != nil {
			return fmt.Errorf("read link %s: %w", name, err)
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return fmt.Errorf("describe %s: %w", name, err)
	}
	h.Name = path.Clean(name)
	if info.IsDir() {
		h.Name += "/"
	}
	st, ok := info.Sys().(*erofs.Stat)
	if !ok {
		return fmt.Errorf("describe %s: it says nothing of its owner", name)
	}
	h.Uid, h.Gid, h.Format = int(st.UID), int(st.GID), tar.FormatPAX
	h.Devmajor, h.Devminor = device(st.Rdev)
	for key, value := range st.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+key] = value
	}
	if info.Mode().IsRegular() && st.Nlink > 1 {
		if first, ok := b.seen[uint64(st.Ino)]; ok {
			h.Typeflag, h.Linkname, h.Size, h.PAXRecords = tar.TypeLink, first, 0, nil
		} else {
			b.seen[uint64(st.Ino)] = h.Name
		}
	}
	if err := b.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := b.root.Open(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer f.Close()
	if _, err := io.Copy(b.tar, f); err != nil {
		return fmt.Errorf("copy %s: %w", name, err)
	}
	return nil
}

func (b *treeWriter) lstat(name string) (fs.FileInfo, error) {
	if l, ok := b.root.(fs.ReadLinkFS); ok {
		return l.Lstat(name)
	}
	return fs.Stat(b.root, name)
}

// device takes a device number of Linux apart.
func device(dev uint32) (major, minor int64) {
	return int64(dev >> 8 & 0xfff), int64(dev&0xff | dev>>12&0xfff00)
}
