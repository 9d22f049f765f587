//go:build linux

package fsop

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// write receives a file. A regular one is replaced whole at the end, or not at
// all; anything else (a device, a FIFO) is written in place.
func (fo *Files) write(p *session.Call, name string, req *wire.Request) error {
	u, err := fo.users.Lookup(req.User)
	if err != nil {
		return err
	}
	if req.Mode&^0o7777 != 0 {
		return api.Invalid("mode", "mode %#o has more than permission bits", req.Mode)
	}
	target, st, err := pathwalk.ResolveLinks(name)
	switch {
	case errors.Is(err, unix.ENOENT) && target != "":
	case err != nil && !(req.Parents && errors.Is(err, unix.ENOENT)):
		return pathwalk.FileError("write", name, err)
	}
	if st != nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return pathwalk.FileError("write", name, unix.EISDIR)
	}
	if target == "" {
		target = name
	}
	if st != nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		if req.Beside {
			err = p.JSON(wire.KindReply, wire.FileReply{})
		}
		if err == nil {
			err = writeInPlace(target, p.Data())
		}
	} else {
		err = fo.replace(target, u, req, st, p)
	}
	if errors.Is(err, session.ErrGivenUp) {
		return err
	}
	if err != nil {
		return pathwalk.FileError("write", name, err)
	}
	info, err := pathwalk.Lstat(target)
	if err != nil {
		return pathwalk.FileError("describe", name, err)
	}
	return p.JSON(wire.KindReply, wire.FileReply{Info: info})
}

func writeInPlace(name string, r io.Reader) error {
	f, err := pathwalk.Open(name, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := copyTo(f, r); err != nil {
		return err
	}
	return f.Close()
}

// copyTo keeps errors of r apart from those of f, which are the file system's.
func copyTo(f *os.File, r io.Reader) error {
	buf := make([]byte, wire.MaxData)
	for {
		n, rerr := r.Read(buf)
		if n > 0 {
			if _, err := f.Write(buf[:n]); err != nil {
				return err
			}
		}
		if rerr == io.EOF { //nolint:errorlint // one that is wrapped is the end of the connection, not of the content
			return nil
		}
		if rerr != nil {
			return rerr
		}
	}
}

// copyBeside names f, at temp, to the host, which can write to it, and appends the data that comes.
func copyBeside(f *os.File, temp string, p *session.Call) error {
	info, err := pathwalk.Lstat(temp)
	if err == nil {
		err = p.JSON(wire.KindReply, wire.FileReply{Info: info, Path: api.Bytes(temp)})
	}
	if err != nil {
		return err
	}
	return copyTo(f, &atEnd{p.Data(), f})
}

// atEnd reads data that belongs after what f has when the first of it comes.
type atEnd struct {
	io.Reader
	f *os.File
}

func (a *atEnd) Read(b []byte) (int, error) {
	n, err := a.Reader.Read(b)
	if n > 0 && a.f != nil {
		if _, serr := a.f.Seek(0, io.SeekEnd); serr != nil {
			return 0, serr
		}
		a.f = nil
	}
	return n, err
}

// replace writes a new file beside name and moves it there.
func (fo *Files) replace(name string, u identity.User, req *wire.Request, old *unix.Stat_t, p *session.Call) error {
	mode := req.Mode
	if mode == 0 {
		mode = 0o644
		if old != nil {
			mode = uint32(old.Mode) & 0o7777
		}
	}
	dir, base := path.Split(name)
	var random [8]byte
	rand.Read(random[:])
	// Short enough for every file system, however long the name is.
	temp := dir + ".cloche-" + hex.EncodeToString(random[:])
	if len(base) > unix.NAME_MAX {
		return unix.ENAMETOOLONG
	}
	var f *os.File
	err := fo.id.As(u, func() (err error) {
		if req.Parents && dir != "/" {
			if err := pathwalk.MkdirAll(strings.TrimRight(dir, "/"), 0o755); err != nil {
				return err
			}
		}
		f, err = pathwalk.Open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	if req.Beside {
		err = copyBeside(f, temp, p)
	} else {
		err = copyTo(f, p.Data())
	}
	if err == nil {
		err = pathwalk.SetModeOf(f, mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Rename(temp, name)
	}
	if err != nil {
		_ = unix.Unlink(temp)
	}
	return err
}
