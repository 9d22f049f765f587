//go:build linux

package fake

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// killBelow kills all that descends from a process, which is stopped, as often as it
// takes to find nothing more.
func killBelow(root int) {
	for range 8 {
		pids := descendants(root)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// descendants lists what lives below a process. The agent is the subreaper of
// all that it starts, so nothing escapes from below it.
func descendants(root int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// After the name, which may hold anything: state and parent.
		f := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
		if len(f) < 2 || string(f[0]) == "Z" {
			continue
		}
		if parent, err := strconv.Atoi(string(f[1])); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for next := children[root]; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	return all
}
