package policy

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// checkHostFiles refuses what an engine that shares no files with this host cannot do. Its
// workspaces are its own volumes, which other engines cannot use.
func checkHostFiles(d *decision) *api.Error {
	w := d.spec.Workspace
	w.Volume = !d.engine.SharesHostFS && !d.engine.CopiesFiles
	if err := d.checkKeeper(w); err != nil {
		return err
	}
	if d.engine.OwnImages {
		if err := d.checkService(w); err != nil {
			return err
		}
	}
	if !w.Volume {
		return nil
	}
	where := "engine " + d.engine.Name + " shares no files with this host"
	switch {
	case len(d.mounts) > 0:
		return unsupported(rules.ElementAt("mounts", 0)+".source", "%s: no directory of it can be mounted", where).
			WithHint("copy the files in, use a workspace, or another engine")
	case d.workspace != nil:
		return unsupported("workspace.dir", "%s: no directory of it can be the workspace", where).
			WithHint("use a private or named workspace, which is a volume of the engine's, or another engine")
	case len(d.skills) > 0:
		return unsupported(rules.ElementAt("skills", 0), "%s: the skills of this host cannot be mounted", where).
			WithHint("copy the skill in, or use another engine")
	case d.image.Ref == api.DefaultImage && !d.engine.OwnImages:
		return unsupported("image", "%s: the image %q is made of its tools", where, api.DefaultImage).
			WithHint("name an image, such as debian:12, or another engine")
	case d.snapshot != nil && d.snapshot.Scope != api.SnapshotRoot:
		return unsupported("snapshot", "%s: the files of snapshot %s cannot be put into its workspace", where, rules.Quote(d.snapshot.Name)).
			WithHint("use another engine, or copy the files in")
	case w.Layered:
		return unsupported("workspace.layered", "%s: what is written to its workspace cannot be kept apart", where).
			WithHint("leave layered out, or use another engine")
	case w.Quota == api.QuotaMeasured, w.Quota == api.QuotaWatched:
		return unsupported("workspace.quota", "%s: its workspace cannot be measured", where).
			WithHint("leave the bound out, or use another engine")
	}
	return nil
}

// checkService refuses what a service whose sandboxes have copies of files cannot do, and notes which
// defaults it does not enforce.
func (d *decision) checkService(w *api.Workspace) *api.Error {
	at := "engine " + d.engine.Name
	switch {
	case *d.spec.ReadOnlyRoot:
		return unsupported("read_only_root", "%s: the root of its sandboxes cannot be read-only", at).
			WithHint("set read_only_root to false, or use another engine")
	case w.Layered:
		return unsupported("workspace.layered", "%s: what is written to a copy of the workspace cannot be kept apart", at).
			WithHint("leave layered out, or use another engine")
	}
	b := d.bounds()
	for _, field := range []string{rules.FieldTmp, rules.FieldShm} {
		if d.demanded[field] {
			return unsupported(field, "%s: its service chooses the size", at).WithHint("leave %s out, or use another engine", field)
		}
		d.unenforced = append(d.unenforced, api.Unenforced{Field: field, Reason: "the service chooses the size"})
	}
	b.TmpBytes, b.ShmBytes = 0, 0
	d.setBounds(b)
	return nil
}

// checkKeeper refuses a named workspace that another engine or the daemon keeps.
func (d *decision) checkKeeper(w *api.Workspace) *api.Error {
	has := d.facts.Workspace
	if w.Name == "" || has == nil {
		return nil
	}
	switch {
	case has.Engine == "" && w.Volume:
		e := api.Errorf(api.CodeConflict, "workspace %s is a directory of the daemon's, and engine %s shares no files with it", w.Name, d.engine.Name)
		e.Field = "workspace.name"
		return e.WithHint("name another workspace, or use another engine")
	case has.Engine != "" && (!w.Volume || has.Engine != d.engine.Name):
		e := api.Errorf(api.CodeConflict, "workspace %s is a volume of engine %s, and this sandbox would be one of engine %s's", w.Name, has.Engine, d.engine.Name)
		e.Field = "workspace.name"
		return e.WithHint("name another workspace, or use engine %s", has.Engine)
	}
	return nil
}

// noVolumeQuota handles a limit for a workspace that is a volume, which cannot be limited: an
// error, or for a built-in default a note.
func (d *decision) noVolumeQuota(w *api.Workspace) *api.Error {
	d.facts.HardQuota = api.Enforcement{Reason: "it is a volume of engine " + d.engine.Name + ", which bounds none"}
	return d.noHardQuota(w)
}

// FieldWorkspaceSockets names in Unenforced the sockets of the host in a workspace's
// directory.
const FieldWorkspaceSockets = "workspace.dir.sockets"

// FieldMountSockets names those in a mount, by its place in the request.
func FieldMountSockets(i int) string { return rules.ElementAt("mounts", i) + ".sockets" }

// checkMountSockets reports directories of the host in which the engine does not prevent programs
// from using unix sockets.
func checkMountSockets(d *decision) *api.Error {
	tell := func(field string, readOnly bool) {
		key := api.EnforcesMountSockets
		if readOnly {
			key = api.EnforcesReadOnlyMountSockets
		}
		if can, said := d.engine.Enforces[key]; said && !can.OK {
			d.unenforced = append(d.unenforced, api.Unenforced{Field: field, Reason: can.Reason})
		}
	}
	for i := range d.spec.Mounts {
		tell(FieldMountSockets(i), d.spec.Mounts[i].ReadOnly)
	}
	if d.workspace != nil {
		tell(FieldWorkspaceSockets, d.spec.Workspace.ReadOnly)
	}
	return nil
}
