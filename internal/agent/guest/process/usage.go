//go:build linux

package process

import (
	"bytes"
	"os"
	"strconv"

	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Usage counts the processes of the sandbox without the agent, and measures the agent.
func Usage() (wire.Usage, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return wire.Usage{}, internal("count processes", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return wire.Usage{}, internal("count processes", err)
	}
	u := wire.Usage{AgentBytes: ownMemory()}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != os.Getpid() {
			u.Processes++
		}
	}
	return u, nil
}

// ownMemory is the resident set size of this process in bytes, or 0 if it cannot be read.
func ownMemory() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
