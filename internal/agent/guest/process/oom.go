//go:build linux

package process

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// oomScores gives programs the value by which the kernel kills them, and not the agent,
// when memory runs out. It has a mount of /proc that can be written: the one that programs
// see cannot, and they have no descriptor of this one.
type oomScores struct{ proc int }

const (
	// programScore is the highest there is, the OOMPrograms of package pidfd.
	programScore = "1000"
	// forkDepth bounds how far below a program is looked for what it has forked.
	forkDepth = 4
)

// openOOMScores must be called before /proc is made read-only. Where the agent may mount
// nothing, or is refused a writable copy, programs keep what the agent has.
func openOOMScores() oomScores {
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/proc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		fd = -1
	}
	return oomScores{fd}
}

// raise is for a process that has executed its program. Before, it has its memory in
// common with the agent, and the kernel would give both the value. What the program has
// forked meanwhile is raised too, except for one that has left its parent by then: it is
// as likely to be killed as the sandbox's own agent.
func (o oomScores) raise(pid int) {
	if o.proc >= 0 {
		o.raiseTree(strconv.Itoa(pid), forkDepth)
	}
}

func (o oomScores) raiseTree(pid string, depth int) {
	fd, err := unix.Openat(o.proc, pid+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // it has ended
	}
	_, _ = unix.Write(fd, []byte(programScore))
	_ = unix.Close(fd)
	if depth == 0 {
		return
	}
	fd, err = unix.Openat(o.proc, pid+"/task/"+pid+"/children", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var b [512]byte
	n, err := unix.Read(fd, b[:])
	_ = unix.Close(fd)
	if err != nil {
		return
	}
	for child := range bytes.FieldsSeq(b[:max(n, 0)]) {
		o.raiseTree(string(child), depth-1)
	}
}
