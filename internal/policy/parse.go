package policy

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cloche-dev/cloche"
)

// maxRules is the largest policy file, in bytes.
const maxRules = 1 << 20

// ParseRules reads a policy file: one YAML document, in which an unknown or
// repeated key is an error, and so is any value that Decide could not use. An
// empty file is the zero Rules. The error is always a *cloche.Error whose Field
// is the path of the key.
func ParseRules(data []byte) (Rules, error) {
	if len(data) > maxRules {
		return Rules{}, tooLarge("", "the policy file has %d bytes", len(data)).WithHint("at most %d", maxRules)
	}
	r, err := decodeRules(data)
	if err != nil {
		return Rules{}, err
	}
	for _, check := range []func(Rules) *cloche.Error{
		ruleVersion, ruleEngine, ruleImages, ruleMounts, ruleCounts, ruleProfiles,
	} {
		if err := check(r); err != nil {
			return Rules{}, err
		}
	}
	return r, nil
}

// decodeRules reads the one document. A decoder of foreign bytes that panics is
// a refusal of these bytes, not the end of the daemon.
func decodeRules(data []byte) (r Rules, err *cloche.Error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = Rules{}, cloche.Invalid("", "the policy file cannot be read: the YAML decoder gave up: %v", p).
				WithHint("write plain keys, lists and values; see which line it is by leaving out half of them")
		}
	}()
	file, parseErr := parser.ParseBytes(data, 0)
	if parseErr != nil {
		return Rules{}, syntaxError(parseErr)
	}
	if len(file.Docs) > 1 {
		return Rules{}, cloche.Invalid("", "the policy file holds more than one document").WithHint("leave out the lines of `---`")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return Rules{}, nil
	}
	plain := &plainYAML{}
	ast.Walk(plain, file.Docs[0].Body)
	if plain.odd != "" {
		return Rules{}, cloche.Invalid("", "the policy file has %s in line %d", plain.odd, plain.line).
			WithHint("write every value out where it belongs")
	}
	if decodeErr := yaml.NodeToValue(file.Docs[0].Body, &r, yaml.Strict()); decodeErr != nil {
		return Rules{}, syntaxError(decodeErr)
	}
	return r, nil
}

// plainYAML looks for the parts of YAML that make a file say something else
// than what one reads in it. A policy has no use for them.
type plainYAML struct {
	odd  string
	line int
}

// Visit implements ast.Visitor.
func (v *plainYAML) Visit(n ast.Node) ast.Visitor {
	odd := map[ast.NodeType]string{
		ast.TagType: "a tag (!)", ast.AnchorType: "an anchor (&)", ast.AliasType: "an alias (*)",
		ast.MergeKeyType: "a merge key (<<)", ast.DirectiveType: "a directive (%)",
	}[n.Type()]
	if odd != "" && v.odd == "" {
		v.odd, v.line = odd, n.GetToken().Position.Line
	}
	return v
}

func syntaxError(err error) *cloche.Error {
	text := strings.TrimSpace(yaml.FormatError(err, false, false))
	return cloche.Invalid("", "the policy file cannot be read: %s", text).
		WithCause(err).WithHint("the keys are version, enabled, engine, min_tier, profiles, images, blocked_images, mounts, blocked_paths, max_sandboxes, max_sandboxes_per_tenant and audit")
}

func ruleVersion(r Rules) *cloche.Error {
	if r.Version == 0 || r.Version == RulesVersion {
		return nil
	}
	return cloche.Invalid("version", "version is %d", r.Version).WithHint("this build reads version %d", RulesVersion)
}

func ruleEngine(r Rules) *cloche.Error {
	if r.Engine != "" && (!cloche.ValidName(r.Engine) || r.Engine == "fake") {
		return cloche.Invalid("engine", "engine %s cannot be chosen", show(r.Engine)).
			WithHint("write \"auto\" or the name of an engine that `cloche doctor` lists")
	}
	switch r.MinTier {
	case "", cloche.TierNamespace, cloche.TierGVisor, cloche.TierMicroVM:
	default:
		return cloche.Invalid("min_tier", "min_tier %s is not a strength of isolation", show(string(r.MinTier))).
			WithHint("write %s, %s or %s", cloche.TierNamespace, cloche.TierGVisor, cloche.TierMicroVM)
	}
	switch r.Audit.Argv {
	case "", auditArgvHash, auditArgvFull:
		return nil
	}
	return cloche.Invalid("audit.argv", "audit.argv %s is not known", show(r.Audit.Argv)).
		WithHint("write %q or %q", auditArgvHash, auditArgvFull)
}

func ruleImages(r Rules) *cloche.Error {
	for _, l := range []struct {
		key  string
		refs []string
	}{{"images", r.Images}, {"blocked_images", r.BlockedImages}} {
		key := l.key
		for i, ref := range l.refs {
			// What stands before the * may end where no reference could.
			if p, star := strings.CutSuffix(ref, "*"); star && (p == "" || validImage(p+"x")) || validImage(ref) {
				continue
			}
			return cloche.Invalid(at(key, i), "%s %s is not a reference", at(key, i), show(ref)).
				WithHint("write a reference such as debian:12, or the beginning of one and a *")
		}
	}
	return nil
}

