//go:build linux

package guest

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// unpacker unpacks one tar below a directory. Every name goes through an
// os.Root, which no link leads out of.
type unpacker struct {
	root   *os.Root
	id     identity
	owner  user
	report cloche.TarReport
	// dirs get their modes and times last, when nothing is written in them any
	// more.
	dirs []dirEnd
	buf  []byte
}

type dirEnd struct {
	name string
	mode fs.FileMode
	time time.Time
}

// maxDirEnds bounds the directories whose times are remembered.
const maxDirEnds = 1 << 18

// tarIn unpacks what the host sends below the directory name.
func (a *Agent) tarIn(p *peer, name, owner string) error {
	u, err := a.users.lookup(owner)
	if err != nil {
		return err
	}
	if err := a.makeDir(name, 0, owner); err != nil {
		return err
	}
	d, err := open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fileError("unpack into", name, err)
	}
	// Through the descriptor: what was checked is what is unpacked in.
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(d.Fd())))
	d.Close()
	if err != nil {
		return fileError("unpack into", name, err)
	}
	defer root.Close()
	x := &unpacker{root: root, id: a.id, owner: u, buf: make([]byte, 64<<10)}
	in := &dataFrames{p: p}
	if err := x.all(tar.NewReader(in)); err != nil {
		return err
	}
	// What follows the end of the archive is padding; the sender ends it.
	if _, err := io.CopyBuffer(io.Discard, in, x.buf); err != nil {
		return err
	}
	return p.JSON(wire.KindReply, x.report)
}

func (x *unpacker) all(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return x.finish()
		}
		if err != nil {
			return streamError(err)
		}
		if x.report.Entries >= maxTarEntries {
			return cloche.Errorf(cloche.CodeTooLarge, "the tar has more than %d entries", maxTarEntries)
		}
		if err := x.entry(h, tr); err != nil {
			return err
		}
	}
}

// streamError tells a bad archive from a transfer that ended.
func streamError(err error) error {
	if errors.Is(err, errGivenUp) {
		return err
	}
	if _, ok := errors.AsType[*cloche.Error](err); ok {
		return err
	}
	return cloche.Invalid("body", "the tar cannot be read: %w", err)
}

// relative checks a name of the archive and makes it one for the root.
func relative(name string) (string, error) {
	if strings.HasPrefix(name, "/") || strings.IndexByte(name, 0) >= 0 {
		return "", errOutside(name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errOutside(name)
		}
	}
	return path.Clean(name), nil
}

func errOutside(name string) *cloche.Error {
	return cloche.Invalid("body", "the tar names %.200q, which is outside of the directory to unpack in", name).
		WithHint("names in it are relative and without ..")
}

func (x *unpacker) entry(h *tar.Header, r io.Reader) error {
	name, err := relative(h.Name)
	if err != nil {
		return err
	}
	if name == "." && h.Typeflag != tar.TypeDir {
		return errOutside(h.Name)
	}
	mode := fs.FileMode(h.Mode & 0o777)
	for bit, m := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if h.Mode&bit != 0 {
			mode |= m
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = x.dir(name, mode, h.ModTime)
	case tar.TypeReg, tar.TypeRegA: //nolint:staticcheck // old archives have it
		err = x.file(name, mode, h, r)
	case tar.TypeSymlink:
		err = x.link(name, func() error { return x.root.Symlink(h.Linkname, name) })
	case tar.TypeLink:
		target, terr := relative(h.Linkname)
		if terr != nil {
			return terr
		}
		err = x.link(name, func() error { return x.root.Link(target, name) })
	case tar.TypeXGlobalHeader:
		return nil
	default:
		if len(x.report.Skipped) < maxSkipped {
			x.report.Skipped = append(x.report.Skipped, cloche.TarSkip{Path: strings.ToValidUTF8(h.Name, "\uFFFD"), Reason: "it is a FIFO, device or of a kind that is not known"})
		}
		return nil
	}
	if err != nil {
		if errors.Is(err, errGivenUp) {
			return err
		}
		return unpackError(h.Name, err)
	}
	x.report.Entries++
	return nil
}

// unpackError classifies an error of one entry. What os.Root refuses has no
// errno: the entry leads outside.
func unpackError(name string, err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	if errors.As(err, &pe) || errors.As(err, &le) {
		var e unix.Errno
		if !errors.As(err, &e) {
			return errOutside(name).WithCause(err)
		}
	}
	return fileError("unpack", name, err)
}

// make runs fn as the owner, and once more after making the missing parents.
func (x *unpacker) make(name string, fn func() error) error {
	return x.id.as(x.owner, func() error {
		err := fn()
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := x.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		return fn()
	})
}

func (x *unpacker) dir(name string, mode fs.FileMode, at time.Time) error {
	if name != "." {
		err := x.make(name, func() error { return x.root.Mkdir(name, 0o700) })
		if errors.Is(err, fs.ErrExist) {
			st, serr := x.root.Stat(name)
			if serr != nil {
				return serr
			}
			if !st.IsDir() {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	if len(x.dirs) < maxDirEnds {
		x.dirs = append(x.dirs, dirEnd{name, mode, at})
		return nil
	}
	return x.root.Chmod(name, mode)
}

// clear removes what stands in the place of an entry that is no directory.
func (x *unpacker) clear(name string) error {
	err := x.root.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (x *unpacker) file(name string, mode fs.FileMode, h *tar.Header, r io.Reader) error {
	if err := x.clear(name); err != nil {
		return err
	}
	var f *os.File
	err := x.make(name, func() (err error) {
		f, err = x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := x.copy(f, r)
	x.report.Bytes += n
	if err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if h.ModTime.IsZero() {
		return nil
	}
	return x.root.Chtimes(name, h.ModTime, h.ModTime)
}

func (x *unpacker) copy(f *os.File, r io.Reader) (int64, error) {
	var total int64
	for {
		n, rerr := r.Read(x.buf)
		if n > 0 {
			if _, err := f.Write(x.buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, streamError(fmt.Errorf("read entry: %w", rerr))
		}
	}
}

func (x *unpacker) link(name string, fn func() error) error {
	if err := x.clear(name); err != nil {
		return err
	}
	return x.make(name, fn)
}

// finish sets what was put off: the deepest directories first, as a mode can
// take away the way in.
func (x *unpacker) finish() error {
	for i := len(x.dirs) - 1; i >= 0; i-- {
		d := x.dirs[i]
		err := x.root.Chmod(d.name, d.mode)
		if err == nil && !d.time.IsZero() {
			err = x.root.Chtimes(d.name, d.time, d.time)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unpackError(d.name, err)
		}
	}
	return nil
}
