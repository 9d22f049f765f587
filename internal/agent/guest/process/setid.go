//go:build linux

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/confine"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
)

// answerModes gives files set-id bits for programs of root, in the sandbox's own root
// only: in a mount of the host's the host would honour them. It returns when there can be
// no more questions.
func answerModes(q *confine.Questions) {
	for {
		c, err := q.Next()
		if err != nil {
			return
		}
		if q.Answer(c, changeMode(q, c)) != nil {
			return
		}
	}
}

// rootCaps are those by which root may change the mode of any file.
const rootCaps = 1<<unix.CAP_FOWNER | 1<<unix.CAP_DAC_OVERRIDE

// changeMode does what a program has asked for, or says with which error it fails. Every
// doubt is EPERM. The file is opened before it is judged, and what was opened is changed:
// what a program changes meanwhile leads to another file, which is judged as that.
func changeMode(q *confine.Questions, c confine.ModeChange) error {
	proc := "/proc/" + strconv.Itoa(c.Thread)
	if err := isRoot(proc); err != nil {
		return err
	}
	fd, err := openNamed(proc, c)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !q.Waits(c) {
		return unix.EPERM // the number may be another's by now
	}
	if !pathwalk.InRoot(fd) {
		return unix.EPERM
	}
	return pathwalk.SetMode(fd, c.Mode)
}

// isRoot fails unless a thread is one of root's, with its capabilities, in the agent's
// own root.
func isRoot(proc string) error {
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return err
	}
	field := func(name string) []string {
		_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		return strings.Fields(string(line))
	}
	uids, caps := field("Uid"), field("CapEff")
	if len(uids) != 4 || uids[3] != "0" || len(caps) != 1 {
		return unix.EPERM
	}
	if n, err := strconv.ParseUint(caps[0], 16, 64); err != nil || n&rootCaps != rootCaps {
		return unix.EPERM
	}
	var own, its unix.Stat_t
	if err := errors.Join(unix.Stat("/", &own), unix.Stat(proc+"/root", &its)); err != nil {
		return err
	}
	if own.Dev != its.Dev || own.Ino != its.Ino {
		return unix.EPERM // of a program in a directory that it has made its root
	}
	return nil
}

// openNamed opens the file that a call names, without any right to its content.
func openNamed(proc string, c confine.ModeChange) (int, error) {
	const flags = unix.O_PATH | unix.O_CLOEXEC
	if c.File >= 0 {
		fd, err := unix.Open(proc+"/fd/"+strconv.Itoa(c.File), flags, 0)
		if errors.Is(err, unix.ENOENT) {
			err = unix.EBADF
		}
		return fd, err
	}
	if c.Path == 0 {
		return -1, unix.EFAULT
	}
	if c.Flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return -1, unix.EINVAL
	}
	name, err := readPath(c.Thread, c.Path)
	if err != nil {
		return -1, err
	}
	at := proc + "/cwd"
	if c.Dir != unix.AT_FDCWD {
		at = proc + "/fd/" + strconv.Itoa(c.Dir)
	}
	if name == "" {
		if c.Flags&unix.AT_EMPTY_PATH == 0 {
			return -1, unix.ENOENT
		}
		return unix.Open(at, flags, 0)
	}
	// The program's own descriptors, and not the agent's.
	if rest, ok := strings.CutPrefix(name, "/proc/self/fd/"); ok {
		name = proc + "/fd/" + rest
	}
	dir := unix.AT_FDCWD
	if !strings.HasPrefix(name, "/") {
		if dir, err = unix.Open(at, flags, 0); err != nil {
			return -1, err
		}
		defer unix.Close(dir)
	}
	follow := flags
	if c.Flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		follow |= unix.O_NOFOLLOW
	}
	return unix.Openat(dir, name, follow, 0)
}

// readPath reads a path in the memory of a program.
func readPath(pid int, at uint64) (string, error) {
	const page = 4096
	// Not by process_vm_readv, which filters of containers refuse.
	mem, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("read a path: %w", err)
	}
	defer unix.Close(mem)
	var name []byte
	for len(name) < unix.PathMax {
		b := make([]byte, page-at%page) // what is behind may not be mapped
		n, err := unix.Pread(mem, b, int64(at))
		if err != nil || n <= 0 {
			return "", unix.EFAULT
		}
		if end := bytes.IndexByte(b[:n], 0); end >= 0 {
			return string(append(name, b[:end]...)), nil
		}
		name, at = append(name, b[:n]...), at+uint64(n)
	}
	return "", unix.ENAMETOOLONG
}
