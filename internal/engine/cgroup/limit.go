//go:build linux

package cgroup

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// CPUPeriod is the period of the processor quota, in microseconds.
const CPUPeriod = 100_000

// socketShare is the part of its memory that a group may have in sockets beside it: 1 in
// so many.
const socketShare = 4

// Limit writes the limits: those of the whole, and those of the guest's group where
// there is one, which alone limits the number of processes.
func (g *Group) Limit(l engine.Limits) error {
	for _, p := range g.Parts {
		whole := engine.Limits{CPUs: l.CPUs, MemoryBytes: l.MemoryBytes}
		if p.split {
			if err := p.limit(filepath.Join(p.Dir, guestGroup), engine.Limits{CPUs: l.CPUs, MemoryBytes: l.MemoryBytes, Pids: l.Pids}); err != nil {
				return err
			}
		}
		if l.MemoryBytes > 0 {
			whole.MemoryBytes += p.overhead
		}
		if err := p.limit(p.Dir, whole); err != nil {
			return err
		}
	}
	return nil
}

// limit writes what the kind of hierarchy calls the limits.
func (h Hierarchy) limit(dir string, l engine.Limits) error {
	type file struct {
		name, value string
		optional    bool
	}
	var files []file
	v1 := h.Mount.Version == 1
	memory := strconv.FormatInt(l.MemoryBytes, 10)
	switch {
	case !h.Has(Memory) || l.MemoryBytes <= 0:
	case v1:
		files = append(files, file{"memory.limit_in_bytes", memory, false},
			// Memory and swap together: no swap. Absent without swap accounting.
			file{"memory.memsw.limit_in_bytes", memory, true},
			file{"memory.swappiness", "0", true},
			// Version 1 counts what lies in sockets apart, and without a limit not at all: it
			// would be the whole machine's that a sandbox fills.
			file{"memory.kmem.tcp.limit_in_bytes", strconv.FormatInt(l.MemoryBytes/socketShare, 10), true})
	default:
		files = append(files, file{"memory.max", memory, false}, file{"memory.swap.max", "0", true})
	}
	switch {
	case !h.Has(CPU) || l.CPUs <= 0:
	case v1:
		// For either of the two the kernel goes through all groups of the machine.
		if readInt(dir, "cpu.cfs_period_us") != CPUPeriod {
			files = append(files, file{"cpu.cfs_period_us", strconv.Itoa(CPUPeriod), false})
		}
		files = append(files, file{"cpu.cfs_quota_us", quota(h.within(l.CPUs)), false})
	default:
		files = append(files, file{"cpu.max", quota(l.CPUs) + " " + strconv.Itoa(CPUPeriod), false})
	}
	if h.Has(Pids) && l.Pids > 0 {
		files = append(files, file{"pids.max", strconv.FormatInt(l.Pids, 10), false})
	}
	for _, f := range files {
		if err := pidfd.Write(dir, f.name, f.value); err != nil && !f.optional {
			return fmt.Errorf("set limit: %w", err)
		}
	}
	return nil
}

func quota(cpus float64) string { return strconv.FormatInt(int64(cpus*CPUPeriod), 10) }

// within is the share of processors that a group may be given. Version 1 refuses
// a quota above the quota of a group around it, where version 2 takes it and applies
// the smaller.
func (h Hierarchy) within(cpus float64) float64 {
	if h.Root == "" {
		return cpus
	}
	for dir := filepath.Dir(h.Root); ; dir = filepath.Dir(dir) {
		quota, period := readInt(dir, "cpu.cfs_quota_us"), readInt(dir, "cpu.cfs_period_us")
		if quota > 0 && period > 0 {
			cpus = min(cpus, float64(quota)/float64(period))
		}
		if dir == h.Mount.Path || dir == filepath.Dir(dir) {
			return cpus
		}
	}
}
