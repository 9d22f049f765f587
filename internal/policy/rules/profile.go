package rules

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// Profile is one profile with the operator's rules applied.
type Profile struct {
	Name     string
	Defaults Bounds
	// ceilings are the maximum values; zero is no ceiling.
	Ceilings Bounds
	// ruled holds the limits whose default, ceiling or lock is set by a rule of the operator,
	// with the name of that rule.
	Ruled map[string]string
	// raised are the limits whose ceiling is set by a rule.
	raised map[string]bool
	// engine is the engine for "auto" in this profile. Empty uses the general setting.
	Engine            string
	Image             string
	Network           string
	ReadOnlyRoot      bool
	WorkspaceReadOnly bool
	MountsReadOnly    bool
	Locked            []string
	clamp             []string
	// egress is the default egress of its sandboxes and what they can request. egressRuled means
	// that a rule of the operator sets it.
	Egress       []EgressItem
	egressRuled  bool
	EgressDeny   []EgressItem
	EgressLimits EgressLimitRule
	// OnExpiry is the default of on_expiry, see Suspend.
	OnExpiry api.Expiry
	// Pool is the rule for what is kept ready.
	Pool PoolRule
	// liftsWorkspace means that a rule removes the limit of private workspaces.
	LiftsWorkspace bool
}

// Values of profile.network and of the request's network.
const (
	NetworkNone = api.NetworkNone
	NetworkOn   = api.NetworkOn
)

const (
	mib = 1 << 20
	Gib = 1 << 30
)

// builtinNames returns the names of the built-in profiles.
func builtinNames() []string {
	return []string{api.DefaultProfile, "default", "offline_readonly", "network_basic", "network_extended"}
}

// builtinProfile returns a built-in profile, or false if it does not exist. Each call
// returns a new value, so that it can be changed safely. Hardware limits have one generous ceiling
// for all profiles, which catches typing errors. The operator can lower it.
func builtinProfile(name string) (Profile, bool) {
	p := Profile{
		Name: name,
		Defaults: Bounds{Limits: api.Limits{
			CPUs: 2, MemoryBytes: 2 * Gib, Pids: 1024, DiskBytes: 6 * Gib, TmpBytes: 512 * mib, ShmBytes: 64 * mib,
			MaxOutputBytes: api.DefaultMaxOutput,
		}},
		Ceilings: Bounds{Limits: api.Limits{
			CPUs: 64, MemoryBytes: 64 * Gib, Pids: 32768, DiskBytes: 256 * Gib, TmpBytes: 64 * Gib, ShmBytes: 64 * Gib,
			MaxOutputBytes: api.MaxMaxOutput,
		}},
		Image:   api.DefaultImage,
		Network: NetworkNone,
		clamp:   []string{FieldTimeout},
		Ruled:   map[string]string{},
		raised:  map[string]bool{},
	}
	box := func(cpus float64, memory, pids int64, maxTimeoutMS int64) {
		p.Defaults.CPUs, p.Defaults.MemoryBytes, p.Defaults.Pids = cpus, memory, pids
		p.Defaults.TimeoutMS, p.Ceilings.TimeoutMS = 30_000, maxTimeoutMS
		p.ReadOnlyRoot = true
	}
	switch name {
	case api.DefaultProfile:
	case "default":
		box(1, 512*mib, 128, 120_000)
	case "offline_readonly":
		box(0.5, 256*mib, 64, 60_000)
		p.WorkspaceReadOnly = true
		p.Locked = []string{FieldNetwork, FieldWorkspaceReadOnly, FieldReadOnlyRoot}
	case "network_basic":
		box(1, 512*mib, 128, 120_000)
		p.Network, p.Egress = NetworkOn, defaultBundles()
	case "network_extended":
		box(2, 1024*mib, 256, 300_000)
		p.Network, p.ReadOnlyRoot, p.Egress = NetworkOn, false, defaultBundles()
	default:
		return Profile{}, false
	}
	return p, true
}

// Profiles returns the names of all profiles under the rules, sorted.
func Profiles(set Rules) []string {
	names := slices.AppendSeq(builtinNames(), maps.Keys(set.Profiles))
	slices.Sort(names)
	return slices.Compact(names)
}

