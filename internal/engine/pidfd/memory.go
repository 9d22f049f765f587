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
