//go:build linux

package gvisor

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/cgroup"
)

// sizeFlags make free, nproc and their like show what the sandbox may use. They
// enforce nothing.
func (c *creation) sizeFlags() []string {
	var flags []string
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		total := info.Totalram * uint64(info.Unit)
		flags = append(flags, "--total-host-memory="+strconv.FormatUint(total, 10))
		if limit := c.plan.Limits.MemoryBytes; limit > 0 && uint64(limit) < total {
			total = uint64(limit)
		}
		flags = append(flags, "--total-memory="+strconv.FormatUint(total, 10))
	}
	if cpus := c.plan.Limits.CPUs; cpus > 0 {
		flags = append(flags, "--cpu-num="+strconv.Itoa(processors(cpus)),
			"--cpu-quota="+strconv.FormatInt(int64(cpus*cgroup.CPUPeriod), 10),
			"--cpu-period="+strconv.Itoa(cgroup.CPUPeriod))
	}
	return flags
}
