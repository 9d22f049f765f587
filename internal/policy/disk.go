package policy

import "github.com/cloche-dev/cloche/api"

const (
	// leastRoot is the least that a root which can be written has of limits.disk_bytes.
	leastRoot = mib
	// diskBlock is what the parts of limits.disk_bytes are multiples of.
	diskBlock = 4096
)

// ownsWorkspace is true for a sandbox that writes to a workspace of its own: it counts
// to limits.disk_bytes.
func (d *decision) ownsWorkspace() bool {
	w := d.spec.Workspace
	return w.Name == "" && w.Dir == "" && !w.ReadOnly
}

// shareDisk divides limits.disk_bytes between the layer of the root and a private
// workspace, so that both together hold no more. Without a word about the workspace the
// root gets half of it, and no more than the memory, which its layer is on most engines:
// it could not be filled anyway. The workspace gets the rest.
func (d *decision) shareDisk(asked, granted *bounds) *api.Error {
	if granted.DiskBytes == 0 || !d.ownsWorkspace() {
		return nil
	}
	if granted.WorkspaceBytes == 0 {
		if !d.profile.liftsWorkspace {
			granted.WorkspaceBytes = max(granted.DiskBytes-d.rootShare(granted), minWorkspace)
		}
		return nil
	}
	least := granted.WorkspaceBytes
	if !*d.spec.ReadOnlyRoot {
		least += leastRoot
	}
	if asked.DiskBytes == 0 && !(d.profile.locks(fieldDisk) && asked.WorkspaceBytes > 0) {
		// Who names the size of a workspace takes nothing of the root's.
		granted.DiskBytes = granted.WorkspaceBytes + max(d.rootShare(granted), least-granted.WorkspaceBytes)
		if most := d.profile.ceilings.DiskBytes; most > 0 {
			granted.DiskBytes = min(granted.DiskBytes, most)
		}
	}
	if granted.DiskBytes >= least {
		return nil
	}
	size, disk := formatSize(float64(granted.WorkspaceBytes)), formatSize(float64(granted.DiskBytes))
	if asked.DiskBytes > 0 {
		return api.Invalid(fieldDisk, "%s is %s in all, and the workspace alone takes %s of it", fieldDisk, disk, size).
			WithHint("ask for at least %s, or for a smaller workspace", formatSize(float64(least)))
	}
	rule := ruleName(d.profile.name, "ceilings", "disk")
	if d.profile.locks(fieldDisk) {
		rule = ruleName(d.profile.name, "locked")
	}
	return denied(rule, fieldWorkspaceSize, "%s is %s, and the sandbox may write %s in all", fieldWorkspaceSize, size, disk).
		WithHint("ask for a smaller workspace, or for a named one, which is not a part of %s", fieldDisk)
}

// rootShare is the root's part of a disk that nobody has divided.
func (d *decision) rootShare(b *bounds) int64 {
	if *d.spec.ReadOnlyRoot {
		return 0
	}
	share := b.DiskBytes / 2
	if b.MemoryBytes > 0 {
		share = min(share, b.MemoryBytes)
	}
	return max(share&^(diskBlock-1), leastRoot)
}

// checkRootShare finds what is left of the disk for the layer of the root.
func checkRootShare(d *decision) *api.Error {
	d.rootBytes = d.spec.Limits.DiskBytes
	if size := d.spec.Workspace.SizeBytes; d.rootBytes > 0 && size > 0 && d.ownsWorkspace() {
		d.rootBytes = max(d.rootBytes-size, 0)
	}
	return nil
}

// RootBytes bounds the writable layer of the root; 0 is no bound, or no layer. With the
// bound of a private workspace it comes to limits.disk_bytes.
func (p Permit) RootBytes() int64 { return p.rootBytes }
