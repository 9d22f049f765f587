//go:build linux

package nsjail

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/native"
)

// argv is how nsjail is called. Every value is an argument of its own, and all paths in
// it are our own constants, so there is nothing to quote: what a request can choose is
// the host name, which is the value of the option before it.
//
// What nsjail would limit by itself is set off: time, rlimits and niceness. Its cgroups
// are not asked for, because the whole of it is in the sandbox's already.
func argv(j native.Jailed) []string {
	return command(j, func(path string) bool {
		info, err := os.Lstat(path)
		// nsjail opens a file that it covers, and fails where it cannot. What only root of
		// the host can open, by its mode or by the kernel's own rule, cannot be opened inside
		// either, and needs no cover.
		return err == nil && (info.IsDir() || info.Mode().IsRegular() && info.Mode()&0o004 != 0 && !slices.Contains(closed(), path))
	})
}

// command is argv on a machine with those paths of /proc.
func command(j native.Jailed, exists func(string) bool) []string {
	a := []string{
		Name, "--mode", "o", "--quiet", "--log_fd", strconv.Itoa(j.Log),
		"--time_limit", "0", "--disable_rlimits", "--nice_level", "0",
		// The network namespace is the one in which it is called.
		"--disable_clone_newnet",
		"--chroot", j.Root,
	}
	if !j.ReadOnly {
		a = append(a, "--rw")
	}
	if j.Hostname != "" {
		a = append(a, "--hostname", j.Hostname)
	}
	for _, m := range idMaps(j.UID, j.IDs) {
		a = append(a, "--user", m, "--group", m)
	}
	for _, fd := range j.Keep {
		a = append(a, "--pass_fd", strconv.Itoa(fd))
	}
	for c, name := range capNames() {
		if name != "" && j.Caps>>uint(c)&1 != 0 {
			a = append(a, "--cap", name)
		}
	}
	// Its own mount of /proc is the last of all, and would lie on what is covered in it.
	a = append(a, "--disable_proc", "--mount", "none:/proc:proc:")
	for _, name := range hostrootfs.ReadOnlyPaths() {
		a = append(a, "--bindmount_ro", name+":"+name)
	}
	files, dirs := hostrootfs.Covers()
	for _, name := range files {
		if exists(name) {
			a = append(a, "--bindmount_ro", "/dev/null:"+name)
		}
	}
	for _, name := range dirs {
		if exists(name) {
			a = append(a, "--bindmount_ro", j.Empty+":"+name)
		}
	}
	for _, f := range hostrootfs.StandIns() {
		if exists(f.Target) {
			a = append(a, "--bindmount_ro", j.Made+"/"+f.Name+":"+f.Target)
		}
	}
	return append(append(a, "--"), j.Agent...)
}

// closed are files that the kernel opens only for a holder of a capability on the host.
func closed() []string { return []string{"/proc/kcore", "/proc/kmsg", "/proc/mtrr"} }

// options are those of command.
func options() []string {
	return []string{
		"--mode", "--quiet", "--log_fd", "--time_limit", "--disable_rlimits", "--nice_level", "--disable_clone_newnet", "--chroot", "--rw", "--hostname",
		"--user", "--group", "--pass_fd", "--cap", "--disable_proc", "--mount", "--bindmount_ro",
	}
}

// idMaps map each id to itself; nsjail makes the first of the first its own.
func idMaps(uid, count uint32) []string {
	one := func(first, n uint32) string {
		at := strconv.FormatUint(uint64(first), 10)
		return at + ":" + at + ":" + strconv.FormatUint(uint64(n), 10)
	}
	if uid == 0 || uid >= count {
		return []string{one(0, count)}
	}
	maps := []string{one(uid, 1), one(0, uid)}
	if uid+1 < count {
		maps = append(maps, one(uid+1, count-uid-1))
	}
	return maps
}

// capNames are nsjail's names of the capabilities that an agent may have.
func capNames() []string {
	return []string{
		unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE", unix.CAP_DAC_READ_SEARCH: "CAP_DAC_READ_SEARCH", unix.CAP_FOWNER: "CAP_FOWNER",
		unix.CAP_FSETID: "CAP_FSETID", unix.CAP_KILL: "CAP_KILL", unix.CAP_SETGID: "CAP_SETGID", unix.CAP_SETUID: "CAP_SETUID", unix.CAP_SETPCAP: "CAP_SETPCAP",
		unix.CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE", unix.CAP_SYS_CHROOT: "CAP_SYS_CHROOT", unix.CAP_AUDIT_WRITE: "CAP_AUDIT_WRITE",
		unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_SETFCAP: "CAP_SETFCAP",
	}
}
