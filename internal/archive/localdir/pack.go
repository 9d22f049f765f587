package localdir

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Pack writes the content of a local directory as a tar archive. Names are relative to
// the directory, and the paths in exclude are omitted with everything below them. Links
// are kept as links; sockets, devices and pipes are omitted and reported. Pack reads
// through an os.Root, so that a directory that is replaced by a link leads nowhere.
func Pack(w io.Writer, dir string, exclude []string, report *api.TarReport) error {
	return packAs(w, dir, packer{exclude: exclude, report: report})
}

// PackWhere is Pack with a function that says what is omitted, which gets clean paths with slashes. What is below
// an omitted directory is asked for too unless prune is set.
func PackWhere(w io.Writer, dir string, skip func(path string) bool, prune bool, report *api.TarReport) error {
	return packAs(w, dir, packer{skip: skip, walkSkipped: !prune, report: report})
}

// PackRoot is Pack for a root filesystem: it keeps owners, all bits of the modes and
// hard links.
func PackRoot(w io.Writer, dir string, report *api.TarReport) error {
	return packAs(w, dir, packer{report: report, first: map[[2]uint64]string{}})
}

// PackOnly writes those files of an open directory whose clean path with slashes want returns true for. A
// directory is packed without what is in it.
func PackOnly(w io.Writer, root *os.Root, want func(path string) bool, report *api.TarReport) error {
	return packFrom(w, root, packer{skip: func(path string) bool { return !want(path) }, walkSkipped: true, report: report})
}

func packAs(w io.Writer, dir string, p packer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Error("read", dir, err)
	}
	defer root.Close()
	return packFrom(w, root, p)
}

func packFrom(w io.Writer, root *os.Root, p packer) error {
	p.root, p.tw = root, tar.NewWriter(w)
	err := p.dir(".")
	if cerr := p.tw.Close(); err == nil {
		err = cerr
	}
	return err
}

type packer struct {
	root   *os.Root
	tw     *tar.Writer
	report *api.TarReport
	// exclude are clean paths with slashes.
	exclude []string
	// skip says what else is omitted. With walkSkipped, what is below an omitted directory may be wanted.
	skip        func(path string) bool
	walkSkipped bool
	// first is set when files are packed as they are: the name of each inode that
	// has several, as it was packed.
	first map[[2]uint64]string
}

// dir sends what is in a directory, sorted by name. It does not use fs.FS, which
// has no names that are not UTF-8.
func (p *packer) dir(name string) error {
	d, err := p.root.Open(name)
	if err != nil {
		return Error("read", filepath.Join(p.root.Name(), name), err)
	}
	entries, err := d.ReadDir(-1)
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return Error("read", filepath.Join(p.root.Name(), name), err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := p.entry(filepath.Join(name, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(name string) error {
	if slices.Contains(p.exclude, filepath.ToSlash(name)) {
		return nil
	}
	skipped := p.skip != nil && p.skip(filepath.ToSlash(name))
	if skipped && !p.walkSkipped {
		return nil
	}
	info, err := p.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone since the directory was listed
	}
	if err != nil {
		return Error("read", filepath.Join(p.root.Name(), name), err)
	}
	if skipped {
		if info.IsDir() {
			return p.dir(name)
		}
		return nil
	}
	h := &tar.Header{Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if p.first != nil {
		if all, err := tar.FileInfoHeader(info, ""); err == nil {
			h.Mode, h.Uid, h.Gid = all.Mode, all.Uid, all.Gid
		}
		if done, err := p.again(info, h); done || err != nil {
			return err
		}
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		p.report.Entries++
		if err := p.header(h); err != nil {
			return err
		}
		return p.dir(name)
	case info.Mode().IsRegular():
		return p.file(name, h)
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return Error("read", name, err)
		}
		h.Linkname = filepath.ToSlash(h.Linkname)
	default:
		if len(p.report.Skipped) < maxSkips {
			p.report.Skipped = append(p.report.Skipped, api.TarSkip{Path: name, Reason: "it is neither file, directory nor link"})
		}
		return nil
	}
	p.report.Entries++
	return p.header(h)
}

// again sends a link where the file was sent by another name.
func (p *packer) again(info fs.FileInfo, h *tar.Header) (bool, error) {
	id, ok := inodeOf(info)
	if !ok || !info.Mode().IsRegular() {
		return false, nil
	}
	if p.first[id] == "" {
		p.first[id] = h.Name
		return false, nil
	}
	h.Typeflag, h.Linkname = tar.TypeLink, p.first[id]
	p.report.Entries++
	return true, p.header(h)
}

func (p *packer) header(h *tar.Header) error {
	if err := p.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("send %s: %w", h.Name, err)
	}
	return nil
}

// file sends one file at the size it had when it was opened: one that grows
// meanwhile is cut there, one that shrinks is an error.
func (p *packer) file(name string, h *tar.Header) error {
	f, err := p.root.Open(name)
	if err != nil {
		return Error("read", filepath.Join(p.root.Name(), name), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Error("read", name, err)
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.header(h); err != nil {
		return err
	}
	n, err := io.Copy(p.tw, io.LimitReader(f, h.Size))
	if err != nil {
		return fmt.Errorf("send %s: %w", name, err)
	}
	if n < h.Size {
		return api.Errorf(api.CodeInvalid, "%s shrank while it was read", terminal.Printable(name)).WithHint("copy it when nothing writes to it")
	}
	p.report.Entries++
	p.report.Bytes += n
	return nil
}
