//go:build !remoteonly

package workspace

import (
	"math"
	"syscall"

	"github.com/cloche-dev/cloche/internal/idmap"
)

// hiddenGroup is as what the group root on disk is seen where sandbox root is
// not root: mapped, so that files of the owner with that group can be changed,
// to a group without members, so that no user has its rights.
const hiddenGroup = math.MaxInt32 - 1

// nobodyGroup is the group of files that sandbox root makes for an owner whose
// ids are too large for a group of their own.
const nobodyGroup = 65534

// ownerMapping shows the user uid as root and no other user at all. Of the
// groups, gid is shown as root's, and all others but root's as they are, because
// a file of the owner whose group has no place could not be changed.
func ownerMapping(uid, gid uint32) idmap.Mapping {
	m := idmap.Mapping{UIDs: []syscall.SysProcIDMap{{ContainerID: int(uid), HostID: 0, Size: 1}}}
	one := func(disk, seen int) {
		m.GIDs = append(m.GIDs, syscall.SysProcIDMap{ContainerID: disk, HostID: seen, Size: 1})
	}
	same := func(from, to int) { // to is not included
		if to > from {
			m.GIDs = append(m.GIDs, syscall.SysProcIDMap{ContainerID: from, HostID: from, Size: to - from})
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
