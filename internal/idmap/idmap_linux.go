// Package idmap makes the mappings by which mounts show ids other than those on disk.
package idmap

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// Mapping is what a mount shows of the ids on disk: in each range ContainerID
// is the id on disk and HostID the one that is seen.
type Mapping struct {
	UIDs, GIDs []syscall.SysProcIDMap
}

// NoGroups is a mapping of groups in which no group of a file has a place. The kernel
// refuses each user, root included, the right to write to a file without a place for
// both its ids. In a mount that is read-only already, what that refuses more is to
// connect or send to a unix socket and to open a named pipe to write. Reading goes by the
// owner's and the others' rights, as before; capabilities do not let a user read more.
func NoGroups() []syscall.SysProcIDMap {
	// No file has this group: it is neither used nor a nobody of any system.
	const unused = 1<<32 - 3
	return []syscall.SysProcIDMap{{ContainerID: unused, HostID: 65534, Size: 1}}
}

// Namespace makes a user namespace that holds the mapping and nothing else, to be given
// to mount_setattr(2). The caller closes it.
func (m Mapping) Namespace() (*os.File, error) {
	// A namespace needs a process to be made, which is stopped before its first
	// instruction and killed as soon as the namespace is held by its file. To
	// trace a process is a relation of threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"cloche-idmap"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 syscall.CLONE_NEWUSER,
			UidMappings:                m.UIDs,
			GidMappings:                m.GIDs,
			GidMappingsEnableSetgroups: false,
			Ptrace:                     true,
			Pdeathsig:                  syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start process for id mapping: %w", err)
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return ns, nil
}
