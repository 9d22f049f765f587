package core

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/template"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// maxDiffPage is the largest page of a diff.
const maxDiffPage = 10_000

// Diff returns the changes of a sandbox to its layered workspace or its root.
func (s *Service) Diff(ctx context.Context, caller Caller, ref string, o api.DiffOptions) (api.Diff, error) {
	switch {
	case o.Limit < 0 || o.Limit > maxDiffPage:
		return api.Diff{}, api.Invalid("limit", "a page of %d was asked for", o.Limit).WithHint("0 to %d", maxDiffPage)
	case o.Scope != "" && o.Scope != api.DiffWorkspace && o.Scope != api.DiffRoot:
		return api.Diff{}, api.Invalid("scope", "there is no diff of %q", bound(string(o.Scope))).
			WithHint("%s or %s", api.DiffWorkspace, api.DiffRoot)
	}
	var diff api.Diff
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return diff, s.refused(ctx, caller, policy.VerbDiff, "", nil, err)
	}
	err = s.recorded(ctx, caller, policy.VerbDiff, sb.ID, nil, func() (err error) {
		diff, err = s.opts.Sandboxes.Diff(ctx, caller, sb.ID, o)
		return err
	})
	return diff, err
}

// CommitWorkspace makes the changes of an ended sandbox to its layered workspace permanent.
func (s *Service) CommitWorkspace(ctx context.Context, caller Caller, ref string) (api.Diff, error) {
	return s.settleWorkspace(ctx, caller, policy.VerbCommit, ref, s.opts.Sandboxes.CommitWorkspace)
}

// RollbackWorkspace discards the changes of an ended sandbox to its layered workspace.
func (s *Service) RollbackWorkspace(ctx context.Context, caller Caller, ref string) (api.Diff, error) {
	return s.settleWorkspace(ctx, caller, policy.VerbRollback, ref, s.opts.Sandboxes.RollbackWorkspace)
}

// settleWorkspace is recorded before it runs, because it cannot be undone.
func (s *Service) settleWorkspace(ctx context.Context, caller Caller, verb policy.Verb, ref string, do func(context.Context, policy.Caller, string) (api.Diff, error)) (api.Diff, error) {
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.Diff{}, s.refused(ctx, caller, verb, "", nil, err)
	}
	d := details{"workspace": sb.Workspace.Name}
	if err := s.intend(ctx, caller, verb, sb.ID, d); err != nil {
		return api.Diff{}, err
	}
	diff, err := do(ctx, caller, sb.ID)
	if err == nil {
		d["added"], d["changed"], d["removed"] = strconv.FormatInt(diff.Added, 10), strconv.FormatInt(diff.Changed, 10), strconv.FormatInt(diff.Removed, 10)
	}
	return diff, s.done(context.WithoutCancel(ctx), caller, verb, sb.ID, d, err)
}

// CreateSnapshot creates a snapshot of the files of a sandbox. It belongs to the sandbox's tenant.
func (s *Service) CreateSnapshot(ctx context.Context, caller Caller, ref string, req api.SnapshotRequest) (api.Snapshot, error) {
	d := details{"snapshot_name": bound(req.Name), "scope": bound(string(req.Scope))}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.Snapshot{}, s.refused(ctx, caller, policy.VerbSnapshot, "", d, err)
	}
	facts := policy.SnapshotFacts{Tenant: sb.Tenant}
	if facts.Count, facts.Bytes, err = s.opts.Snapshots.Usage(sb.Tenant); err != nil {
		return api.Snapshot{}, s.broken("count snapshots", err)
	}
	permit, err := policy.DecideSnapshot(req, facts, s.rules())
	if err != nil {
		return api.Snapshot{}, s.refused(ctx, caller, policy.VerbSnapshot, sb.ID, d, err)
	}
	do := s.opts.Sandboxes.Snapshot
	if req.Scope == api.SnapshotMemory {
		do = s.opts.Sandboxes.SnapshotMemory
		if err := s.decideMemory(ctx, caller, sb.ID); err != nil {
			return api.Snapshot{}, s.refused(ctx, caller, policy.VerbSnapshot, sb.ID, d, err)
		}
	}
	if err := s.intend(ctx, caller, policy.VerbSnapshot, sb.ID, d); err != nil {
		return api.Snapshot{}, err
	}
	snap, err := do(ctx, caller, sb.ID, permit)
	if err == nil {
		d["snapshot"], d["bytes"] = snap.ID, strconv.FormatInt(snap.SizeBytes, 10)
		if snap.MemorySum != "" {
			d["memory_sum"] = snap.MemorySum
		}
	}
	return snap, s.done(context.WithoutCancel(ctx), caller, policy.VerbSnapshot, sb.ID, d, err)
}

// decideMemory decides whether the caller can fork a sandbox, which a snapshot with memory is for.
func (s *Service) decideMemory(ctx context.Context, caller Caller, ref string) error {
	sb, spec, err := s.opts.Sandboxes.ForkSpec(ctx, caller, ref)
	if err != nil {
		return err
	}
	_, err = s.decideForks(ctx, caller, sb, spec, []string{sb.Name})
	return err
}

// Snapshots lists the caller's snapshots, newest first.
func (s *Service) Snapshots(_ context.Context, caller Caller) (api.SnapshotList, error) {
	list, err := s.opts.Snapshots.List(func(tenant string) bool { return policy.Sees(caller, tenant) })
	if err != nil {
		return api.SnapshotList{}, s.broken("list snapshots", err)
	}
	return api.SnapshotList{Snapshots: list}, nil
}

