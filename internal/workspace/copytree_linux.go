//go:build !remoteonly

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxLeft bounds what a CopyReport names.
	maxLeft = 1000
	// maxXattrs bounds what is read of the names of one file's attributes.
	maxXattrs = 64 << 10
)

// copier copies one tree.
type copier struct {
	ctx    context.Context
	limits CopyLimits
	report CopyReport
	top    *os.File
	// links are the places of files that have several names.
	links map[linkKey]string
	// noClone: the two filesystems share no blocks.
	noClone bool
}

type linkKey struct{ dev, ino uint64 }

// copyTree copies what is in one directory into another that is empty, by
// descriptors and following no symlink. Hard links, holes, owners, modes without set-id bits, times and
// the extended attributes of the namespace user are kept; devices, FIFOs and sockets
// are left out. Where the filesystem can, the copy shares its blocks with the
// original.
func copyTree(ctx context.Context, from, to *os.File, l CopyLimits) (CopyReport, error) {
	c := &copier{ctx: ctx, limits: l, top: to, links: map[linkKey]string{}}
	err := c.dir(from, to, "", 0)
	return c.report, err
}

// copyEntry copies one entry, with all that is in it, to a name that is free.
func copyEntry(ctx context.Context, from *os.File, name string, to *os.File, as string) error {
	c := &copier{ctx: ctx, top: to, links: map[linkKey]string{}}
	return c.entry(from, name, to, as, as, 0)
}

func (c *copier) dir(from, to *os.File, prefix string, depth int) error {
	if depth > maxDepth {
		return tooDeep(prefix)
	}
	return eachName(c.ctx, from, func(name string) error {
		return c.entry(from, name, to, name, within(prefix, name), depth)
	})
}

func (c *copier) leave(path, reason string) {
	if len(c.report.Left) < maxLeft {
		c.report.Left = append(c.report.Left, api.TarSkip{Path: strings.ToValidUTF8(path, "\uFFFD"), Reason: reason})
	}
}

// take counts one entry against the limits.
func (c *copier) take(st *unix.Stat_t) error {
	c.report.Entries++
	if isFile(st) {
		c.report.Bytes += min(st.Size, st.Blocks*512)
	}
	switch {
	case c.limits.Entries > 0 && c.report.Entries > c.limits.Entries:
		return api.Errorf(api.CodeTooLarge, "there are more than %d files to copy", c.limits.Entries).
			WithHint("remove what need not be copied, or pack it into one file")
	case c.limits.Bytes > 0 && c.report.Bytes > c.limits.Bytes:
		return api.Errorf(api.CodeTooLarge, "the files to copy have more than %d bytes", c.limits.Bytes).
			WithHint("remove what need not be copied")
	}
	return nil
}

// entry copies one entry; path is its place in the tree.
func (c *copier) entry(from *os.File, name string, to *os.File, as, path string, depth int) error {
	st, err := lstatAt(from, name)
	if err != nil {
		return c.vanished(path, err)
	}
	key := linkKey{st.Dev, st.Ino}
	if first, ok := c.links[key]; ok && st.Nlink > 1 && !isDir(&st) {
		err := unix.Linkat(int(c.top.Fd()), first, int(to.Fd()), as, 0)
		if err == nil || !errors.Is(err, unix.ENAMETOOLONG) && !errors.Is(err, unix.EMLINK) {
			return err
		}
	}
	if err := c.take(&st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.subdir(from, name, to, as, path, depth)
	case unix.S_IFREG:
		err = c.file(from, name, to, as, path)
	case unix.S_IFLNK:
		err = copySymlink(from, name, to, as, &st)
	case unix.S_IFIFO:
		c.leave(path, "a FIFO")
		return nil
	case unix.S_IFSOCK:
		c.leave(path, "a socket")
		return nil
	default:
		c.leave(path, "a device")
		return nil
	}
	if err == nil && st.Nlink > 1 {
		c.links[key] = path
	}
	return err
}

// vanished takes a file that was removed, or that cannot be read, out of the copy.
func (c *copier) vanished(path string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESTALE), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		c.leave(path, "it changed while it was copied")
		return nil
	case errors.Is(err, unix.EACCES):
		c.leave(path, "its mode lets not even its owner read it")
		return nil
	}
	return err
}

