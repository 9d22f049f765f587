//go:build linux

package fsop

import (
	"errors"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/filewatch"
)

// MaxWatches bounds the directories that are watched at once, each with its own inotify instance.
const MaxWatches = 64

// tempPrefix begins the names of files that the agent writes and then moves to their real name.
const tempPrefix = ".cloche-"

// watch reports the changes in a directory, which it closes, until it is removed or the caller leaves.
// Rights runs each open of a directory and each look at a file.
func (fo *Files) watch(p *session.Call, name string, dir *os.File, rights func(func() error) error, req *wire.Request) error {
	defer dir.Close()
	if fo.watches.Add(1) > MaxWatches {
		fo.watches.Add(-1)
		e := api.Errorf(api.CodeNoCapacity, "%d directories are watched in this sandbox, which is the most", MaxWatches).WithHint("end another watch")
		e.Retryable = true
		return e
	}
	defer fo.watches.Add(-1)
	o := filewatch.Options{
		Recursive: req.Recursive,
		Hide:      func(base string) bool { return strings.HasPrefix(base, tempPrefix) },
		Open: func(at int, name string) (fd int, err error) {
			err = rights(func() error {
				d, err := pathwalk.OpenAt(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
				if err != nil {
					return err
				}
				defer d.Close()
				fd, err = unix.FcntlInt(d.Fd(), unix.F_DUPFD_CLOEXEC, 0)
				return err
			})
			return fd, err
		},
	}
	err := filewatch.Run(p.Attend(nil), dir, o, func(c filewatch.Change) error {
		out := api.FileChange{Kind: c.Kind, Name: c.Name}
		if !utf8.ValidString(c.Name) {
			out.Name, out.NameBytes = pathwalk.Text(c.Name), []byte(c.Name)
		}
		if req.Entries && c.Name != "" {
			out.Info = entryAt(dir, c.Name, o.Open, rights)
		}
		return p.JSON(wire.KindReply, out)
	})
	switch {
	case err == nil:
		return p.End()
	case errors.Is(err, filewatch.ErrLimit):
		return api.Errorf(api.CodeNoCapacity, "watch %.500q: %w", name, err).WithHint("watch a smaller directory, or without its subdirectories")
	}
	return pathwalk.FileError("watch", name, err)
}

// watchError is the error of a path that cannot be watched.
func watchError(name string, err error) error {
	if errors.Is(err, unix.ENOTDIR) {
		e := api.Invalid("path", "watch %.500q: it is not a directory", name).WithHint("watch the directory that holds the file")
		e.Errno = "ENOTDIR"
		return e
	}
	return pathwalk.FileError("watch", name, err)
}

// entryAt describes a file below a watched directory, or returns nil when it is gone.
func entryAt(dir *os.File, name string, open func(int, string) (int, error), rights func(func() error) error) *api.FileInfo {
	parent := path.Dir(name)
	if parent == "." {
		parent = ""
	}
	at, err := filewatch.Open(int(dir.Fd()), parent, open)
	if err != nil {
		return nil
	}
	defer unix.Close(at)
	var info api.FileInfo
	err = rights(func() error {
		var st unix.Stat_t
		if err := unix.Fstatat(at, path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		info, err = pathwalk.DescribeAt(at, path.Base(name), &st)
		return err
	})
	if err != nil {
		return nil
	}
	return &identity.Named([]api.FileInfo{info})[0]
}
