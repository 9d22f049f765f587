//go:build linux

package identity

import (
	"errors"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// tmpHome begins the directory that a user has for a home on a root that is read-only; the
// uid follows.
const tmpHome = "/tmp/home-"

func (u User) login() string { return u.name }

// writableHome is the user's own home, or where that is on a root that is read-only one
// below /tmp: pip, npm and uv keep caches there, and give up without a place to write.
func (u User) writableHome() string {
	if u.Home == "" || !onReadOnly(u.Home) {
		return u.Home
	}
	dir := tmpHome + strconv.FormatUint(uint64(u.IDs().UID), 10)
	if err := u.own(dir); err != nil {
		return u.Home
	}
	return dir
}

// onReadOnly says whether a directory is, or would be, on a filesystem that cannot be
// written to.
func onReadOnly(dir string) bool {
	for dir = path.Clean("/" + dir); ; dir = path.Dir(dir) {
		// Not access(2), which gVisor answers by the directory's mode alone.
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return err == nil && st.Flags&unix.ST_RDONLY != 0
		}
	}
}

// own makes a directory the user's. One that is there must be so already: others can
// write beside it, and what they put there is not followed.
func (u User) own(dir string) error {
	made := unix.Mkdir(dir, 0o700)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return made
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid == u.UID {
		return nil
	}
	if made != nil {
		return unix.EEXIST
	}
	return unix.Fchown(fd, int(u.UID), int(u.GID))
}
