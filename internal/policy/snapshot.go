package policy

import (
	"cmp"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Default limits of a tenant's snapshots.
const (
	usualSnapshots     = 100
	usualSnapshotBytes = 32 * rules.Gib
)

// maxRootShare is the factor between the root of a snapshot and the memory that a sandbox needs to
// load it. Its kernel holds each byte up to that many times during the start.
const maxRootShare = 3

// SnapshotPermit is a granted snapshot. Only DecideSnapshot returns a valid one.
type SnapshotPermit struct {
	valid     bool
	request   api.SnapshotRequest
	maxCount  int
	maxBytes  int64
	bytesLeft int64
}

// Valid reports whether DecideSnapshot returned p.
func (p SnapshotPermit) Valid() bool { return p.valid }

// Request returns what was granted.
func (p SnapshotPermit) Request() api.SnapshotRequest { return p.request }

// Max returns the limits of the tenant's snapshots. The code that adds this one must compare in the same critical section.
func (p SnapshotPermit) Max() (count int, bytes int64) { return p.maxCount, p.maxBytes }

// BytesLeft returns the maximum size of this snapshot.
func (p SnapshotPermit) BytesLeft() int64 { return p.bytesLeft }

// SnapshotFacts are the present snapshots of the sandbox's tenant.
type SnapshotFacts struct {
	Tenant string
	Count  int
	Bytes  int64
}

// DecideSnapshot grants a snapshot or returns why not. Authorize decides whether the caller can use
// the sandbox.
func DecideSnapshot(req api.SnapshotRequest, facts SnapshotFacts, set rules.Rules) (SnapshotPermit, error) {
	switch req.Scope {
	case "", api.SnapshotFiles, api.SnapshotWorkspace, api.SnapshotRoot, api.SnapshotMemory:
	default:
		return SnapshotPermit{}, api.Invalid("scope", "scope %s is not known", rules.Quote(string(req.Scope))).
			WithHint("write %q, %q, %q or %q", api.SnapshotFiles, api.SnapshotWorkspace, api.SnapshotRoot, api.SnapshotMemory)
	}
	if req.Name != "" && !api.ValidName(req.Name) {
		return SnapshotPermit{}, api.Invalid("name", "snapshot name %s is not valid", rules.Quote(req.Name)).WithHint("%s", rules.NameHint())
	}
	if err := checkLabels(&decision{spec: api.SandboxSpec{Labels: req.Labels}}); err != nil {
		return SnapshotPermit{}, err
	}
	count, countRule := rules.LimitFor(set, facts.Tenant, set.MaxSnapshotsPerTenant, "max_snapshots_per_tenant", "max_snapshots", func(t rules.TenantRule) *int { return t.MaxSnapshots })
	bytes, bytesRule := rules.LimitFor(set, facts.Tenant, set.MaxSnapshotBytesPerTenant, "max_snapshot_bytes_per_tenant", "max_snapshot_bytes", func(t rules.TenantRule) *rules.Size { return t.MaxSnapshotBytes })
	p := SnapshotPermit{
		valid: true, request: req,
		maxCount: cmp.Or(count, usualSnapshots),
		maxBytes: int64(cmp.Or(bytes, usualSnapshotBytes)),
	}
	p.bytesLeft = p.maxBytes - facts.Bytes
	if facts.Count >= p.maxCount {
		return SnapshotPermit{}, tooMany(countRule, "too many snapshots: there are %d, and %s is %d", facts.Count, countRule, p.maxCount).
			WithHint("remove one with: cloche snapshot rm NAME")
	}
	if p.bytesLeft <= 0 {
		return SnapshotPermit{}, tooMany(bytesRule, "too many bytes in snapshots: they have %d bytes, and %s is %d", facts.Bytes, bytesRule, p.maxBytes).
			WithHint("remove one with: cloche snapshot rm NAME")
	}
	return p, nil
}

// NoSnapshot is the error for a snapshot that does not exist, or not for the caller.
func NoSnapshot(ref string) *api.Error {
	e := api.Errorf(api.CodeNotFound, "there is no snapshot %s", rules.Quote(ref))
	return e.WithHint("cloche snapshot ls lists the ones that exist")
}

// Snapshot returns the snapshot that the sandbox starts from, or false without one.
func (p Permit) Snapshot() (api.Snapshot, bool) {
	if p.snapshot == nil {
		return api.Snapshot{}, false
	}
	return *p.snapshot, true
}

// checkSnapshot judges the snapshot that a sandbox starts from. Whether its image is the same is
// checked when the image is resolved.
func checkSnapshot(d *decision) *api.Error {
	if d.spec.Snapshot == "" {
		return nil
	}
	snap, w := d.facts.Snapshot, d.spec.Workspace
	if snap == nil || !Sees(d.caller, snap.Tenant) {
		e := NoSnapshot(d.spec.Snapshot)
		e.Field = "snapshot"
		return e
	}
	d.spec.Snapshot = snap.ID
	files, root, memory := snap.Scope != api.SnapshotRoot, snap.Scope != api.SnapshotWorkspace, snap.Scope == api.SnapshotMemory
	switch {
	case memory && snap.Tenant != d.caller.Tenant:
		return unsupported("snapshot", "snapshot %s has the memory of a sandbox of tenant %q", rules.Quote(snap.Name), snap.Tenant).WithHint("only sandboxes of that tenant can start from it")
	case memory: // the rest is as in the sandbox that it was made of
	case files && w.Dir != "":
		return api.Invalid("workspace.dir", "the files of snapshot %s would go into a directory of the host", rules.Quote(snap.Name)).
			WithHint("leave workspace out for a private copy, or name a workspace that is new")
	case files && w.ReadOnly:
		return api.Invalid("workspace.read_only", "the files of snapshot %s would go into a workspace that is read-only", rules.Quote(snap.Name)).
			WithHint("leave workspace.read_only out")
	case root && *d.spec.ReadOnlyRoot:
		return unsupported("read_only_root", "snapshot %s changes the root, and this sandbox's is read-only", rules.Quote(snap.Name)).
			WithHint("leave read_only_root out, or choose a profile with a root that can be written")
	}
	d.snapshot = snap
	return nil
}

// checkSnapshotFits compares the snapshot's root with the limits in force.
func checkSnapshotFits(d *decision) *api.Error {
	if d.snapshot == nil || d.snapshot.RootBytes == 0 {
		return nil
	}
	have, l := d.snapshot.RootBytes, d.spec.Limits
	if d.rootBytes > 0 && have > d.rootBytes {
		return api.Invalid(rules.FieldDisk, "the root of snapshot %s has %s, and the root's part of limits.disk_bytes is %s", rules.Quote(d.snapshot.Name), rules.FormatSize(float64(have)), rules.FormatSize(float64(d.rootBytes))).
			WithHint("ask for a limit of more than that, or for a smaller workspace.size_bytes")
	}
	if l.MemoryBytes > 0 && have > l.MemoryBytes/maxRootShare {
		return api.Invalid(rules.FieldMemory, "the root of snapshot %s has %s, and taking it in needs %d times as much memory; limits.memory_bytes is %s",
			rules.Quote(d.snapshot.Name), rules.FormatSize(float64(have)), maxRootShare, rules.FormatSize(float64(l.MemoryBytes))).
			WithHint("ask for limits.memory_bytes of at least %d", have*maxRootShare)
	}
	return nil
}

// checkLayered judges a layered workspace.
func checkLayered(d *decision) *api.Error {
	w := d.spec.Workspace
	if !w.Layered {
		return nil
	}
	const field = "workspace.layered"
	switch {
	case w.ReadOnly:
		return api.Invalid(field, "a workspace that is read-only has no layer").WithHint("leave one of layered and read_only out")
	case w.Dir != "":
		return unsupported(field, "a directory of the host cannot be layered: its files belong to others, who may change them meanwhile").
			WithHint("name a workspace, and copy the files into it")
	case w.Quota == api.QuotaMeasured && (w.SizeBytes > 0 || w.Inodes > 0):
		return unsupported(field, "what is measured is the workspace, and what a layer holds lies beside it").
			WithHint("ask for workspace.quota %q, which holds for both together, or leave layered out", api.QuotaHard)
	case d.facts.NoLayers != nil:
		e := *d.facts.NoLayers
		e.Field = field
		return &e
	}
	return nil
}
