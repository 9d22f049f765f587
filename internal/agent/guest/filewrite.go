//go:build linux

package guest

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
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// write receives a file. A regular one is replaced whole at the end, or not at
// all; anything else (a device, a FIFO) is written in place.
func (a *Agent) write(p *peer, name string, req *wire.Request) error {
	u, err := a.users.Lookup(req.User)
	if err != nil {
		return err
	}
	if req.Mode&^0o7777 != 0 {
		return api.Invalid("mode", "mode %#o has more than permission bits", req.Mode)
	}
	target, st, err := resolve(name)
	switch {
	case errors.Is(err, unix.ENOENT) && target != "":
	case err != nil && !(req.Parents && errors.Is(err, unix.ENOENT)):
		return fileError("write", name, err)
	}
	if st != nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fileError("write", name, unix.EISDIR)
	}
	if target == "" {
		target = name
	}
	if st != nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = writeInPlace(target, &dataFrames{p: p})
	} else {
		err = a.replace(target, u, req, st, &dataFrames{p: p})
	}
	if errors.Is(err, errGivenUp) {
		return err
	}
	if err != nil {
		return fileError("write", name, err)
	}
	info, err := lstat(target)
	if err != nil {
		return fileError("describe", name, err)
	}
	return p.JSON(wire.KindReply, wire.FileReply{Info: info})
}

// resolve follows links at the end of name, so that the file a link points to is
// replaced and not the link. A link whose end is missing resolves to that end.
func resolve(name string) (string, *unix.Stat_t, error) {
	if strings.HasSuffix(name, "/") {
		return "", nil, unix.EISDIR
	}
	for range 40 {
		var st unix.Stat_t
		err := unix.Lstat(name, &st)
		if errors.Is(err, unix.ENOENT) {
			return name, nil, err
		}
		if err != nil {
			return "", nil, err
		}
		// Nothing of /proc is written, and no link of it is followed.
		var fs unix.Statfs_t
		if err := unix.Statfs(path.Dir(name), &fs); err == nil && fs.Type == unix.PROC_SUPER_MAGIC {
			return "", nil, unix.EACCES
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return name, &st, nil
		}
		to, err := os.Readlink(name)
		if err != nil {
			return "", nil, err
		}
		if !strings.HasPrefix(to, "/") {
			// Not cleaned: .. after a link is the kernel's to resolve.
			to = name[:strings.LastIndexByte(name, '/')+1] + to
		}
		name = to
	}
	return "", nil, unix.ELOOP
}

func writeInPlace(name string, r io.Reader) error {
	f, err := open(name, unix.O_WRONLY, 0)
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

// replace writes a new file beside name and moves it there.
func (a *Agent) replace(name string, u identity.User, req *wire.Request, old *unix.Stat_t, r io.Reader) error {
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
	err := a.id.As(u, func() (err error) {
		if req.Parents && dir != "/" {
			if err := mkdirAll(strings.TrimRight(dir, "/"), 0o755); err != nil {
				return err
			}
		}
		f, err = open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	err = copyTo(f, r)
	if err == nil {
		err = setModeOf(f, mode)
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
