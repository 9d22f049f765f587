package policy

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// bounds returns the values of the request in its present state.
func (d *decision) bounds() rules.Bounds {
	return rules.Bounds{Limits: d.spec.Limits, WorkspaceBytes: d.spec.Workspace.SizeBytes, WorkspaceInodes: d.spec.Workspace.Inodes}
}

func (d *decision) setBounds(b rules.Bounds) {
	d.spec.Limits, d.spec.Workspace.SizeBytes, d.spec.Workspace.Inodes = b.Limits, b.WorkspaceBytes, b.WorkspaceInodes
}

// checkLimits validates the requested limits, compares them with the ceilings and fills in the
// defaults.
func checkLimits(d *decision) *api.Error {
	asked := d.bounds()
	granted := asked
	for _, l := range rules.Limits() {
		v := l.Get(&asked)
		if err := l.Check(l.Field, v); err != nil {
			return err
		}
		if d.given(l.Field) {
			continue
		}
		if v > 0 {
			fitted, adj, err := l.Fit(&d.profile, l.Field, v, false)
			if err != nil {
				return err
			}
			if adj != nil {
				d.adjusted = append(d.adjusted, *adj)
			}
			if l.Get(&d.profile.Ceilings) > 0 {
				d.because(l.Field, d.profile.CeilingBy(l))
			}
			l.Set(&granted, fitted)
			d.demanded[l.Field] = true
			continue
		}
		if d.unbounded(l.Field) {
			continue
		}
		l.Set(&granted, l.Get(&d.profile.Defaults))
		if d.profile.Ruled[l.Field] != "" && l.Get(&granted) > 0 {
			d.demanded[l.Field] = true
		}
	}
	if err := fitMemory(&asked, &granted); err != nil {
		return err
	}
	if err := d.shareDisk(&asked, &granted); err != nil {
		return err
	}
	d.setBounds(granted)
	return nil
}

// fitMemory keeps the limits of in-memory storage below the memory limit. It lowers a default, so
// that filling the storage is an error in the sandbox and does not end it.
func fitMemory(asked, granted *rules.Bounds) *api.Error {
	memory := granted.MemoryBytes
	if memory == 0 {
		return nil
	}
	for _, part := range []struct {
		field     string
		asked, to *int64
	}{{rules.FieldTmp, &asked.TmpBytes, &granted.TmpBytes}, {rules.FieldShm, &asked.ShmBytes, &granted.ShmBytes}} {
		switch {
		case *part.asked == 0:
			*part.to = min(*part.to, memory/3&^(1<<16-1))
		case *part.to > memory:
			return api.Invalid(part.field, "%s is %s, and it is memory, of which the sandbox has %s", part.field, rules.FormatSize(float64(*part.to)), rules.FormatSize(float64(memory))).
				WithHint("ask for less, or for more in %s", rules.FieldMemory)
		}
	}
	return nil
}

// checkEnforcement compares the limits with what the engine can enforce. A demanded limit must be
// enforced. A built-in default that cannot be is dropped and reported.
func checkEnforcement(d *decision) *api.Error {
	granted := d.bounds()
	for _, l := range rules.Limits() {
		v := l.Get(&granted)
		if l.Enforced == "" || v == 0 {
			continue
		}
		can := d.engine.Enforces[l.Enforced]
		if can.OK || l.Field == rules.FieldDisk && *d.spec.ReadOnlyRoot {
			continue // a root without a layer has nothing to limit
		}
		reason := can.Reason
		switch {
		case !d.caller.Operator:
			// The reason may contain paths of the host.
			reason = "the operator sees why"
		case reason == "":
			reason = "the engine reports no support for it"
		}
		if d.demanded[l.Field] {
			e := unsupported(l.Field, "%s is %s, and engine %s cannot enforce that here: %s", l.Field, l.Format(v), d.engine.Name, reason)
			if rule := d.profile.Ruled[l.Field]; rule != "" {
				e.Rule = rule
				return e.WithHint("the operator's rule %s requires this limit; fix what is missing, or remove the rule", rule)
			}
			return e.WithHint("fix what is missing, or leave %s out and run without that limit", l.Field)
		}
		l.Set(&granted, 0)
		d.unenforced = append(d.unenforced, api.Unenforced{Field: l.Field, Reason: reason})
	}
	d.setBounds(granted)
	return nil
}

// checkUnbounded reports a workspace through which a sandbox can fill the disk: a named one without
// a size, and the layer over it. The operator chose a private workspace without a limit, and the
// caller chose a directory of the host, so those are not reported.
func checkUnbounded(d *decision) *api.Error {
	w := d.spec.Workspace
	if w.Name == "" || w.ReadOnly || w.SizeBytes > 0 || d.isUnenforced(rules.FieldWorkspaceSize) {
		return nil
	}
	reason := "nothing bounds a named workspace that has no size"
	if w.Layered {
		reason = "nothing bounds the layer over a named workspace that has no size"
	}
	d.unenforced = append(d.unenforced, api.Unenforced{Field: rules.FieldWorkspaceSize, Reason: reason})
	return nil
}

// isUnenforced reports whether a field is already listed as unenforced.
func (d *decision) isUnenforced(field string) bool {
	return slices.ContainsFunc(d.unenforced, func(u api.Unenforced) bool { return u.Field == field })
}

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
