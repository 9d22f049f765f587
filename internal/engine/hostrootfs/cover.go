package hostrootfs

import (
	"os"
	"slices"
)

// keptProc are the entries of /proc that a sandbox sees: what programs need, and what
// belongs to its own namespaces. Every other one is covered.
func keptProc() []string {
	return []string{
		"cgroups", "cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "net", "self", "stat", "swaps", "sys", "sysvipc", "thread-self",
		"uptime", "version", "vmstat",
	}
}

// Covers are the files and directories of /proc that are covered in a sandbox on this
// machine, by something empty: those that are known to tell of the host or to change it,
// and every other one that this kernel has and that is not known to be harmless. Engines skip
// paths that do not exist.
func Covers() (files, dirs []string) {
	files = []string{
		"/proc/buddyinfo", "/proc/cmdline", "/proc/config.gz", "/proc/consoles", "/proc/crypto", "/proc/devices", "/proc/diskstats",
		"/proc/dma", "/proc/execdomains", "/proc/fb", "/proc/interrupts", "/proc/iomem", "/proc/ioports", "/proc/kallsyms", "/proc/kcore",
		"/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/locks",
		"/proc/mdstat", "/proc/misc", "/proc/modules", "/proc/mtrr", "/proc/pagetypeinfo", "/proc/partitions", "/proc/sched_debug", "/proc/schedstat",
		"/proc/slabinfo", "/proc/softirqs", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo", "/proc/zoneinfo",
	}
	dirs = []string{
		"/proc/acpi", "/proc/asound", "/proc/bus", "/proc/driver", "/proc/dynamic_debug", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/scsi", "/proc/tty",
	}
	moreFiles, moreDirs := otherProc("/proc")
	for _, name := range moreFiles {
		if !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	for _, name := range moreDirs {
		if !slices.Contains(dirs, name) {
			dirs = append(dirs, name)
		}
	}
	// Counters of the whole machine among the settings.
	files = append(files, "/proc/sys/fs/aio-nr", "/proc/sys/fs/dentry-state", "/proc/sys/fs/file-nr", "/proc/sys/fs/inode-nr", "/proc/sys/fs/inode-state", "/proc/sys/kernel/pty/nr")
	dirs = append(dirs, "/proc/sys/dev", "/proc/sys/fs/quota")
	return files, dirs
}

// otherProc lists what a mount of proc has beside processes, links and what is kept.
func otherProc(proc string) (files, dirs []string) {
	f, err := os.Open(proc)
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(64)
		for _, e := range entries {
			name := e.Name()
			if name[0] >= '1' && name[0] <= '9' {
				return files, dirs // processes are the last
			}
			switch path := "/proc/" + name; {
			case slices.Contains(keptProc(), name):
			case e.IsDir():
				dirs = append(dirs, path)
			case e.Type().IsRegular():
				files = append(files, path)
			}
		}
		if err != nil {
			return files, dirs
		}
	}
}

// KeptSys are the directories of sysfs that a sandbox sees. It has none but those.
func KeptSys() []string {
	return []string{"/sys/devices/system/cpu", "/sys/devices/virtual/net", "/sys/class/net"}
}

// ShownGroups is where programs look for their cgroups.
const ShownGroups = "/sys/fs/cgroup"

// ReadOnlyPaths may be read and not written.
func ReadOnlyPaths() []string { return []string{"/proc/sys"} }
