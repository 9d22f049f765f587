package policy

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const (
	// diskBlock is the unit in which limits.disk_bytes is divided.
	diskBlock = 4096
)

// ownsWorkspace reports whether the sandbox writes to a private workspace, which counts towards
// limits.disk_bytes.
func (d *decision) ownsWorkspace() bool {
	w := d.spec.Workspace
	return w.Name == "" && w.Dir == "" && !w.ReadOnly
}

// shareDisk divides limits.disk_bytes between the root's layer and a private workspace, so that
// both together use no more. If the request does not set the workspace's size, the root gets half,
// but at most the size of the memory. On most engines the layer is in memory, so a larger share
// could never be used. The workspace gets the rest.
func (d *decision) shareDisk(asked, granted *rules.Bounds) *api.Error {
	if granted.DiskBytes == 0 || !d.ownsWorkspace() {
		return nil
	}
	if granted.WorkspaceBytes == 0 {
		if !d.profile.LiftsWorkspace {
			granted.WorkspaceBytes = max(granted.DiskBytes-d.rootShare(granted), rules.MinWorkspace)
		}
		return nil
	}
	least := granted.WorkspaceBytes
	if !*d.spec.ReadOnlyRoot {
		least += rules.LeastRoot
	}
	if asked.DiskBytes == 0 && !(d.profile.Locks(rules.FieldDisk) && asked.WorkspaceBytes > 0) {
		// A size for the workspace does not reduce the root's share.
		granted.DiskBytes = granted.WorkspaceBytes + max(d.rootShare(granted), least-granted.WorkspaceBytes)
		if most := d.profile.Ceilings.DiskBytes; most > 0 {
			granted.DiskBytes = min(granted.DiskBytes, most)
		}
	}
	if granted.DiskBytes >= least {
		return nil
	}
	size, disk := rules.FormatSize(float64(granted.WorkspaceBytes)), rules.FormatSize(float64(granted.DiskBytes))
	if asked.DiskBytes > 0 {
		return api.Invalid(rules.FieldDisk, "%s is %s in all, and the workspace alone takes %s of it", rules.FieldDisk, disk, size).
			WithHint("ask for at least %s, or for a smaller workspace", rules.FormatSize(float64(least)))
	}
	rule := rules.KeyPath(d.profile.Name, "ceilings", "disk")
	if d.profile.Locks(rules.FieldDisk) {
		rule = rules.KeyPath(d.profile.Name, "locked")
	}
	return rules.Denied(rule, rules.FieldWorkspaceSize, "%s is %s, and the sandbox may write %s in all", rules.FieldWorkspaceSize, size, disk).
		WithHint("ask for a smaller workspace, or for a named one, which is not a part of %s", rules.FieldDisk)
}

// rootShare returns the root's default share of the disk.
func (d *decision) rootShare(b *rules.Bounds) int64 {
	if *d.spec.ReadOnlyRoot {
		return 0
	}
	share := b.DiskBytes / 2
	if b.MemoryBytes > 0 {
		share = min(share, b.MemoryBytes)
	}
	return max(share&^(diskBlock-1), rules.LeastRoot)
}

// checkRootShare computes what is left of the disk for the root's layer.
func checkRootShare(d *decision) *api.Error {
	d.rootBytes = d.spec.Limits.DiskBytes
	if size := d.spec.Workspace.SizeBytes; d.rootBytes > 0 && size > 0 && d.ownsWorkspace() {
		d.rootBytes = max(d.rootBytes-size, 0)
	}
	return nil
}

// RootBytes returns the limit of the root's writable layer. 0 means no limit, or no layer. Together
// with the limit of a private workspace it is limits.disk_bytes.
func (p Permit) RootBytes() int64 { return p.rootBytes }
