//go:build linux

package fsop

import (
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxPage bounds one page of a list.
const maxPage = 1000

// list describes one page of a directory.
func list(name, cursor string, limit int) (api.FileList, error) {
	d, err := pathwalk.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return api.FileList{}, pathwalk.FileError("list", name, err)
	}
	defer d.Close()
	return listOpen(d, name, cursor, limit)
}

// listOpen describes one page of an open directory. It holds one page of names, however
// large the directory is.
func listOpen(d *os.File, name, cursor string, limit int) (api.FileList, error) {
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return api.FileList{}, api.Invalid("cursor", "cursor %.80q is not one that a list has returned", cursor)
	}
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	var page []string
	more := false
	for {
		names, err := d.Readdirnames(512)
		for _, n := range names {
			if n <= string(after) {
				continue
			}
			i, _ := slices.BinarySearch(page, n)
			if i == limit {
				more = true
				continue
			}
			page = slices.Insert(page, i, n)
			if len(page) > limit {
				page, more = page[:limit], true
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return api.FileList{}, pathwalk.FileError("list", name, err)
		}
	}
	out := api.FileList{Files: make([]api.FileInfo, 0, len(page))}
	for _, n := range page {
		var st unix.Stat_t
		err := unix.Fstatat(int(d.Fd()), n, &st, unix.AT_SYMLINK_NOFOLLOW)
		var info api.FileInfo
		if err == nil {
			info, err = pathwalk.DescribeAt(int(d.Fd()), n, &st)
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			continue // removed meanwhile, or replaced
		}
		if err != nil {
			return api.FileList{}, pathwalk.FileError("describe", n, err)
		}
		out.Files = append(out.Files, info)
	}
	if more {
		out.Next = base64.RawURLEncoding.EncodeToString([]byte(page[len(page)-1]))
	}
	return out, nil
}

// read sends a file's bytes.
func read(p *session.Call, name string, offset, length int64) error {
	f, err := pathwalk.Open(name, unix.O_RDONLY, 0)
	if err != nil {
		return pathwalk.FileError("read", name, err)
	}
	return sendFile(p, name, f, offset, length)
}

// sendFile sends the bytes of an open file, and closes it.
func sendFile(p *session.Call, name string, f *os.File, offset, length int64) error {
	defer f.Close()
	if offset < 0 {
		return api.Invalid("offset", "offset %d is negative", offset)
	}
	var st unix.Stat_t
	if err := pathwalk.Fstat(f, &st); err != nil {
		return pathwalk.FileError("read", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return pathwalk.FileError("read", name, unix.EISDIR)
	default:
		return api.Invalid("path", "read %.500q: it is neither a file nor a link to one", name)
	}
	if err := p.JSON(wire.KindReply, wire.FileReply{Info: pathwalk.Describe(path.Base(name), &st)}); err != nil {
		return err
	}
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return pathwalk.FileError("read", name, err)
		}
	}
	if st.Size > wire.MaxData {
		// A caller that leaves would otherwise hold the file, and its space, until the stream is given up.
		p.Attend(nil)
	}
	var r io.Reader = f
	if length >= 0 {
		r = io.LimitReader(f, length)
	}
	buf := make([]byte, wire.MaxData)
	for {
		n, err := r.Read(buf)
		if werr := p.Bytes(wire.KindData, buf[:n]); werr != nil {
			return werr
		}
		if err == io.EOF {
			return p.End()
		}
		if err != nil {
			return pathwalk.FileError("read", name, err)
		}
	}
}

// makeDir makes a directory and its missing parents.
func (fo *Files) makeDir(name string, mode uint32, owner string) error {
	u, err := fo.users.Lookup(owner)
	if err != nil {
		return err
	}
	if mode == 0 {
		mode = 0o755
	}
	if mode&^0o7777 != 0 {
		return api.Invalid("mode", "mode %#o has more than permission bits", mode)
	}
	if err := fo.id.As(u, func() error { return pathwalk.MkdirAll(name, mode) }); err != nil {
		return pathwalk.FileError("make directory", name, err)
	}
	return nil
}

func move(from, to string) error {
	if err := pathwalk.CheckPath("to", to); err != nil {
		return err
	}
	if err := unix.Rename(from, to); err != nil {
		if err == unix.EXDEV {
			return api.Invalid("to", "move %.500q: %.500q is on another file system of the sandbox", from, to).
				WithHint("copy it there and remove it here").WithCause(err)
		}
		return pathwalk.FileError("move", from, err)
	}
	return nil
}

func remove(name string, recursive bool) error {
	if path.Clean(name) == "/" {
		return api.Invalid("path", "remove %.500q: the root cannot be removed", name)
	}
	if !recursive {
		if err := os.Remove(name); err != nil {
			return pathwalk.FileError("remove", name, err)
		}
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return pathwalk.FileError("remove", name, err)
	}
	if err := os.RemoveAll(name); err != nil {
		return pathwalk.FileError("remove", name, err)
	}
	return nil
}
