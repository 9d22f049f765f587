package localdir

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Limits of one archive, because a sandbox can send one without an end.
const (
	maxEntries = 1 << 20
	maxPath    = 4096
	maxNames   = 64 << 20
	maxSkips   = 1000
)

// Unpacker unpacks a tar archive that came from a sandbox into a local directory.
// It writes nothing outside of the directory: every path goes through an os.Root,
// links that lead out are omitted, and set-id bits, owners and devices are ignored.
// It is not safe for concurrent use.
type Unpacker struct {
	// Root is the directory. It stays open.
	Root *os.Root
	// MaxBytes bounds the content of all files together.
	MaxBytes int64
	// Report counts what was written. It is valid after an error too.
	Report api.TarReport
	// dirs get their modes and times last: a read-only one could not be filled.
	dirs []dirMeta
	// names counts the bytes of all paths, which bounds what dirs can hold.
	names int
	// parent is the directory of the last entry. Entries of one directory follow
	// each other, so most of them need no second check of it.
	parent string
}

type dirMeta struct {
	name string
	mode fs.FileMode
	time time.Time
}

// Unpack reads the archive to its end.
func (u *Unpacker) Unpack(r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err != nil {
			return fmt.Errorf("read tar from the sandbox: %w", err)
		}
		u.names += len(h.Name)
		if u.Report.Entries++; u.Report.Entries > maxEntries || u.names > maxNames {
			return api.Errorf(api.CodeTooLarge, "the archive has more than %d entries or %d MiB of names", maxEntries, maxNames>>20).WithHint("copy a smaller directory, or write the archive to a file with -")
		}
		if err := u.entry(h, tr); err != nil {
			return err
		}
	}
}

func (u *Unpacker) entry(h *tar.Header, content io.Reader) error {
	name, ok := LocalName(h.Name)
	if !ok {
		u.skip(h.Name, "its path leaves the archive")
		return nil
	}
	if ok, err := u.makeParents(filepath.Dir(name)); err != nil {
		return u.failed(name, err)
	} else if !ok {
		u.skip(h.Name, "its path goes through a link")
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, h)
	case tar.TypeReg:
		if name == "." {
			u.skip(h.Name, "it has no name")
			return nil
		}
		return u.file(name, h, content)
	case tar.TypeSymlink:
		return u.symlink(name, h)
	case tar.TypeLink:
		return u.hardlink(name, h)
	}
	u.skip(h.Name, "it is neither file, directory nor link")
	return nil
}

// LocalName converts the path of an archive to a local one. It returns false if the
// path leads out of the directory. The path need not be UTF-8 except on Windows.
func LocalName(name string) (string, bool) {
	if name == "" || len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", false
	}
	name = path.Clean(name)
	if runtime.GOOS != "windows" {
		return name, filepath.IsLocal(name)
	}
	local, err := filepath.Localize(name)
	return local, err == nil
}

func (u *Unpacker) dir(name string, h *tar.Header) error {
	if name == "." {
		return nil // the destination keeps its own mode
	}
	if info, err := u.Root.Lstat(name); err == nil && !info.IsDir() {
		if err := u.Root.Remove(name); err != nil {
			return u.failed(name, err)
		}
	}
	if err := u.Root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return u.failed(name, err)
	}
	u.dirs = append(u.dirs, dirMeta{name, h.FileInfo().Mode().Perm(), h.ModTime})
	return nil
}

func (u *Unpacker) file(name string, h *tar.Header, content io.Reader) error {
	if h.Size < 0 || h.Size > u.MaxBytes-u.Report.Bytes {
		return api.Errorf(api.CodeTooLarge, "%s exceeds the limit of %d bytes for the copy", terminal.Printable(h.Name), u.MaxBytes).WithHint("allow more with --max-size")
	}
	if err := u.clear(name); err != nil {
		return u.failed(name, err)
	}
	f, err := u.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return u.failed(name, err)
	}
	n, err := io.Copy(f, io.LimitReader(content, h.Size))
	u.Report.Bytes += n
	if err == nil && n < h.Size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = f.Chmod(h.FileInfo().Mode().Perm())
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return u.failed(name, err)
	}
	u.times(name, h.ModTime)
	return nil
}