// GetSnapshot returns the record of a snapshot, by ID or name.
func (s *Service) GetSnapshot(_ context.Context, caller Caller, ref string) (api.Snapshot, error) {
	snap, err := s.opts.Snapshots.Find(ref, caller.Tenant, func(tenant string) bool { return policy.Sees(caller, tenant) })
	if errors.Is(err, fs.ErrNotExist) {
		return api.Snapshot{}, policy.NoSnapshot(ref).WithCause(err)
	}
	if err != nil {
		return api.Snapshot{}, s.broken("find a snapshot", err)
	}
	return snap, nil
}

// RemoveSnapshot removes a snapshot. Sandboxes that were created from it have copies.
func (s *Service) RemoveSnapshot(ctx context.Context, caller Caller, ref string) error {
	d := details{"snapshot": bound(ref)}
	snap, err := s.GetSnapshot(ctx, caller, ref)
	if err != nil {
		return s.refused(ctx, caller, policy.VerbRemoveSnapshot, "", d, err)
	}
	d["snapshot"] = snap.ID
	if err := s.intend(ctx, caller, policy.VerbRemoveSnapshot, "", d); err != nil {
		return err
	}
	err = s.opts.Snapshots.Remove(snap.Tenant, snap.ID)
	if errors.Is(err, fs.ErrNotExist) {
		err = policy.NoSnapshot(ref).WithCause(err) // another caller removed it first
	}
	if err != nil {
		err = s.broken("remove a snapshot", err)
	}
	return s.done(ctx, caller, policy.VerbRemoveSnapshot, "", d, err)
}

// broken classifies an error of the store that has no code.
func (s *Service) broken(what string, err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	s.log.Error(what, "error", err)
	return api.Errorf(api.CodeInternal, "it was not possible to %s", what).WithHint("the daemon's log has the details").WithCause(err)
}

// imageOfSnapshot returns the image of a sandbox that starts from a snapshot and names no image. A
// changed root belongs to one digest: if the name now points to another image, the sandbox needs
// the digest itself. The root of the host image belongs to this machine in its present state.
func (s *Service) imageOfSnapshot(snap api.Snapshot) string {
	if snap.Scope == api.SnapshotWorkspace || snap.Image == api.DefaultImage {
		return snap.Image
	}
	if img, _, here := s.opts.Images.Look(snap.Image); here && img.Digest == snap.ImageDigest {
		return snap.Image
	}
	if _, _, here := s.opts.Images.Look(snap.ImageDigest); here {
		return snap.ImageDigest
	}
	return snap.Image
}

// snapshotFacts collects the facts about snapshots and layers of a request. A sandbox that starts
// from a snapshot has its image, unless it names one.
func (s *Service) snapshotFacts(ctx context.Context, caller Caller, spec *api.SandboxSpec, facts *policy.Facts) error {
	if spec.Workspace != nil && spec.Workspace.Layered {
		if e, ok := errors.AsType[*api.Error](workspace.LayersUsable()); ok {
			facts.NoLayers = e
		}
	}
	if spec.Snapshot == "" {
		return nil
	}
	snap, err := s.GetSnapshot(ctx, caller, spec.Snapshot)
	if errors.Is(err, api.ErrNotFound) {
		return nil // policy reports it
	}
	if err != nil {
		return err
	}
	facts.Snapshot = &snap
	if snap.Scope == api.SnapshotMemory {
		return s.memorySpec(caller, snap, spec)
	}
	if spec.Image == "" {
		spec.Image = s.imageOfSnapshot(snap)
	}
	return nil
}

// memorySpec completes the request of a sandbox that starts from a snapshot with memory: it is as the sandbox was that the
// snapshot was made of, except for what a fork has of its own.
func (s *Service) memorySpec(caller Caller, snap api.Snapshot, spec *api.SandboxSpec) error {
	if snap.Tenant != caller.Tenant {
		return nil // policy refuses it
	}
	_, whole, _, err := s.opts.Sandboxes.MemorySpec(snap)
	if err != nil {
		return err
	}
	if *spec, err = template.Complete(*spec, whole); err != nil {
		return err
	}
	return policy.AuthorizeSpec(caller, *spec)
}

// createFromMemory is the part of a create from a snapshot with memory that the manager does. The rules of the network are as
// they were in the sandbox that the snapshot was made of, and as the operator's rules are now.
func (s *Service) createFromMemory(ctx context.Context, permit policy.Permit, snap api.Snapshot, progress func(string)) (api.Sandbox, error) {
	o := sandbox.StartOptions{Permit: permit}
	parent, _, grant, err := s.opts.Sandboxes.MemorySpec(snap)
	if err != nil {
		return api.Sandbox{}, err
	}
	if grant != nil {
		next, err := policy.RefreshEgress(*grant, policy.SettingsOf(parent), s.rules(), time.Now())
		if err != nil {
			return api.Sandbox{}, err
		}
		o.Egress = &next
	}
	sb, err := s.opts.Sandboxes.CreateFromMemory(ctx, o, progress)
	if e, ok := errors.AsType[*api.Error](err); ok && MemoryRefused(err) {
		err = api.Errorf(e.Code, "snapshot %s: %s", snap.Name, e.Message).WithHint("make a snapshot with memory of a new sandbox").WithCause(err)
	}
	return sb, err
}

// MemoryRefused reports whether a resume failed because the saved memory was changed, or because this daemon cannot continue
// from it. Another try fails too.
func MemoryRefused(err error) bool { return errors.Is(err, engine.ErrMemoryRefused) }
