package files

import (
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/filewatch"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// minHostRead is from how many bytes on a file is read on the host: less is not worth another open.
const minHostRead = 4 << 20

// hostReader returns what reads a part of a large file from the directory of this machine that the file
// lies in, past the sandbox, or nil if the agent has to read it. The agent has opened the file, which
// info describes: one that is another file by now is not read.
func hostReader(s Sandbox, at api.FilePlace, info api.FileInfo, offset, length int64) io.ReadCloser {
	left := info.Size - offset
	if length >= 0 {
		left = min(left, length)
	}
	if left < minHostRead || info.Type != api.TypeFile {
		return nil
	}
	dir, rel, ok := hostDir(s, at)
	if !ok || rel == "" {
		return nil
	}
	f, err := openFile(dir, rel, unix.O_RDONLY)
	if err != nil {
		return nil
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() != info.Size || !fi.ModTime().Equal(info.ModTime) {
		f.Close()
		return nil
	}
	return &hostFile{io.NewSectionReader(f, offset, left), f}
}

// hostFile is a part of a file.
type hostFile struct {
	io.Reader
	io.Closer
}

// openFile opens a file without following links, and without waiting for what is no file.
func openFile(d workspace.Attached, rel string, flag int) (*os.File, error) {
	above := path.Dir(rel)
	if above == "." {
		above = ""
	}
	dir, err := openBelow(d, above)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := filewatch.Open(int(dir.Fd()), path.Base(rel), func(at int, name string) (int, error) {
		return unix.Openat(at, name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), rel), nil
}
