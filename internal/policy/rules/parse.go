package rules

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// maxRules is the maximum size of a policy file, in bytes.
const maxRules = 1 << 20

// ParseRules parses a policy file, which is one YAML document. An unknown key, a duplicate key and
// every value that Decide could not use is an error. An empty file gives the zero Rules. The error
// is always a *api.Error whose Field is the path of the key. If there are several, it is the first
// one in the file.
func ParseRules(data []byte) (Rules, error) {
	d := ReadDocument(data)
	if len(d.Errors) > 0 {
		return Rules{}, d.first()
	}
	return d.Rules, nil
}

// Reporter is called with each error of a rule.
type Reporter func(*api.Error)

// ruleChecks returns the checks of the values in a file.
func ruleChecks() []func(Rules, Reporter) {
	return []func(Rules, Reporter){ruleVersion, ruleEngine, ruleNames, ruleAudit, ruleImages, ruleMounts, ruleEndpoints, ruleCounts, ruleTenants, ruleProfiles, ruleDefaults, ruleEgress, ruleSecrets, ruleSkills, rulePorts}
}

func ruleVersion(r Rules, report Reporter) {
	if r.Version != 0 && r.Version != RulesVersion {
		report(api.Invalid("version", "version is %d", r.Version).WithHint("this build reads version %d", RulesVersion))
	}
}

func ruleEngine(r Rules, report Reporter) {
	engineName("engine", r.Engine, report)
	switch r.MinTier {
	case "", api.TierNamespace, api.TierGVisor, api.TierMicroVM:
	default:
		report(api.Invalid("min_tier", "min_tier %s is not a strength of isolation", Quote(string(r.MinTier))).
			WithHint("write %s, %s or %s", api.TierNamespace, api.TierGVisor, api.TierMicroVM))
	}
}

// engineName reports an invalid name of an engine.
func engineName(field, name string, report Reporter) {
	if name != "" && (!api.ValidName(name) || name == "fake") {
		report(api.Invalid(field, "engine %s cannot be chosen", Quote(name)).
			WithHint("write \"auto\" or the name of an engine that `cloche doctor` lists"))
	}
}

func ruleMounts(r Rules, report Reporter) {
	tell := func(err *api.Error) {
		if err != nil {
			report(err)
		}
	}
	for i, m := range r.Mounts {
		field := ElementAt("mounts", i)
		_, err := ruleHostPath(field+".root", m.Root)
		tell(err)
		_, err = CleanPathRules(field+".rules", MountAccess(!m.Write), APIPathRules(m.Rules))
		tell(err)
		for j, t := range m.Tenants {
			if t == "" {
				report(api.Invalid(ElementAt(field+".tenants", j), "%s is empty", ElementAt(field+".tenants", j)).
					WithHint("name a tenant, or leave tenants out to grant it to every caller"))
			}
		}
	}
	for i, p := range r.BlockedPaths {
		_, err := ruleHostPath(ElementAt("blocked_paths", i), p)
		tell(err)
	}
}

func ruleCounts(r Rules, report Reporter) {
	for _, c := range []struct {
		key string
		n   int
	}{{"max_sandboxes", r.MaxSandboxes}, {"max_sandboxes_per_tenant", r.MaxSandboxesPerTenant}, {"max_workspaces_per_tenant", r.MaxWorkspacesPerTenant}, {"max_snapshots_per_tenant", r.MaxSnapshotsPerTenant}} {
		if c.n < 0 {
			report(api.Invalid(c.key, "%s is %d", c.key, c.n).WithHint("write a positive number, or 0 for the default"))
		}
	}
	if r.Retention.Count < 0 {
		report(api.Invalid("retention.count", "retention.count is %d", r.Retention.Count).WithHint("write how many ended sandboxes are kept, or 0 for 1000"))
	}
	if f := r.Retention.For; f != nil && *f < 0 {
		report(api.Invalid("retention.for", "retention.for is negative").WithHint("write a time such as 24h, or 0s to keep nothing"))
	}
	if k := r.Retention.Suspended; k != nil && *k < Duration(time.Minute) {
		report(api.Invalid("retention.suspended", "retention.suspended is less than a minute").WithHint("write a time such as 720h, or leave it out to keep suspended sandboxes without a limit"))
	}
}

