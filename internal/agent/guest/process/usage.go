//go:build linux

package process

import (
	"os"
	"strconv"

	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Usage counts the processes of the place that the agent is in, without the agent.
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
	var u wire.Usage
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != os.Getpid() {
			u.Processes++
		}
	}
	return u, nil
}
