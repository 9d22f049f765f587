// Package erofstar writes files of EROFS images into tars.
package erofstar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	erofs "github.com/erofs/go-erofs"
)

// Packer writes parts of images into a tar. It is not safe for concurrent use.
type Packer struct {
	Tar *tar.Writer
	// Change edits a header before it is written; nil keeps it.
	Change func(*tar.Header)

	// first are the names under which inodes of an image were packed.
	first map[int64]string
	of    fs.FS
}

// Add writes what is at name in an image to the tar as called, with what is below it. If called is ".", only
// what is below it is written. skip, which can be nil, says what is left out. Names of one inode are hard links
// as long as they come from one image.
func (p *Packer) Add(ctx context.Context, root fs.FS, name, called string, skip func(name string) bool) error {
	if p.of != root {
		p.of, p.first = root, map[int64]string{}
	}
	return fs.WalkDir(root, name, func(at string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if skip != nil && skip(at) {
			if d.IsDir() {
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
		if err := p.add(root, at, to); err != nil {
			return fmt.Errorf("pack %.200q: %w", at, err)
		}
		return nil
	})
}

// add writes one file.
func (p *Packer) add(root fs.FS, name, to string) error {
	info, err := Lstat(root, name)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*erofs.Stat)
	if !ok {
		return errors.New("the image does not say what it is")
	}
	h := &tar.Header{
		Name: to, Mode: int64(Mode(info)), Uid: int(st.UID), Gid: int(st.GID),
		ModTime: time.Unix(int64(st.Mtime), int64(st.MtimeNs)), Format: tar.FormatPAX,
	}
	for key, value := range st.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+key] = value
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, to+"/"
	case fs.ModeSymlink:
		if h.Linkname, err = fs.ReadLink(root, name); err != nil {
			return err
		}
		h.Typeflag = tar.TypeSymlink
	case fs.ModeNamedPipe:
		h.Typeflag = tar.TypeFifo
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		h.Typeflag = tar.TypeBlock
		if info.Mode()&fs.ModeCharDevice != 0 {
			h.Typeflag = tar.TypeChar
		}
		h.Devmajor, h.Devminor = device(st.Rdev)
	case 0:
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
		if st.Nlink < 2 {
			break
		}
		if first, ok := p.first[st.Ino]; ok {
			h.Typeflag, h.Linkname, h.Size, h.PAXRecords = tar.TypeLink, first, 0, nil
		} else {
			p.first[st.Ino] = to
		}
	default:
		return nil // a socket is in no tar
	}
	if p.Change != nil {
		p.Change(h)
	}
	if err := p.Tar.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(p.Tar, f)
	return err
}

// Lstat describes a file of an image, without following a symlink.
func Lstat(root fs.FS, name string) (fs.FileInfo, error) {
	if l, ok := root.(fs.ReadLinkFS); ok {
		return l.Lstat(name)
	}
	return fs.Stat(root, name)
}

// Mode returns the permission, setuid, setgid and sticky bits of a file of an image, as numbers of POSIX.
func Mode(info fs.FileInfo) uint32 {
	mode := info.Mode()
	if st, ok := info.Sys().(*erofs.Stat); ok {
		mode = st.Mode // the one of info lacks the three bits
	}
	out := uint32(mode.Perm())
	for _, b := range [...]struct {
		bit uint32
		is  fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if mode&b.is != 0 {
			out |= b.bit
		}
	}
	return out
}

// device takes a device number of Linux apart.
func device(dev uint32) (major, minor int64) {
	return int64(dev >> 8 & 0xfff), int64(dev&0xff | dev>>12&0xfff00)
}
