//go:build linux

package fsop

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// write receives a file: whole or not at all, but where its user may change the file and
// not its directory. Then it is written where it is, as by any program of that user's.
func (pl *scope) write(p *session.Call, name string, req *wire.Request) error {
	if req.Mode&^0o7777 != 0 {
		return api.Invalid("mode", "mode %#o has more than permission bits", req.Mode)
	}
	w := &scopedFile{scope: pl, mode: req.Mode}
	err := w.begin(name, req.Parents)
	if err == nil {
		err = w.receive(p.Data())
	}
	w.close()
	if errors.Is(err, session.ErrGivenUp) {
		return err
	}
	if err != nil {
		return pathwalk.FileError("write", name, err)
	}
	return p.JSON(wire.KindReply, wire.FileReply{Info: w.info})
}

// scopedFile is a file that is being written.
type scopedFile struct {
	*scope
	location *pathwalk.Location
	mode     uint32
	// here is the file itself, if it is written in place, and new the file that replaces it,
	// which has the name temp beside it. One of them is nil.
	here, new *os.File
	temp      string
	info      api.FileInfo
}

// begin finds the file and asks the kernel whether it may be written.
func (w *scopedFile) begin(name string, parents bool) error {
	if strings.HasSuffix(name, "/") {
		return unix.EISDIR
	}
	err := w.rights(func() (err error) {
		if w.location, err = w.change(name, true); err != nil {
			return err
		}
		if !w.location.Exists {
			return nil
		}
		w.here, err = w.location.Open(unix.O_WRONLY, 0)
		if errors.Is(err, unix.ETXTBSY) {
			return nil // it may be written, and runs
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case len(w.location.Name) > unix.NAME_MAX:
		return unix.ENAMETOOLONG
	case w.location.Exists && w.location.Stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil
	case w.user != nil && w.location.Exists && w.mode != 0 && w.location.Stat.Uid != w.user.UID:
		return unix.EPERM // which bits it has is its owner's to say
	}
	var random [8]byte
	rand.Read(random[:])
	w.temp = ".cloche-" + hex.EncodeToString(random[:])
	err = w.makes(func() (err error) {
		if len(w.location.Missing) > 0 && !parents {
			return unix.ENOENT
		}
		if err := w.location.Parents(); err != nil {
			return err
		}
		w.new, err = pathwalk.OpenAt(w.location.Dir(), w.temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if w.here != nil && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
		return w.empty()
	}
	return err
}

// empty makes the file itself ready for new content.
func (w *scopedFile) empty() error {
	if err := pathwalk.DropSetID(w.here); err != nil {
		return err
	}
	return w.here.Truncate(0)
}

// receive writes what r has.
func (w *scopedFile) receive(r io.Reader) error {
	if w.new == nil {
		if err := copyTo(w.here, r); err != nil {
			return err
		}
		return w.done()
	}
	if err := copyTo(w.new, r); err != nil {
		return err
	}
	if err := w.likeOld(); err != nil {
		return err
	}
	err := w.rights(func() error { return unix.Renameat(w.location.Dir(), w.temp, w.location.Dir(), w.location.Name) })
	if err == nil {
		w.temp = ""
		if w.user != nil {
			err = w.chown() // last: a user cannot move a file of another owner everywhere
		}
	} else if w.here != nil && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
		err = w.fill()
	}
	if err != nil {
		return err
	}
	return w.done()
}

// fill puts the content into the file itself: it may be written, and not replaced.
func (w *scopedFile) fill() error {
	if _, err := w.new.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := w.empty(); err != nil {
		return err
	}
	_, err := io.Copy(w.here, w.new)
	return err
}

// likeOld gives the new file the permissions of the one that it replaces, and where no user
// has written it the owner too.
// A set-id file loses its bits when another user has written it.
func (w *scopedFile) likeOld() error {
	mode, old := w.mode, &w.location.Stat
	if mode == 0 {
		mode = 0o644
		if w.location.Exists {
			mode = old.Mode & 0o7777
			if w.user != nil {
				mode &^= unix.S_ISUID | unix.S_ISGID
			}
		}
	}
	if w.user != nil {
		return w.rights(func() error { return pathwalk.SetModeOf(w.new, mode) })
	}
	// In this order: a change of the owner takes bits away.
	if err := w.chown(); err != nil {
		return err
	}
	return pathwalk.SetModeOf(w.new, mode)
}

// chown gives the new file the owner of the one that it replaces, where the agent may.
func (w *scopedFile) chown() error {
	var st unix.Stat_t
	old := &w.location.Stat
	if err := pathwalk.Fstat(w.new, &st); err != nil || !w.location.Exists || st.Uid == old.Uid && st.Gid == old.Gid {
		return err
	}
	if err := w.new.Chown(int(old.Uid), int(old.Gid)); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// done describes what was written.
func (w *scopedFile) done() error {
	for _, f := range []*os.File{w.new, w.here} {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return w.rights(func() error {
		var st unix.Stat_t
		if err := unix.Fstatat(w.location.Dir(), w.location.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		var err error
		w.info, err = pathwalk.DescribeAt(w.location.Dir(), w.location.Name, &st)
		return err
	})
}

// close leaves nothing behind but what was finished.
func (w *scopedFile) close() {
	for _, f := range []*os.File{w.new, w.here} {
		if f != nil {
			f.Close()
		}
	}
	if w.location == nil {
		return
	}
	if w.new != nil && w.temp != "" {
		_ = w.rights(func() error { return unix.Unlinkat(w.location.Dir(), w.temp, 0) })
	}
	w.location.Close()
}
