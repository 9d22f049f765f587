//go:build !elsewhere

package workspace

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
)

// idMapping is what a mount shows of the ids on disk: in each range ContainerID
// is the id on disk and HostID the one that is seen.
type idMapping struct {
	uids, gids []syscall.SysProcIDMap
}

// hiddenGroup is as what the group root on disk is seen where sandbox root is
// not root: mapped, so that files of the owner with that group can be changed,
// to a group in which nobody is, so that its rights are nobody's.
const hiddenGroup = math.MaxInt32 - 1

// nobodyGroup is the group of files that sandbox root makes for an owner whose
// ids are too large for a group of their own.
const nobodyGroup = 65534

// ownerMapping shows the user uid as root and no other user at all. Of the
// groups, gid is shown as root's, and all others but root's as they are, because
// a file of the owner whose group has no place could not be changed.
func ownerMapping(uid, gid uint32) idMapping {
	m := idMapping{uids: []syscall.SysProcIDMap{{ContainerID: int(uid), HostID: 0, Size: 1}}}
	one := func(disk, seen int) {
		m.gids = append(m.gids, syscall.SysProcIDMap{ContainerID: disk, HostID: seen, Size: 1})
	}
	same := func(from, to int) { // to is not included
		if to > from {
			m.gids = append(m.gids, syscall.SysProcIDMap{ContainerID: from, HostID: from, Size: to - from})
		}
	}
	root := int(gid)
	if root == 0 || root >= hiddenGroup {
		// Files that sandbox root makes get the group of the same number as the
		// owner, which on most machines is the owner's.
		root = int(uid)
	}
	if root >= hiddenGroup {
		root = nobodyGroup
	}
	one(root, 0)
	one(0, hiddenGroup)
	same(1, root)
	same(root+1, hiddenGroup)
	return m
}

// idmapNamespace makes a user namespace that holds the mapping and nothing else.
// The caller closes it.
func idmapNamespace(m idMapping) (*os.File, error) {
	// A namespace needs a process to be made, which is stopped before its first
	// instruction and killed as soon as the namespace is held by its file. To
	// trace a process is a relation of threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"cloche-idmap"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 syscall.CLONE_NEWUSER,
			UidMappings:                m.uids,
			GidMappings:                m.gids,
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
