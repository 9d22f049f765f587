//go:build linux

package identity

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxAdopted bounds the files that one call gives to the sandbox's id.
	maxAdopted = 16 << 10
	// maxAdoptedBytes bounds their content, which an overlay copies.
	maxAdoptedBytes = 64 << 20
	// maxAdoptedDepth bounds the directories below each other.
	maxAdoptedDepth = 64
	// adoptedNames is how many names of a directory are read at once.
	adoptedNames = 256
)

// Adopt gives a directory of a user, with all of it that belongs to the user, to the one id of
// the sandbox, which the user's programs have. On a kernel with ids of its own, an image and
// root inside give files to other ids, and those programs have no right to them. It is best effort:
// the kernel refuses the rest to the programs.
func (us *Users) Adopt(dir string, uid uint32) {
	if !us.Adopts || dir == "" || uid == 0 {
		return
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	home := os.NewFile(uintptr(fd), dir)
	defer home.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Uid != uid {
		return
	}
	a := adoption{UID: uid, dev: st.Dev, left: maxAdopted, bytes: maxAdoptedBytes}
	a.tree(home, maxAdoptedDepth)
}

// adoption is one call of adopt: whose files are given away, on which filesystem, and how much
// still may be.
type adoption struct {
	UID   uint32
	dev   uint64
	left  int
	bytes int64
}

// tree gives away what is in an open directory, and then the directory.
func (a *adoption) tree(dir *os.File, depth int) {
	for a.left > 0 {
		names, err := dir.Readdirnames(adoptedNames)
		for _, name := range names {
			a.entry(int(dir.Fd()), name, depth-1)
		}
		if err != nil {
			break
		}
	}
	a.give(int(dir.Fd()))
}

func (a *adoption) entry(dir int, name string, depth int) {
	if a.left--; a.left < 0 || depth == 0 {
		return
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Uid != a.UID {
		return
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if st.Size <= a.bytes {
			a.bytes -= st.Size
			a.give(fd)
		}
		return
	}
	// Only of directories an overlay tells its own device.
	if st.Dev != a.dev {
		return
	}
	in, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	sub := os.NewFile(uintptr(in), name)
	defer sub.Close()
	a.tree(sub, depth)
}

// give gives an open file to the sandbox's id.
func (a *adoption) give(fd int) { _ = unix.Fchownat(fd, "", 0, 0, unix.AT_EMPTY_PATH) }