// ResolveProfile returns a profile with the rules applied, or false if it does not exist.
func ResolveProfile(name string, set Rules) (Profile, bool) {
	if name == "" {
		name = cmp.Or(set.Defaults.Profile, api.DefaultProfile)
	}
	p, known := builtinProfile(name)
	rule, changed := set.Profiles[name]
	if !known {
		if !changed {
			return Profile{}, false
		}
		base := rule.Extends
		if base == "" {
			base = api.DefaultProfile
		}
		if p, known = builtinProfile(base); !known {
			return Profile{}, false
		}
		p.Name = name
	}
	if changed {
		rule.apply(&p)
	}
	set.Defaults.apply(&p)
	for _, l := range Limits() {
		l.lowerDefault(&p)
	}
	return p, true
}

func (r ProfileRule) apply(p *Profile) {
	for _, l := range Limits() {
		if v, ok := l.Ruled(&r.Defaults); ok {
			l.Set(&p.Defaults, v)
			p.Ruled[l.Field] = KeyPath(p.Name, "defaults", l.Key)
			if l.Field == FieldWorkspaceSize {
				p.LiftsWorkspace = v == 0
			}
		}
		if v, ok := l.Ruled(&r.Ceilings); ok {
			l.Set(&p.Ceilings, v)
			p.Ruled[l.Field] = KeyPath(p.Name, "ceilings", l.Key)
			p.raised[l.Field] = true
		}
	}
	if r.Image != "" {
		p.Image = r.Image
	}
	p.Engine, p.Pool, p.OnExpiry = r.Engine, r.Pool, r.OnExpiry
	if r.Network != "" {
		p.Network = r.Network
	}
	if r.Egress.Allow != nil {
		p.Egress, p.egressRuled = slices.Clone(*r.Egress.Allow), true
	}
	p.EgressDeny, p.EgressLimits = r.Egress.Deny, r.Egress.Limits
	setBool(&p.ReadOnlyRoot, r.ReadOnlyRoot)
	setBool(&p.WorkspaceReadOnly, r.WorkspaceReadOnly)
	setBool(&p.MountsReadOnly, r.MountsReadOnly)
	if r.Locked != nil {
		p.Locked = slices.Clone(*r.Locked)
		for _, field := range p.Locked {
			if isLimit(field) && p.Ruled[field] == "" {
				p.Ruled[field] = KeyPath(p.Name, "locked", field)
			}
		}
	}
	if r.Clamp != nil {
		p.clamp = slices.Clone(*r.Clamp)
	}
}

// Suspend applies OnExpiry to a spec with its limits, whose engine can save memory. What the spec sets itself has precedence, and
// what can't be suspended is left as it is.
func (p *Profile) Suspend(s *api.SandboxSpec) {
	if p.OnExpiry == api.ExpirySuspend && s.OnExpiry == "" && !s.Transient && (s.Limits.IdleMS > 0 || s.Limits.LifetimeMS > 0) {
		s.OnExpiry, s.AutoResume = api.ExpirySuspend, true
	}
}

func setBool(to, from *bool) {
	if from != nil {
		*to = *from
	}
}

// KeyPath returns the name of a part of a profile in refusals and adjustments: the path of the key
// that would change it.
func KeyPath(profile string, parts ...string) string {
	return "profiles." + profile + "." + strings.Join(parts, ".")
}

// CeilingBy returns what sets a ceiling: a key of the file, or the built-in profile.
func (p *Profile) CeilingBy(l Limit) string {
	if p.raised[l.Field] {
		return KeyPath(p.Name, "ceilings", l.Key)
	}
	return ByBuiltin
}

// Locks reports whether the profile locks a field.
func (p *Profile) Locks(field string) bool { return slices.Contains(p.Locked, field) }

func (p *Profile) clamps(field string) bool { return slices.Contains(p.clamp, field) }

// ProfileBy returns what defines a profile.
func (r Rules) ProfileBy(name string) string {
	if _, changed := r.Profiles[name]; changed {
		return "profiles." + name
	}
	return ByBuiltin
}

// NoProfile is the error for a profile that does not exist.
func NoProfile(name string, set Rules) *api.Error {
	e := api.Invalid("profile", "there is no profile %s", Quote(name))
	return e.WithHint("the profiles are %s", strings.Join(Profiles(set), ", "))
}
