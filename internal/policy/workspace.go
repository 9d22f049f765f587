package policy

import (
	"maps"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const (
	// inodeBytes is the minimum of a workspace's size per file, and usualInodeBytes the default.
	inodeBytes      = 4 << 10
	usualInodeBytes = 16 << 10
	usualInodes     = 1024
)

// WorkspaceGrant is what a Permit grants for a private or named workspace.
type WorkspaceGrant struct {
	// SizeBytes and Inodes are the limits that the kernel must enforce; 0 is no limit. An
	// existing workspace already has them.
	SizeBytes, Inodes int64
	// Max is the maximum number of the tenant's named workspaces; 0 is the store's default.
	Max int
}

// Workspace returns what is granted for the workspace, unless it is a host directory.
func (p Permit) Workspace() WorkspaceGrant { return p.granted }

// given reports whether this request cannot choose a limit: it is the limit of an existing named
// workspace that is not measured.
func (d *decision) given(field string) bool {
	w := d.spec.Workspace
	isBound := field == rules.FieldWorkspaceSize || field == rules.FieldWorkspaceInodes
	return isBound && w.Name != "" && d.facts.Workspace != nil && w.Quota != api.QuotaMeasured
}

// unbounded reports whether the profile's default does not apply to a limit here: nothing could
// enforce it, or the request chose a weaker mode than the rules set.
func (d *decision) unbounded(field string) bool {
	w := d.spec.Workspace
	isBound := field == rules.FieldWorkspaceSize || field == rules.FieldWorkspaceInodes
	return isBound && (w.Dir != "" || w.Quota == api.QuotaMeasured || w.Quota == api.QuotaWatched)
}

func checkQuotaMode(w *api.Workspace) *api.Error {
	switch w.Quota {
	case "", api.QuotaHard, api.QuotaMeasured, api.QuotaWatched:
	default:
		return api.Invalid("workspace.quota", "workspace.quota %s is not known", rules.Quote(string(w.Quota))).
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

// checkWorkspaceBound finds what enforces the limits of the workspace, or returns why nothing can.
func checkWorkspaceBound(d *decision) *api.Error {
	w := d.spec.Workspace
	spaces, _ := rules.LimitFor(d.rules, d.caller.Tenant, d.rules.MaxWorkspacesPerTenant, "max_workspaces_per_tenant", "max_workspaces", func(t rules.TenantRule) *int { return t.MaxWorkspaces })
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
			return rules.Denied(rule, "workspace.quota", "workspace.quota is %s, and the operator bounds the workspaces of profile %s", w.Quota, rules.Quote(d.profile.Name)).
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
		return unsupported(rules.FieldWorkspaceSize, "a bound of workspace.dir was asked for, and nothing holds what is written to a directory of the host").
			WithHint("ask for workspace.quota %q, which looks before and after each command, or leave the bound out", api.QuotaMeasured)
	case w.SizeBytes == 0:
		return api.Invalid(rules.FieldWorkspaceSize, "workspace.inodes is %d, and workspace.size_bytes is not set", w.Inodes).
			WithHint("name a size as well: it is what the kernel holds")
	}
	if w.Quota == api.QuotaHard && w.Name == "" {
		d.demanded[rules.FieldWorkspaceSize] = true
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
	case w.Inodes > most && d.demanded[rules.FieldWorkspaceInodes] && d.profile.Ruled[rules.FieldWorkspaceInodes] == "":
		return api.Invalid(rules.FieldWorkspaceInodes, "workspace.inodes is %d, and a workspace of %s has space for %d", w.Inodes, rules.FormatSize(float64(w.SizeBytes)), most).
			WithHint("ask for at most %d, one for each %s, or for a larger workspace", most, rules.FormatSize(inodeBytes))
	}
	w.Inodes = min(w.Inodes, most)
	w.Enforced = api.HeldByKernel
	d.granted.SizeBytes, d.granted.Inodes = w.SizeBytes, w.Inodes
	return nil
}

// usualInodesOf returns the default number of files of a workspace.
func usualInodesOf(sizeBytes int64) int64 {
	return min(max(sizeBytes/usualInodeBytes, usualInodes), sizeBytes/inodeBytes)
}

// byDefault reports whether a private workspace has only the default limit. Such a workspace is
// watched if the kernel could enforce the limit only with a separate filesystem, which would slow
// down each create, each write and each end.
func (d *decision) byDefault(w *api.Workspace) bool {
	return w.Name == "" && w.Dir == "" && w.Quota == "" && !d.demanded[rules.FieldWorkspaceSize] && !d.demanded[rules.FieldWorkspaceInodes]
}

// hardRule returns the operator's rule that limits workspaces. A workspace that is only measured
// does not satisfy it.
func (d *decision) hardRule() string {
	if rule := d.profile.Ruled[rules.FieldWorkspaceSize]; rule != "" && d.profile.Defaults.WorkspaceBytes > 0 {
		return rule
	}
	return ""
}

// takeBounds uses the limits of an existing workspace, which never change.
func (d *decision) takeBounds(w *api.Workspace, has *api.WorkspaceInfo) *api.Error {
	for _, b := range []struct {
		field      string
		asked, has int64
		used       *int64
		format     func(float64) string
	}{
		{rules.FieldWorkspaceSize, w.SizeBytes, has.SizeBytes, has.UsedBytes, rules.FormatSize},
		{rules.FieldWorkspaceInodes, w.Inodes, has.Inodes, has.UsedInodes, rules.FormatNumber},
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

// noHardQuota handles a limit that the kernel cannot enforce: an error, or for a built-in default a
// note.
func (d *decision) noHardQuota(w *api.Workspace) *api.Error {
	reason := d.facts.HardQuota.Reason
	if !d.caller.Operator {
		reason = "the operator sees why"
	}
	for _, field := range []string{rules.FieldWorkspaceSize, rules.FieldWorkspaceInodes} {
		if !d.demanded[field] {
			continue
		}
		e := unsupported(field, "%s was asked for, and this machine cannot hold a workspace to it: %s", field, reason)
		if rule := d.profile.Ruled[field]; rule != "" {
			e.Rule = rule
			return e.WithHint("the operator's rule %s requires this; fix what is missing, or remove the rule", rule)
		}
		return e.WithHint("fix what is missing, ask for workspace.quota %q, which checks before and after each command, or %q, which checks while they run, or leave the bound out", api.QuotaMeasured, api.QuotaWatched)
	}
	w.SizeBytes, w.Inodes = 0, 0
	d.unenforced = append(d.unenforced, api.Unenforced{Field: rules.FieldWorkspaceSize, Reason: reason})
	return nil
}

// WorkspacePermit is a granted WorkspaceSpec. Only DecideWorkspace returns a valid one.
type WorkspacePermit struct {
	valid  bool
	tenant string
	spec   api.WorkspaceSpec
	max    int
}

// Valid reports whether DecideWorkspace returned p.
func (p WorkspacePermit) Valid() bool { return p.valid }

// Tenant returns the owner of the workspace.
func (p WorkspacePermit) Tenant() string { return p.tenant }

// Spec returns what was granted, with defaults filled in.
func (p WorkspacePermit) Spec() api.WorkspaceSpec {
	s := p.spec
	s.Labels = maps.Clone(s.Labels)
	return s
}

// Max returns the maximum number of the tenant's workspaces; 0 is the store's default.
func (p WorkspacePermit) Max() int { return p.max }

// DecideWorkspace grants a named workspace on its own, with the defaults and ceilings of the
// default profile. hard says whether the kernel can enforce its limits here.
func DecideWorkspace(spec api.WorkspaceSpec, hard api.Enforcement, caller Caller, set rules.Rules) (WorkspacePermit, error) {
	if spec.Name == "" {
		return WorkspacePermit{}, api.Invalid("name", "the workspace has no name").WithHint("%s", rules.NameHint())
	}
	d := &decision{
		facts: Facts{HardQuota: hard}, caller: caller, rules: set, demanded: map[string]bool{},
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
