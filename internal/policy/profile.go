package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche"
)

// profile is one profile with the operator's rules applied.
type profile struct {
	name     string
	defaults cloche.Limits
	// ceilings are the most that is granted; zero is none.
	ceilings cloche.Limits
	// ruled holds the limits whose default, ceiling or lock a rule of the operator set,
	// with the name of that rule.
	ruled             map[string]string
	image             string
	network           string
	readOnlyRoot      bool
	workspaceReadOnly bool
	mountsReadOnly    bool
	locked            []string
	clamp             []string
}

// The values of profile.network and of the request's network.
const (
	networkNone = "none"
	networkOn   = "on"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// builtinProfiles are made anew for each caller, so that nobody can change
// them. Limits of hardware have one generous ceiling for all: it stops typing
// errors and is the operator's to lower.
func builtinProfiles() map[string]profile {
	base := profile{
		defaults: cloche.Limits{
			CPUs: 2, MemoryBytes: 2 * gib, Pids: 1024, DiskBytes: 4 * gib,
			MaxOutputBytes: cloche.DefaultMaxOutput,
		},
		ceilings: cloche.Limits{
			CPUs: 64, MemoryBytes: 64 * gib, Pids: 32768, DiskBytes: 256 * gib,
			MaxOutputBytes: cloche.MaxMaxOutput,
		},
		image:   cloche.DefaultImage,
		network: networkNone,
		clamp:   []string{fieldTimeout},
	}
	box := func(cpus float64, memory, pids int64, maxTimeoutMS int64) profile {
		p := base
		p.defaults.CPUs, p.defaults.MemoryBytes, p.defaults.Pids = cpus, memory, pids
		p.defaults.TimeoutMS, p.ceilings.TimeoutMS = 30_000, maxTimeoutMS
		p.readOnlyRoot = true
		return p
	}
	standard := box(1, 512*mib, 128, 120_000)

	offline := box(0.5, 256*mib, 64, 60_000)
	offline.workspaceReadOnly = true
	offline.locked = []string{fieldNetwork, fieldWorkspaceReadOnly, fieldReadOnlyRoot}

	basic := standard
	basic.network = networkOn

	extended := box(2, 1024*mib, 256, 300_000)
	extended.network, extended.readOnlyRoot = networkOn, false

	all := map[string]profile{
		cloche.DefaultProfile: base,
		"default":             standard,
		"offline_readonly":    offline,
		"network_basic":       basic,
		"network_extended":    extended,
	}
	for name, p := range all {
		p.name = name
		p.ruled = map[string]string{}
		p.locked, p.clamp = slices.Clone(p.locked), slices.Clone(p.clamp)
		all[name] = p
	}
	return all
}

// Profiles lists the names of every profile that the rules leave or add, sorted.
func Profiles(rules Rules) []string {
	names := builtinProfiles()
	for name := range rules.Profiles {
		names[name] = profile{}
	}
	return slices.Sorted(maps.Keys(names))
}

// resolveProfile finds a profile and applies the rules to it; false when there
// is none of that name.
func resolveProfile(name string, rules Rules) (profile, bool) {
	if name == "" {
		name = cloche.DefaultProfile
	}
	builtin := builtinProfiles()
	p, known := builtin[name]
	rule, changed := rules.Profiles[name]
	if !known {
		if !changed {
			return profile{}, false
		}
		base := rule.Extends
		if base == "" {
			base = cloche.DefaultProfile
		}
		if p, known = builtin[base]; !known {
			return profile{}, false
		}
		p.name = name
	}
	if changed {
		rule.apply(&p)
	}
	for _, l := range limits() {
		l.lowerDefault(&p)
	}
	return p, true
}

func (r ProfileRule) apply(p *profile) {
	for _, l := range limits() {
		if v, ok := l.ruled(&r.Defaults); ok {
			l.set(&p.defaults, v)
			p.ruled[l.field] = ruleName(p.name, "defaults", l.key)
		}
		if v, ok := l.ruled(&r.Ceilings); ok {
			l.set(&p.ceilings, v)
			p.ruled[l.field] = ruleName(p.name, "ceilings", l.key)
		}
	}
	if r.Image != "" {
		p.image = r.Image
	}
	if r.Network != "" {
		p.network = r.Network
	}
	setBool(&p.readOnlyRoot, r.ReadOnlyRoot)
	setBool(&p.workspaceReadOnly, r.WorkspaceReadOnly)
	setBool(&p.mountsReadOnly, r.MountsReadOnly)
	if r.Locked != nil {
		p.locked = slices.Clone(*r.Locked)
		for _, field := range p.locked {
			if isLimit(field) && p.ruled[field] == "" {
				p.ruled[field] = ruleName(p.name, "locked", field)
			}
		}
	}
	if r.Clamp != nil {
		p.clamp = slices.Clone(*r.Clamp)
	}
}

func setBool(to, from *bool) {
	if from != nil {
		*to = *from
	}
}

// ruleName is how refusals and adjustments call a part of a profile: the path
// of the key that would change it.
func ruleName(profile string, parts ...string) string {
	return "profiles." + profile + "." + strings.Join(parts, ".")
}

func (p *profile) locks(field string) bool  { return slices.Contains(p.locked, field) }
func (p *profile) clamps(field string) bool { return slices.Contains(p.clamp, field) }

func checkProfile(d *decision) *cloche.Error {
	p, ok := resolveProfile(d.spec.Profile, d.rules)
	if !ok {
		return noProfile(d.spec.Profile, d.rules)
	}
	if p.network != networkNone {
		e := unsupported("profile", "profile %s gives its sandboxes a network, and this build has no egress: every sandbox is offline", show(p.name))
		return e.WithHint("choose a profile without network, such as %q or \"default\"", cloche.DefaultProfile)
	}
	d.profile = p
	d.spec.Profile = p.name
	if d.spec.ReadOnlyRoot == nil {
		d.spec.ReadOnlyRoot = new(p.readOnlyRoot)
	}
	if d.spec.Workspace == nil {
		d.spec.Workspace = &cloche.Workspace{ReadOnly: p.workspaceReadOnly}
	}
	if d.spec.Image == "" {
		d.spec.Image = p.image
	}
	return nil
}

func noProfile(name string, rules Rules) *cloche.Error {
	e := cloche.Invalid("profile", "there is no profile %s", show(name))
	return e.WithHint("the profiles are %s", strings.Join(Profiles(rules), ", "))
}
