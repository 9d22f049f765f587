package policy

import (
	"maps"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

const (
	// minWorkspace and maxWorkspace are the sizes that a bounded workspace can have.
	minWorkspace = mib
	maxWorkspace = 1 << 43
	// inodeBytes is for how much of a workspace's size it takes one file at least,
	// and usualInodeBytes for how much it does when nobody says.
	inodeBytes      = 4 << 10
	usualInodeBytes = 16 << 10
	usualInodes     = 1024
)

// WorkspaceGrant is what a Permit grants of a private or named workspace.
type WorkspaceGrant struct {
	// SizeBytes and Inodes are what the kernel has to hold it to; 0 is nothing. One
	// that exists has these already.
	SizeBytes, Inodes int64
	// Max is how many named workspaces the tenant may have; 0 is the room's default.
	Max int
}

// Workspace is what is granted of the workspace, unless it is a host directory.
func (p Permit) Workspace() WorkspaceGrant { return p.granted }

// given is true for a bound that this request does not choose: that of a named
// workspace which exists, where it is not to be measured.
func (d *decision) given(field string) bool {
	w := d.spec.Workspace
	isBound := field == fieldWorkspaceSize || field == fieldWorkspaceInodes
	return isBound && w.Name != "" && d.facts.Workspace != nil && w.Quota != api.QuotaMeasured
}

// unbounded is true for a bound that has no default of the profile's here: nothing could
// hold it, or who asks has chosen less than what rules set.
func (d *decision) unbounded(field string) bool {
	w := d.spec.Workspace
	isBound := field == fieldWorkspaceSize || field == fieldWorkspaceInodes
	return isBound && (w.Dir != "" || w.Quota == api.QuotaMeasured || w.Quota == api.QuotaWatched)
}

func checkQuotaMode(w *api.Workspace) *api.Error {
	switch w.Quota {
	case "", api.QuotaHard, api.QuotaMeasured, api.QuotaWatched:
	default:
		return api.Invalid("workspace.quota", "workspace.quota %s is not known", show(string(w.Quota))).
			WithHint("write %q, %q or %q", api.QuotaHard, api.QuotaMeasured, api.QuotaWatched)
	}
	if w.Quota == api.QuotaWatched && (w.Name != "" || w.Dir != "") {
		return api.Invalid("workspace.quota", "workspace.quota %q is for a private workspace, and this one is %s", w.Quota, kindOf(w)).
			WithHint("write %q, or leave it out", api.QuotaMeasured)
	}
	if w.Drop && w.Name == "" {
		return api.Invalid("workspace.drop", "workspace.drop is for a named workspace, and this one is %s", kindOf(w)).
			WithHint("leave it out: a private workspace always goes with its sandbox, and a directory of the host never does")
	}
	if w.Drop && w.ReadOnly {
		return api.Invalid("workspace.drop", "workspace.drop is for a sandbox that has its workspace to write, and this one reads it").
			WithHint("leave one of drop and read_only out")
	}
	return nil
}

func kindOf(w *api.Workspace) string {
	switch {
	case w.Dir != "":
		return "a directory of the host"
	case w.Name != "":
		return "a named one"
	}
	return "private"
}

// checkWorkspaceBound finds what holds the bounds of the workspace, or says why
// nothing can.
func checkWorkspaceBound(d *decision) *api.Error {
	w := d.spec.Workspace
	spaces, _ := limitFor(d.rules, d.caller.Tenant, d.rules.MaxWorkspacesPerTenant, "max_workspaces_per_tenant", "max_workspaces", func(t TenantRule) *int { return t.MaxWorkspaces })
	d.granted = WorkspaceGrant{Max: max(spaces, 0)}
	w.Enforced = ""
	has := d.facts.Workspace
	if w.Name == "" {
		has = nil
	}
	if has != nil {
		d.granted.SizeBytes, d.granted.Inodes = has.SizeBytes, has.Inodes
	}
	switch {
	case w.Volume && (w.SizeBytes > 0 || w.Inodes > 0):
		return d.noVolumeQuota(w)
	case w.Volume:
		return nil
	case w.Quota == api.QuotaMeasured, w.Quota == api.QuotaWatched:
		if rule := d.hardRule(); rule != "" && w.Dir == "" && (has == nil || has.SizeBytes == 0) {
			return denied(rule, "workspace.quota", "workspace.quota is %s, and the operator bounds the workspaces of profile %s", w.Quota, show(d.profile.name)).
				WithHint("leave it out, or name a workspace that has a bound")
		}
		switch {
		case w.SizeBytes == 0 && w.Inodes == 0:
		case w.Quota == api.QuotaWatched:
			w.Enforced = api.HeldByWatch
			if w.Inodes == 0 {
				w.Inodes = usualInodesOf(w.SizeBytes)
			}
		default:
			w.Enforced = api.HeldByMeasure
		}
		return nil
	case has != nil:
		return d.takeBounds(w, has)
	case w.SizeBytes == 0 && w.Inodes == 0:
		return nil
	case w.Dir != "":
		return unsupported(fieldWorkspaceSize, "a bound of workspace.dir was asked for, and nothing holds what is written to a directory of the host").
			WithHint("ask for workspace.quota %q, which looks before and after each command, or leave the bound out", api.QuotaMeasured)
	case w.SizeBytes == 0:
		return api.Invalid(fieldWorkspaceSize, "workspace.inodes is %d, and workspace.size_bytes is not set", w.Inodes).
			WithHint("name a size as well: it is what the kernel holds")
	}
	if w.Quota == api.QuotaHard && w.Name == "" {
		d.demanded[fieldWorkspaceSize] = true
	}
	switch byDefault := d.byDefault(w); {
	case byDefault && d.facts.Projects:
		w.Quota = api.QuotaHard
	case byDefault:
		w.Quota, w.Enforced = api.QuotaWatched, api.HeldByWatch
		if w.Inodes == 0 {
			w.Inodes = usualInodesOf(w.SizeBytes)
		}
		return nil
	}
	if !d.facts.HardQuota.OK {
		return d.noHardQuota(w)
	}
	most := w.SizeBytes / inodeBytes
	switch {
	case w.Inodes == 0:
		w.Inodes = usualInodesOf(w.SizeBytes)
	case w.Inodes > most && d.demanded[fieldWorkspaceInodes] && d.profile.ruled[fieldWorkspaceInodes] == "":
		return api.Invalid(fieldWorkspaceInodes, "workspace.inodes is %d, and a workspace of %s has space for %d", w.Inodes, formatSize(float64(w.SizeBytes)), most).
			WithHint("ask for at most %d, one for each %s, or for a larger workspace", most, formatSize(inodeBytes))
	}
	w.Inodes = min(w.Inodes, most)
	w.Enforced = api.HeldByKernel
	d.granted.SizeBytes, d.granted.Inodes = w.SizeBytes, w.Inodes
	return nil
}

// usualInodesOf is how many files a workspace takes when nobody says.
func usualInodesOf(sizeBytes int64) int64 {
	return min(max(sizeBytes/usualInodeBytes, usualInodes), sizeBytes/inodeBytes)
}

// byDefault is true for a private workspace whose bound nobody asked for. It is watched
// where the kernel could hold it by a filesystem of its own only, which costs each create,
// each write and each end.
func (d *decision) byDefault(w *api.Workspace) bool {
	return w.Name == "" && w.Dir == "" && w.Quota == "" && !d.demanded[fieldWorkspaceSize] && !d.demanded[fieldWorkspaceInodes]
}

// hardRule is the operator's rule that bounds workspaces, which what is only
// measured does not keep to.
func (d *decision) hardRule() string {
	if rule := d.profile.ruled[fieldWorkspaceSize]; rule != "" && d.profile.defaults.WorkspaceBytes > 0 {
		return rule
	}
	return ""
}

// takeBounds are the bounds of a workspace that exists, which stay what they are.
func (d *decision) takeBounds(w *api.Workspace, has *api.WorkspaceInfo) *api.Error {
	for _, b := range []struct {
		field      string
		asked, has int64
		used       *int64
		format     func(float64) string
	}{
		{fieldWorkspaceSize, w.SizeBytes, has.SizeBytes, has.UsedBytes, formatSize},
		{fieldWorkspaceInodes, w.Inodes, has.Inodes, has.UsedInodes, wire},
	} {
		if b.asked == 0 || b.asked == b.has {
			continue
		}
		if b.has == 0 {
			e := api.Errorf(api.CodeConflict, "%s is %s, and workspace %s was made without a bound", b.field, b.format(float64(b.asked)), w.Name)
			e.Field = b.field
			return e.WithHint("leave it out, or ask for workspace.quota %q; a bound is given when a workspace is made", api.QuotaMeasured)
		}
		used := ""
		if b.used != nil {
			used = ", of which " + b.format(float64(*b.used)) + " are used"
		}
		e := api.Errorf(api.CodeConflict, "%s is %s, and workspace %s has a bound of %s%s", b.field, b.format(float64(b.asked)), w.Name, b.format(float64(b.has)), used)
		e.Field = b.field
		return e.WithHint("leave it out to take the bound that it has; another one needs another workspace")
	}
	w.SizeBytes, w.Inodes, w.Enforced = has.SizeBytes, has.Inodes, has.Enforced
	return nil
}

// noHardQuota is what a bound comes to where the kernel cannot hold it: an
// error, or for a built-in default a note.
func (d *decision) noHardQuota(w *api.Workspace) *api.Error {
	reason := d.facts.HardQuota.Reason
	if !d.caller.Operator {
		reason = "the operator sees why"
	}
	for _, field := range []string{fieldWorkspaceSize, fieldWorkspaceInodes} {
		if !d.demanded[field] {
			continue
		}
		e := unsupported(field, "%s was asked for, and this machine cannot hold a workspace to it: %s", field, reason)
		if rule := d.profile.ruled[field]; rule != "" {
			e.Rule = rule
			return e.WithHint("the operator's rule %s requires this; fix what is missing, or remove the rule", rule)
		}
		return e.WithHint("fix what is missing, ask for workspace.quota %q, which checks before and after each command, or %q, which checks while they run, or leave the bound out", api.QuotaMeasured, api.QuotaWatched)
	}
	w.SizeBytes, w.Inodes = 0, 0
	d.unenforced = append(d.unenforced, api.Unenforced{Field: fieldWorkspaceSize, Reason: reason})
	return nil
}

// WorkspacePermit is a granted WorkspaceSpec. Only DecideWorkspace makes a valid
// one.
type WorkspacePermit struct {
	valid  bool
	tenant string
	spec   api.WorkspaceSpec
	max    int
}

// Valid is false for a WorkspacePermit that DecideWorkspace did not make.
func (p WorkspacePermit) Valid() bool { return p.valid }

// Tenant owns the workspace.
func (p WorkspacePermit) Tenant() string { return p.tenant }

// Spec is what was granted, with every default filled in.
func (p WorkspacePermit) Spec() api.WorkspaceSpec {
	s := p.spec
	s.Labels = maps.Clone(s.Labels)
	return s
}

// Max is how many workspaces the tenant may have; 0 is the room's default.
func (p WorkspacePermit) Max() int { return p.max }

// DecideWorkspace grants a named workspace by itself: with the defaults and under
// the ceilings of the default profile. hard says whether the kernel can hold its
// bounds here.
func DecideWorkspace(spec api.WorkspaceSpec, hard api.Enforcement, caller Caller, rules Rules) (WorkspacePermit, error) {
	if spec.Name == "" {
		return WorkspacePermit{}, api.Invalid("name", "the workspace has no name").WithHint("%s", nameHint())
	}
	d := &decision{
		facts: Facts{HardQuota: hard}, caller: caller, rules: rules, demanded: map[string]bool{},
		spec: api.SandboxSpec{
			Workspace: &api.Workspace{Name: spec.Name, SizeBytes: spec.SizeBytes, Inodes: spec.Inodes},
			Labels:    maps.Clone(spec.Labels),
		},
	}
	for _, check := range []func(*decision) *api.Error{
		checkEnabled, checkProfile, applyLocks, checkLabels, checkWorkspace, checkLimits, checkWorkspaceBound,
	} {
		if err := check(d); err != nil {
			err.Field = strings.TrimPrefix(err.Field, "workspace.")
			return WorkspacePermit{}, err
		}
	}
	w := d.spec.Workspace
	return WorkspacePermit{
		valid: true, tenant: caller.Tenant, max: d.granted.Max,
		spec: api.WorkspaceSpec{Name: w.Name, SizeBytes: w.SizeBytes, Inodes: w.Inodes, Labels: d.spec.Labels},
	}, nil
}
