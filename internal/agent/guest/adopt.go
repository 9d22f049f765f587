//go:build linux

package guest

import (
	"golang.org/x/sys/unix"
)

const (
	// maxAdopted bounds the files that one call gives to the sandbox's id.
	maxAdopted = 16 << 10
	// maxAdoptedBytes bounds their content, which an overlay copies.
	maxAdoptedBytes = 64 << 20
	// maxAdoptedDepth bounds the directories below each other.
	maxAdoptedDepth = 64
)

// adopt gives a directory of a user, with all of it that belongs to the user, to the one id of
// the sandbox, which the user's programs have. On a kernel with ids of its own, an image and
// root inside give files to other ids, and those programs have no right to them. It does what
// it can; what is not done is refused to the programs by the kernel.
func (us *users) adopt(dir string, uid uint32) {
	if !us.adopts || dir == "" || uid == 0 {
		return
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Uid != uid {
		return
	}
	a := adoption{uid: uid, dev: st.Dev, left: maxAdopted, bytes: maxAdoptedBytes, buf: make([]byte, direntBytes)}
	a.tree(fd, maxAdoptedDepth)
}

// adoption is one call of adopt: whose files are given away, on which filesystem, and how much
// still may be.
type adoption struct {
	uid   uint32
	dev   uint64
	left  int
	bytes int64
	buf   []byte
}

// tree gives away what is in an open directory, and then the directory.
func (a *adoption) tree(dir, depth int) {
	for a.left > 0 {
		list, err := readDirents(dir, a.buf)
		if err != nil || len(list) == 0 {
			break
		}
		for _, e := range list {
			a.entry(dir, e.name, depth-1)
		}
	}
	a.give(dir)
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
	if unix.Fstat(fd, &st) != nil || st.Uid != a.uid {
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
	defer unix.Close(in)
	a.tree(in, depth)
}

// give gives an open file to the sandbox's id.
func (a *adoption) give(fd int) { _ = unix.Fchownat(fd, "", 0, 0, unix.AT_EMPTY_PATH) }
