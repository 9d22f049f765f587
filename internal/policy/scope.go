package policy

import (
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Scope limits what a caller can do. It never adds rights. The zero value is no limit.
type Scope struct {
	// Verbs are the only allowed operations. Empty is all.
	Verbs []Verb
	// Profiles are the only allowed profiles of sandboxes to create or use. Empty is all.
	Profiles []string
}

// maxScope is the maximum length of each list of a scope.
const maxScope = 128

// permits reports whether the scope allows an operation. Every scope allows the operations that are
// open to every caller.
func (s *Scope) permits(v Verb) bool {
	return s == nil || len(s.Verbs) == 0 || v == VerbVersion || slices.Contains(s.Verbs, v)
}

func (s *Scope) permitsProfile(name string) bool {
	return s == nil || len(s.Profiles) == 0 || slices.Contains(s.Profiles, name)
}

// keyRule returns the name of a key's scope in refusals.
func (c Caller) keyRule() string { return "key:" + c.Key }

// AuthorizeVerb checks whether the key of the caller, if it has one, allows an operation. An API
// server calls it before anything else, so that a refusal does not reveal what exists.
func AuthorizeVerb(caller Caller, verb Verb) error {
	if caller.Scope.permits(verb) {
		return nil
	}
	e := rules.Denied(caller.keyRule(), "", "the key %s is not for %q", caller.Key, verb)
	if operatorOnly(verb) {
		return e.WithHint("no key is: ask over the daemon's unix socket as the user that it runs as")
	}
	return e.WithHint("use a key that is; the smallest scope that would allow it is `cloche key create --tenant %s --verb %s`", caller.Tenant, verb)
}

// authorizeProfile checks the profiles of a key.
func authorizeProfile(caller Caller, profile string) *api.Error {
	if caller.Scope.permitsProfile(profile) {
		return nil
	}
	return rules.Denied(caller.keyRule(), "profile", "the key %s is not for profile %s", caller.Key, rules.Quote(profile)).
		WithHint("it is for %s", strings.Join(caller.Scope.Profiles, ", "))
}

// checkScope is a step of Decide.
func checkScope(d *decision) *api.Error { return authorizeProfile(d.caller, d.profile.Name) }

// KeyPermit is a granted API key. Only DecideKey returns a valid one.
type KeyPermit struct {
	valid bool
	spec  api.KeySpec
}

// Valid reports whether DecideKey returned p.
func (p KeyPermit) Valid() bool { return p.valid }

// Spec returns what was granted, with verbs expanded, sorted and without duplicates.
func (p KeyPermit) Spec() api.KeySpec {
	s := p.spec
	s.Verbs, s.Profiles = slices.Clone(s.Verbs), slices.Clone(s.Profiles)
	return s
}

// DecideKey grants the operator a new key, or returns why not. A key never has operator rights: it
// cannot have a verb that is only for the operator.
func DecideKey(spec api.KeySpec, caller Caller, set rules.Rules) (KeyPermit, error) {
	if err := AuthorizeHost(caller, VerbCreateKey); err != nil {
		return KeyPermit{}, err
	}
	for _, check := range []func(*api.KeySpec, rules.Rules) *api.Error{keyNames, keyVerbs, keyProfiles, keyLife} {
		if err := check(&spec, set); err != nil {
			return KeyPermit{}, err
		}
	}
	return KeyPermit{valid: true, spec: spec}, nil
}

func keyNames(s *api.KeySpec, _ rules.Rules) *api.Error {
	if !api.ValidName(s.Tenant) {
		return api.Invalid("tenant", "tenant %s is not valid", rules.Quote(s.Tenant)).WithHint("%s", rules.NameHint())
	}
	if s.Name != "" && !api.ValidName(s.Name) {
		return api.Invalid("name", "key name %s is not valid", rules.Quote(s.Name)).WithHint("%s", rules.NameHint())
	}
	return nil
}

func keyVerbs(s *api.KeySpec, _ rules.Rules) *api.Error {
	if len(s.Verbs) > maxScope {
		return rules.TooLarge("verbs", "there are %d verbs", len(s.Verbs)).WithHint("at most %d", maxScope)
	}
	var out []string
	for i, v := range s.Verbs {
		v = api.CurrentVerb(v)
		switch {
		case v == api.KeyVerbsObserve:
			for _, o := range ObservingVerbs() {
				out = append(out, string(o))
			}
		case !slices.Contains(Verbs(), Verb(v)):
			return api.Invalid(rules.ElementAt("verbs", i), "there is no verb %s", rules.Quote(v)).
				WithHint("the verbs are %s (those that only look), %s", api.KeyVerbsObserve, verbList())
		case operatorOnly(Verb(v)):
			return api.Invalid(rules.ElementAt("verbs", i), "%s is for the operator only, and a key is never the operator's", v).
				WithHint("ask over the daemon's unix socket as the user that it runs as")
		default:
			out = append(out, v)
		}
	}
	slices.Sort(out)
	s.Verbs = slices.Compact(out)
	return nil
}

func verbList() string {
	var out []string
	for _, v := range Verbs() {
		if !operatorOnly(v) {
			out = append(out, string(v))
		}
	}
	return strings.Join(out, ", ")
}

func keyProfiles(s *api.KeySpec, set rules.Rules) *api.Error {
	if len(s.Profiles) > maxScope {
		return rules.TooLarge("profiles", "there are %d profiles", len(s.Profiles)).WithHint("at most %d", maxScope)
	}
	for i, name := range s.Profiles {
		if _, ok := rules.ResolveProfile(name, set); !ok || name == "" {
			e := rules.NoProfile(name, set)
			e.Field = rules.ElementAt("profiles", i)
			return e
		}
	}
	s.Profiles = slices.Clone(s.Profiles)
	slices.Sort(s.Profiles)
	s.Profiles = slices.Compact(s.Profiles)
	return nil
}

func keyLife(s *api.KeySpec, _ rules.Rules) *api.Error {
	if s.ExpiresInMS < 0 || s.ExpiresInMS > 10*rules.MaxTimeoutMS {
		return api.Invalid("expires_in_ms", "a key that lives for %d ms was asked for", s.ExpiresInMS).
			WithHint("0 is until it is revoked; at most %d, which is ten years", int64(10*rules.MaxTimeoutMS))
	}
	return nil
}

// ScopeOf returns the scope of a recorded key. A limited list stays limited: an entry that this
// build does not know permits nothing.
func ScopeOf(k api.Key) *Scope {
	if len(k.Verbs) == 0 && len(k.Profiles) == 0 {
		return nil
	}
	s := &Scope{Profiles: slices.Clone(k.Profiles)}
	for _, v := range k.Verbs {
		s.Verbs = append(s.Verbs, Verb(api.CurrentVerb(v)))
	}
	return s
}