// symlink makes a link only when it stays inside: later programs would follow
// one that leaves to a place that the sandbox chose. Since every parent is a
// real directory and ".." stands only at the beginning of a target, counting
// is enough to know where a link leads, whatever other links there are.
func (u *Unpacker) symlink(name string, h *tar.Header) error {
	up, inside := 0, h.Linkname != "" && len(h.Linkname) <= maxPath && !path.IsAbs(h.Linkname) && !filepath.IsAbs(h.Linkname)
	down := false
	for part := range strings.SplitSeq(h.Linkname, "/") {
		switch part {
		case "", ".":
		case "..":
			inside = inside && !down
			up++
		default:
			down = true
		}
	}
	if !inside || up > strings.Count(filepath.ToSlash(name), "/") {
		u.skip(h.Name, "it is a link to "+terminal.Printable(terminal.Clip(h.Linkname))+", which may lead out of the copy")
		return nil
	}
	if err := u.clear(name); err != nil {
		return u.failed(name, err)
	}
	if err := u.Root.Symlink(filepath.FromSlash(h.Linkname), name); err != nil {
		u.skip(h.Name, "the link cannot be made here")
	}
	return nil
}

func (u *Unpacker) hardlink(name string, h *tar.Header) error {
	old, ok := LocalName(h.Linkname)
	if !ok || old == "." || old == name {
		u.skip(h.Name, "it is a link to a file outside of the copy")
		return nil
	}
	info, err := u.Root.Lstat(old)
	if err != nil || !info.Mode().IsRegular() {
		u.skip(h.Name, "it is a link to a file that is not in the copy")
		return nil
	}
	if err := u.clear(name); err != nil {
		return u.failed(name, err)
	}
	if err := u.Root.Link(old, name); err != nil {
		return u.failed(name, err)
	}
	return nil
}

// makeParents makes a directory and all above it; false when one of them is
// there but is no directory, such as a link that was unpacked before.
func (u *Unpacker) makeParents(dir string) (bool, error) {
	if dir == "." || dir == u.parent {
		return true, nil
	}
	if ok, err := u.makeParents(filepath.Dir(dir)); err != nil || !ok {
		return ok, err
	}
	info, err := u.Root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = u.Root.Mkdir(dir, 0o755)
	} else if err == nil && !info.IsDir() {
		return false, nil
	}
	if err == nil {
		u.parent = dir
	}
	return err == nil, err
}

// clear prepares the path of an entry: it removes an existing file that is not a directory, so that
// nothing is ever written through a link.
func (u *Unpacker) clear(name string) error {
	info, err := u.Root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("a directory of that name is there: %w", fs.ErrExist)
	}
	return u.Root.Remove(name)
}

// finish sets modes and times of directories, deepest first as they were met.
func (u *Unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		u.times(d.name, d.time)
		if err := u.Root.Chmod(d.name, d.mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return u.failed(d.name, err)
		}
	}
	return nil
}

// times sets the time of a file. A filesystem that cannot store it is not an error.
func (u *Unpacker) times(name string, t time.Time) {
	if !t.IsZero() {
		_ = u.Root.Chtimes(name, t, t)
	}
}

func (u *Unpacker) failed(name string, err error) error {
	return api.Errorf(api.CodeInvalid, "write %s: %w", terminal.Printable(filepath.Join(u.Root.Name(), name)), err)
}

func (u *Unpacker) skip(name, reason string) {
	if len(u.Report.Skipped) < maxSkips {
		u.Report.Skipped = append(u.Report.Skipped, api.TarSkip{Path: terminal.Clip(name), Reason: reason})
	}
}