func ruleMounts(r Rules) *cloche.Error {
	for i, m := range r.Mounts {
		field := at("mounts", i)
		if _, err := cleanAbs(field+".root", m.Root); err != nil {
			return err
		}
		for j, t := range m.Tenants {
			if t == "" {
				return cloche.Invalid(at(field+".tenants", j), "%s is empty", at(field+".tenants", j)).
					WithHint("name a tenant, or leave tenants out to grant it to every caller")
			}
		}
	}
	for i, p := range r.BlockedPaths {
		if _, err := cleanAbs(at("blocked_paths", i), p); err != nil {
			return err
		}
	}
	return nil
}

func ruleCounts(r Rules) *cloche.Error {
	for _, c := range []struct {
		key string
		n   int
	}{{"max_sandboxes", r.MaxSandboxes}, {"max_sandboxes_per_tenant", r.MaxSandboxesPerTenant}} {
		if c.n < 0 {
			return cloche.Invalid(c.key, "%s is %d", c.key, c.n).WithHint("write a positive number, or 0 for no limit")
		}
	}
	return nil
}

func ruleProfiles(r Rules) *cloche.Error {
	builtin := builtinProfiles()
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		p, field := r.Profiles[name], "profiles."+bounded(name)
		if !cloche.ValidName(name) {
			return cloche.Invalid(field, "profile name %s is not valid", show(name)).WithHint("%s", nameHint())
		}
		if _, isBuiltin := builtin[name]; isBuiltin && p.Extends != "" {
			return cloche.Invalid(field+".extends", "profile %s is built in and starts from itself", name).
				WithHint("leave extends out, or choose another name for the profile")
		}
		if _, ok := builtin[p.Extends]; p.Extends != "" && !ok {
			return cloche.Invalid(field+".extends", "there is no built-in profile %s", show(p.Extends)).
				WithHint("the built-in profiles are %s", strings.Join(Profiles(Rules{}), ", "))
		}
		if p.Image != "" && !validImage(p.Image) {
			return cloche.Invalid(field+".image", "image %s is not a reference", show(p.Image)).WithHint("write a reference such as debian:12")
		}
		if p.Network != "" && p.Network != networkNone && p.Network != networkOn {
			return cloche.Invalid(field+".network", "network %s is not known", show(p.Network)).
				WithHint("write %q; %q is known and refused, for this build has no egress", networkNone, networkOn)
		}
		if err := ruleFields(field, p); err != nil {
			return err
		}
		if err := ruleLimits(field, name, p, r); err != nil {
			return err
		}
	}
	return nil
}

func ruleFields(field string, p ProfileRule) *cloche.Error {
	if p.Locked != nil {
		for i, f := range *p.Locked {
			if !lockable(f) {
				return cloche.Invalid(at(field+".locked", i), "field %s cannot be locked", show(f)).
					WithHint("these can: %s, %s", strings.Join([]string{
						fieldNetwork, fieldImage, fieldReadOnlyRoot, fieldWorkspaceReadOnly, fieldMountsReadOnly,
					}, ", "), limitFields())
			}
		}
	}
	if p.Clamp != nil {
		for i, f := range *p.Clamp {
			if !isLimit(f) {
				return cloche.Invalid(at(field+".clamp", i), "field %s cannot be clamped", show(f)).
					WithHint("these can: %s", limitFields())
			}
		}
	}
	return nil
}

func limitFields() string {
	var out []string
	for _, l := range limits() {
		out = append(out, l.field)
	}
	return strings.Join(out, ", ")
}

// ruleLimits checks the values that a rule sets and that each default fits
// under its ceiling: a contradiction is told when the file is read, not when a
// request meets it.
func ruleLimits(field, name string, p ProfileRule, r Rules) *cloche.Error {
	resolved, _ := resolveProfile(name, r)
	for _, l := range limits() {
		for _, part := range []struct {
			key  string
			rule LimitRule
		}{{"defaults", p.Defaults}, {"ceilings", p.Ceilings}} {
			v, ok := l.ruled(&part.rule)
			path := field + "." + part.key + "." + l.key
			if !ok {
				continue
			}
			if math.IsInf(v, 0) {
				return cloche.Invalid(path, "%s is infinite", path).WithHint("write 0 for no limit")
			}
			if err := l.check(path, v); err != nil {
				return err
			}
			if ceiling := l.get(&resolved.ceilings); part.key == "defaults" && ceiling > 0 && v > ceiling {
				return cloche.Invalid(path, "%s is %s, over the profile's ceiling of %s", path, l.format(v), l.format(ceiling)).
					WithHint("lower it, or raise %s.ceilings.%s", field, l.key)
			}
		}
	}
	return nil
}
