package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// profile is one profile with the operator's rules applied.
type profile struct {
	name     string
	defaults bounds
	// ceilings are the maximum values; zero is no ceiling.
	ceilings bounds
	// ruled holds the limits whose default, ceiling or lock is set by a rule of the operator,
	// with the name of that rule.
	ruled map[string]string
	// raised are the limits whose ceiling is set by a rule.
	raised map[string]bool
	// engine is the engine for "auto" in this profile. Empty uses the general setting.
	engine            string
	image             string
	network           string
	readOnlyRoot      bool
	workspaceReadOnly bool
	mountsReadOnly    bool
	locked            []string
	clamp             []string
	// egress is the default egress of its sandboxes and what they can request. egressRuled means
	// that a rule of the operator sets it.
	egress       []EgressItem
	egressRuled  bool
	egressDeny   []EgressItem
	egressLimits EgressLimitRule
	// liftsWorkspace means that a rule removes the limit of private workspaces.
	liftsWorkspace bool
}

// Values of profile.network and of the request's network.
const (
	networkNone = api.NetworkNone
	networkOn   = api.NetworkOn
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// builtinNames returns the names of the built-in profiles.
func builtinNames() []string {
	return []string{api.DefaultProfile, "default", "offline_readonly", "network_basic", "network_extended"}
}

// builtinProfile returns a built-in profile, or false if there is none of that name. Each call
// returns a new value, so that it can be changed safely. Hardware limits have one generous ceiling
// for all profiles, which catches typing errors. The operator can lower it.
func builtinProfile(name string) (profile, bool) {
	p := profile{
		name: name,
		defaults: bounds{Limits: api.Limits{
			CPUs: 2, MemoryBytes: 2 * gib, Pids: 1024, DiskBytes: 6 * gib, TmpBytes: 512 * mib, ShmBytes: 64 * mib,
			MaxOutputBytes: api.DefaultMaxOutput,
		}},
		ceilings: bounds{Limits: api.Limits{
			CPUs: 64, MemoryBytes: 64 * gib, Pids: 32768, DiskBytes: 256 * gib, TmpBytes: 64 * gib, ShmBytes: 64 * gib,
			MaxOutputBytes: api.MaxMaxOutput,
		}},
		image:   api.DefaultImage,
		network: networkNone,
		clamp:   []string{fieldTimeout},
		ruled:   map[string]string{},
		raised:  map[string]bool{},
	}
	box := func(cpus float64, memory, pids int64, maxTimeoutMS int64) {
		p.defaults.CPUs, p.defaults.MemoryBytes, p.defaults.Pids = cpus, memory, pids
		p.defaults.TimeoutMS, p.ceilings.TimeoutMS = 30_000, maxTimeoutMS
		p.readOnlyRoot = true
	}
	switch name {
	case api.DefaultProfile:
	case "default":
		box(1, 512*mib, 128, 120_000)
	case "offline_readonly":
		box(0.5, 256*mib, 64, 60_000)
		p.workspaceReadOnly = true
		p.locked = []string{fieldNetwork, fieldWorkspaceReadOnly, fieldReadOnlyRoot}
	case "network_basic":
		box(1, 512*mib, 128, 120_000)
		p.network, p.egress = networkOn, defaultBundles()
	case "network_extended":
		box(2, 1024*mib, 256, 300_000)
		p.network, p.readOnlyRoot, p.egress = networkOn, false, defaultBundles()
	default:
		return profile{}, false
	}
	return p, true
}

// Profiles returns the names of all profiles under the rules, sorted.
func Profiles(rules Rules) []string {
	names := slices.AppendSeq(builtinNames(), maps.Keys(rules.Profiles))
	slices.Sort(names)
	return slices.Compact(names)
}

// resolveProfile returns a profile with the rules applied, or false if there is none of that name.
func resolveProfile(name string, rules Rules) (profile, bool) {
	if name == "" {
		name = cmp.Or(rules.Defaults.Profile, api.DefaultProfile)
	}
	p, known := builtinProfile(name)
	rule, changed := rules.Profiles[name]
	if !known {
		if !changed {
			return profile{}, false
		}
		base := rule.Extends
		if base == "" {
			base = api.DefaultProfile
		}
		if p, known = builtinProfile(base); !known {
			return profile{}, false
		}
		p.name = name
	}
	if changed {
		rule.apply(&p)
	}
	rules.Defaults.apply(&p)
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
			if l.field == fieldWorkspaceSize {
				p.liftsWorkspace = v == 0
			}
		}
		if v, ok := l.ruled(&r.Ceilings); ok {
			l.set(&p.ceilings, v)
			p.ruled[l.field] = ruleName(p.name, "ceilings", l.key)
			p.raised[l.field] = true
		}
	}
	if r.Image != "" {
		p.image = r.Image
	}
	p.engine = r.Engine
	if r.Network != "" {
		p.network = r.Network
	}
	if r.Egress.Allow != nil {
		p.egress, p.egressRuled = slices.Clone(*r.Egress.Allow), true
	}
	p.egressDeny, p.egressLimits = r.Egress.Deny, r.Egress.Limits
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

// ruleName returns the name of a part of a profile in refusals and adjustments: the path of the key
// that would change it.
func ruleName(profile string, parts ...string) string {
	return "profiles." + profile + "." + strings.Join(parts, ".")
}

// ceilingBy returns what sets a ceiling: a key of the file, or the built-in profile.
func (p *profile) ceilingBy(l limit) string {
	if p.raised[l.field] {
		return ruleName(p.name, "ceilings", l.key)
	}
	return byBuiltin
}

func (p *profile) locks(field string) bool { return slices.Contains(p.locked, field) }

func (p *profile) clamps(field string) bool { return slices.Contains(p.clamp, field) }

// profileBy returns what defines a profile.
func (r Rules) profileBy(name string) string {
	if _, changed := r.Profiles[name]; changed {
		return "profiles." + name
	}
	return byBuiltin
}

func noProfile(name string, rules Rules) *api.Error {
	e := api.Invalid("profile", "there is no profile %s", show(name))
	return e.WithHint("the profiles are %s", strings.Join(Profiles(rules), ", "))
}