func ruleProfiles(r Rules, report Reporter) {
	builtin := func(name string) bool { return slices.Contains(builtinNames(), name) }
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		p, field := r.Profiles[name], "profiles."+Shorten(name)
		if !api.ValidName(name) {
			report(api.Invalid(field, "profile name %s is not valid", Quote(name)).WithHint("%s", NameHint()))
		}
		if builtin(name) && p.Extends != "" {
			report(api.Invalid(field+".extends", "profile %s is built in and starts from itself", name).
				WithHint("leave extends out, or choose another name for the profile"))
		}
		engineName(field+".engine", p.Engine, report)
		if p.Extends != "" && !builtin(p.Extends) {
			report(api.Invalid(field+".extends", "there is no built-in profile %s", Quote(p.Extends)).
				WithHint("the built-in profiles are %s", strings.Join(Profiles(Rules{}), ", ")))
		}
		if _, err := ParseImage(p.Image); p.Image != "" && err != nil {
			report(api.Invalid(field+".image", "image %s is not a reference", Quote(p.Image)).WithHint("write a reference such as debian:12"))
		}
		if p.OnExpiry != "" && p.OnExpiry != api.ExpiryStop && p.OnExpiry != api.ExpirySuspend {
			report(api.Invalid(field+".on_expiry", "on_expiry %s is not known", Quote(string(p.OnExpiry))).WithHint("stop or suspend"))
		}
		if p.Network != "" && p.Network != NetworkNone && p.Network != NetworkOn {
			report(api.Invalid(field+".network", "network %s is not known", Quote(p.Network)).
				WithHint("write %q or %q", NetworkNone, NetworkOn))
		}
		ruleFields(field, p, report)
		rulePool(field+".pool", p.Pool, report)
		ruleLimits(field, name, p, r, report)
	}
}

func ruleFields(field string, p ProfileRule, report Reporter) {
	if p.Locked != nil {
		for i, f := range *p.Locked {
			if !lockable(f) {
				report(api.Invalid(ElementAt(field+".locked", i), "field %s cannot be locked", Quote(f)).
					WithHint("these can: %s", strings.Join(lockableFields(), ", ")))
			}
		}
	}
	if p.Clamp != nil {
		for i, f := range *p.Clamp {
			if !isLimit(f) {
				report(api.Invalid(ElementAt(field+".clamp", i), "field %s cannot be clamped", Quote(f)).
					WithHint("these can: %s", strings.Join(limitFields(), ", ")))
			}
		}
	}
}

// rulePool checks that a floor is at most its ceiling.
func rulePool(field string, p PoolRule, report Reporter) {
	for _, n := range []struct {
		key string
		is  *int
	}{{"floor", p.Floor}, {"ceiling", p.Ceiling}} {
		if n.is != nil && (*n.is < 0 || *n.is > MaxPool) {
			report(api.Invalid(field+"."+n.key, "%s.%s is %d", field, n.key, *n.is).WithHint("write a whole number from 0 to %d", MaxPool))
		}
	}
	if p.Floor != nil && p.Ceiling != nil && *p.Floor > *p.Ceiling {
		report(api.Invalid(field+".floor", "%s.floor is %d, more than its ceiling of %d", field, *p.Floor, *p.Ceiling).WithHint("lower one or raise the other"))
	}
}

func lockableFields() []string {
	return append([]string{FieldNetwork, FieldEgress, FieldImage, FieldReadOnlyRoot, FieldWorkspaceReadOnly, FieldMountsReadOnly}, limitFields()...)
}

func limitFields() []string {
	var out []string
	for _, l := range Limits() {
		out = append(out, l.Field)
	}
	return out
}

// ruleLimits checks the values that a rule sets, and that each default is at most its ceiling. A
// contradiction is reported when the file is read, and not when a request is decided.
func ruleLimits(field, name string, p ProfileRule, r Rules, report Reporter) {
	resolved, _ := ResolveProfile(name, r)
	for _, l := range Limits() {
		for _, part := range []struct {
			key  string
			rule LimitRule
		}{{"defaults", p.Defaults}, {"ceilings", p.Ceilings}} {
			v, ok := l.Ruled(&part.rule)
			path := field + "." + part.key + "." + l.Key
			if !ok {
				continue
			}
			if err := checkRuled(l, path, v); err != nil {
				report(err)
				continue
			}
			if ceiling := l.Get(&resolved.Ceilings); part.key == "defaults" && ceiling > 0 && v > ceiling {
				report(api.Invalid(path, "%s is %s, over the profile's ceiling of %s", path, l.Format(v), l.Format(ceiling)).
					WithHint("lower it, or raise %s.ceilings.%s", field, l.Key))
			}
		}
	}
}

// checkRuled returns what is wrong with a limit that a rule sets.
func checkRuled(l Limit, path string, v float64) *api.Error {
	if math.IsInf(v, 0) {
		return api.Invalid(path, "%s is infinite", path).WithHint("write 0 for no limit")
	}
	return l.Check(path, v)
}
