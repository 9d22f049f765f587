//go:build linux

package pidfd

import (
	"bytes"
	"os"
	"strconv"
)

// Tree lists the processes with these numbers and all that descend from them, as they are
// now. An orphan descends from the process that adopted it, which in a
// namespace of its own is the first process there.
func Tree(pids ...int) []int {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return pids
	}
	children := map[int][]int{}
	for _, e := range names {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if above, ok := parent(pid); ok {
			children[above] = append(children[above], pid)
		}
	}
	var all []int
	seen := map[int]bool{}
	for todo := pids; len(todo) > 0; todo = todo[1:] {
		if pid := todo[0]; pid > 0 && !seen[pid] {
			seen[pid] = true
			all = append(all, pid)
			todo = append(todo, children[pid]...)
		}
	}
	return all
}

// parent reads the fourth field of a process, behind a name that may hold anything.
func parent(pid int) (int, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 {
		return 0, false
	}
	above, err := strconv.Atoi(string(f[1]))
	return above, err == nil
}
