//go:build linux

package cgroup

import (
	"slices"
	"testing"
)

func TestShown(t *testing.T) {
	part := func(version int, mount string, split bool, uses ...string) Part {
		return Part{Hierarchy: Hierarchy{Mount: Mount{Path: mount, Version: version}, Uses: uses}, Dir: mount + "/e/o/sb", split: split}
	}
	memory, cpu := part(1, "/sys/fs/cgroup/memory", true, Memory), part(1, "/sys/fs/cgroup/cpu,cpuacct", false, CPU, Usage)
	unified, bare := part(2, "/sys/fs/cgroup", false, Memory, CPU, Pids), part(2, "/sys/fs/cgroup/unified", false)
	first := []Shown{
		{Name: "memory", Path: "/sys/fs/cgroup/memory/e/o/sb/guest"},
		{Name: "cpu,cpuacct", Path: "/sys/fs/cgroup/cpu,cpuacct/e/o/sb"},
	}
	for name, test := range map[string]struct {
		parts []Part
		want  []Shown
	}{
		"none":                        {},
		"version 1":                   {[]Part{memory, cpu}, first},
		"version 2":                   {[]Part{unified}, []Shown{{Path: "/sys/fs/cgroup/e/o/sb"}}},
		"both, one without limits":    {[]Part{memory, cpu, bare}, first},
		"version 2 without a limit":   {[]Part{bare}, nil},
		"both, with limits in either": {[]Part{unified, memory}, first[:1]},
	} {
		if got := (Maker{}).Shown(&Group{Parts: test.parts}); !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