func (c *copier) subdir(from *os.File, name string, to *os.File, as, path string, depth int) error {
	src, err := openDirAt(from, name)
	if err != nil {
		return c.vanished(path, err)
	}
	defer src.Close()
	if err := unix.Mkdirat(int(to.Fd()), as, 0o700); err != nil {
		return fmt.Errorf("copy directory: %w", err)
	}
	dst, err := openDirAt(to, as)
	if err != nil {
		return err
	}
	defer dst.Close()
	if err := c.dir(src, dst, path, depth+1); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	if err := copyXattrs(src, dst); err != nil {
		return err
	}
	return setAttributes(dst, &st)
}

func (c *copier) file(from *os.File, name string, to *os.File, as, path string) error {
	src, err := openFileAt(from, name)
	if err != nil {
		return c.vanished(path, err)
	}
	defer src.Close()
	fd, err := unix.Openat(int(to.Fd()), as, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("copy file: %w", err)
	}
	dst := os.NewFile(uintptr(fd), as)
	defer dst.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	if err := c.content(src, dst, st.Size); err != nil {
		return fmt.Errorf("copy file: %w", err)
	}
	if err := copyXattrs(src, dst); err != nil {
		return err
	}
	if err := setAttributes(dst, &st); err != nil {
		return err
	}
	return dst.Close()
}

// content copies size bytes and keeps the holes.
func (c *copier) content(src, dst *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if !c.noClone {
		err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
		if err == nil {
			return dst.Truncate(size)
		}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) {
			return err
		}
		c.noClone = true
	}
	if err := dst.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		data, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || data >= size {
			return nil // the rest is a hole
		}
		hole := size
		if err == nil {
			if hole, err = unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE); err != nil {
				return err
			}
			hole = min(hole, size)
		} else {
			data = at // a filesystem that knows of no holes
		}
		if at, err = c.piece(src, dst, data, hole); err != nil {
			return err
		}
		if at < hole {
			return nil // the file has become shorter
		}
	}
	return nil
}

// pieceSize is how much is copied between two looks at the context.
const pieceSize = 64 << 20

// piece copies what lies from one offset to another and returns how far it came.
func (c *copier) piece(src, dst *os.File, from, to int64) (int64, error) {
	for from < to {
		if err := c.ctx.Err(); err != nil {
			return from, err
		}
		in, out := from, from
		n, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(min(to-from, pieceSize)), 0)
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			m, err := io.Copy(io.NewOffsetWriter(dst, from), io.NewSectionReader(src, from, min(to-from, pieceSize)))
			if err != nil || m == 0 {
				return from + m, err
			}
			from += m
			continue
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return from, err
		}
		from += int64(n)
	}
	return from, nil
}

func copySymlink(from *os.File, name string, to *os.File, as string, st *unix.Stat_t) error {
	text := target(from, name)
	if text == "" {
		return nil // it changed while it was copied
	}
	if err := unix.Symlinkat(text, int(to.Fd()), as); err != nil {
		return fmt.Errorf("copy symlink: %w", err)
	}
	if err := unix.Fchownat(int(to.Fd()), as, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil && os.Geteuid() == 0 {
		return fmt.Errorf("copy symlink: %w", err)
	}
	_ = unix.UtimesNanoAt(int(to.Fd()), as, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	return nil
}

// setAttributes gives a file the owner, mode and times of another. Who is not root
// owns all there is.
func setAttributes(f *os.File, st *unix.Stat_t) error {
	fd := int(f.Fd())
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil && os.Geteuid() == 0 {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := unix.Fchmod(fd, hostMode(st)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, procPath(f), []unix.Timespec{st.Atim, st.Mtim}, 0); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// hostMode is the mode that a copy of a file gets. A program may have changed its content,
// and the host would execute it with its owner's rights, so a file loses its set-id bits.
// A directory that is set-group-ID stays so.
func hostMode(st *unix.Stat_t) uint32 {
	if isDir(st) {
		return st.Mode & (0o1777 | unix.S_ISGID)
	}
	return st.Mode & 0o1777
}

// copyXattrs copies the extended attributes that everybody may set. A filesystem
// without any is fine.
func copyXattrs(from, to *os.File) error {
	names := make([]byte, maxXattrs)
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ERANGE) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes: %w", err)
	}
	value := make([]byte, maxXattrs)
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") || !utf8.ValidString(name) {
			continue
		}
		n, err := unix.Fgetxattr(int(from.Fd()), name, value)
		if err != nil {
			continue // gone since it was listed
		}
		if err := unix.Fsetxattr(int(to.Fd()), name, value[:n], 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("set attribute: %w", err)
		}
	}
	return nil
}
