//go:build linux

package pidfd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Memory is how much memory a process has, in bytes: its own, and its share of what it has in common
// with others. It is 0 if that cannot be read.
func Memory(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}

// ChildMemory is the memory of the children of a process, in bytes, each measured as by Memory. It does not
// count their children, which share the memory of a child in what it is used for. It is 0 if they cannot be listed.
func ChildMemory(pid int) int64 {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0
	}
	var sum int64
	for _, t := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range bytes.Fields(b) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				sum += Memory(child)
			}
		}
	}
	return sum
}
