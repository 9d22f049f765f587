//go:build linux

package enginetest

import (
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/internal/engine"
)

// testLimitsSeen reads the limits where programs look for them: in the files of their cgroup.
func testLimitsSeen(s *suite) {
	s.need("cpus")
	s.need("memory_bytes")
	if s.OwnKernel {
		s.Skip("needs the host's kernel: in another the agent shows the limits")
	}
	const memory, slack = 192 << 20, 64 << 20
	i, _ := s.create(func(p *engine.Plan) { p.Limits.CPUs, p.Limits.MemoryBytes = 1.5, memory })
	cpu := s.firstOf(i, "cpu.max", "cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us")
	if quota, _, _ := strings.Cut(cpu, " "); quota != "150000" {
		s.Errorf("the quota is %q, want the quota of 1.5 CPUs", cpu)
	}
	// Version 2 has the limit of all that is inside, the agent included.
	got := s.firstOf(i, "memory.max", "memory/memory.limit_in_bytes")
	if n, err := strconv.Atoi(got); err != nil || n < memory || n > memory+slack {
		s.Errorf("the limit of memory is %q, want %d, or a little more", got, memory)
	}
	if list := s.exec(i, Inside, "cat", "/proc/cgroups"); !strings.Contains(list, "\nmemory\t") {
		s.Errorf("/proc/cgroups does not list memory:\n%s", list)
	}
	for _, name := range []string{"cgroup.procs", "memory.max", "cpu.max", "memory/memory.limit_in_bytes", "memory/tasks", "memory/cgroup.event_control", "cpu/cpu.cfs_quota_us", "pids/pids.max", "cpuset/cpuset.cpus"} {
		if o, err := Exec(s.ctx, i, Inside, "write", groupDir+name, "0"); err != nil || o.Code == 0 {
			s.Errorf("%s can be written: %+v, %v", name, o, err)
		}
	}
	s.alive(i)
}

const groupDir = "/sys/fs/cgroup/"

// firstOf is the content of the first of the files that is there.
func (s *suite) firstOf(i engine.Instance, names ...string) string {
	s.Helper()
	for _, name := range names {
		if o, err := Exec(s.ctx, i, Inside, "cat", groupDir+name); err == nil && o.Code == 0 {
			return strings.TrimSpace(string(o.Output))
		}
	}
	s.Errorf("none of %q can be read", names)
	return ""
}
