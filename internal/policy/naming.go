package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Rules of names in refusals.
const (
	ruleForcedName = "names.force"
	ruleSharedName = "names.allow_shared"
)

// Limits of a template and an identity.
const (
	maxIdentityValue = 1024
	maxVariables     = 64
	maxVariableValue = 4096
)

// checkName sets the name of the sandbox: by the operator's forced template, by the request, or by
// a template and the identity of the request.
func checkName(d *decision) *api.Error {
	s := &d.spec
	if err := checkIdentity("identity", s.Identity); err != nil {
		return err
	}
	if d.rules.Names.Force {
		name, err := nameOf("", s.Identity, d.rules.Names)
		if err != nil {
			return err
		}
		if s.Name != "" && s.Name != name {
			return outsideScope("name", s.Name, name)
		}
		if text, _ := d.rules.Names.EffectiveTemplate(); s.NameTemplate != "" && s.NameTemplate != text {
			d.adjust("name_template", rules.Shorten(s.NameTemplate), text, ruleForcedName)
		}
		d.because("name", ruleForcedName)
		s.Name, s.NameTemplate = name, ""
		return nil
	}
	if s.Name != "" {
		if s.NameTemplate != "" {
			return api.Invalid("name_template", "name and name_template are both set").WithHint("remove one of them")
		}
		if !api.ValidName(s.Name) {
			return api.Invalid("name", "name %s is not valid", rules.Quote(s.Name)).WithHint("%s", rules.NameHint())
		}
		return nil
	}
	if s.NameTemplate == "" && s.Identity == nil {
		return nil
	}
	name, err := nameOf(s.NameTemplate, s.Identity, d.rules.Names)
	if err != nil {
		return err
	}
	if s.NameTemplate == "" {
		_, rule := d.rules.Names.EffectiveTemplate()
		d.because("name", rule)
	}
	s.Name, s.NameTemplate = name, ""
	return nil
}

// outsideScope refuses a sandbox other than the one that the forced template selects.
func outsideScope(field, asked, name string) *api.Error {
	return rules.Denied(ruleForcedName, field, "%s is not the sandbox of this request: the operator's template selects %s", rules.Quote(asked), rules.Quote(name)).
		WithHint("omit the sandbox, or name the selected one; the request's identity determines it")
}

// Target is the sandbox of an exec or a process start. Only DecideTarget returns one.
type Target struct {
	ref, asked string
	forced     bool
	tenant     string
}

// DecideTarget returns which sandbox a request is for: ref, which is an ID or a name, or for
// api.RefByNaming the sandbox that the identity of the request selects. If the operator forces a
// template, it is the one that the template selects. The error is always a *api.Error. Nothing that
// runs inside a sandbox influences it.
func DecideTarget(ref string, asked api.Naming, caller Caller, set rules.Rules) (Target, error) {
	if err := checkIdentity("identity", asked.Identity); err != nil {
		return Target{}, err
	}
	t := Target{ref: ref, asked: ref, forced: set.Names.Force, tenant: caller.Tenant}
	byName := ref != api.RefByNaming
	switch {
	case t.forced:
		asked.NameTemplate = ""
	case byName && asked.NameTemplate != "":
		return Target{}, api.Invalid("name_template", "sandbox %s and name_template are both set", rules.Quote(ref)).
			WithHint("remove name_template, or set the sandbox to %q", api.RefByNaming)
	case byName:
		return t, nil
	case asked.NameTemplate == "" && asked.Identity == nil:
		return Target{}, api.Invalid("identity", "the sandbox is %q, but the request has no identity", api.RefByNaming).
			WithHint("set identity, or name_template, or name a sandbox")
	}
	name, err := nameOf(asked.NameTemplate, asked.Identity, set.Names)
	if err != nil {
		return Target{}, err
	}
	t.ref = name
	return t, nil
}

// Ref returns the ID or name by which to look up the sandbox.
func (t Target) Ref() string { return t.ref }

// Check checks whether the sandbox that was found is the intended one.
func (t Target) Check(sb api.Sandbox) error {
	if !t.forced {
		return nil
	}
	if sb.Name != t.ref || sb.Tenant != t.tenant {
		return NoSandbox(t.ref)
	}
	if t.asked != api.RefByNaming && t.asked != sb.Name && t.asked != sb.ID {
		return outsideScope("sandbox", t.asked, t.ref)
	}
	return nil
}

// Missing returns the error for a sandbox that was not found. If the caller named a sandbox that
// the template cannot select, the error is the same whether it exists or not.
func (t Target) Missing(err error) error {
	if t.forced && api.CodeOf(err) == api.CodeNotFound && t.asked != api.RefByNaming && t.asked != t.ref {
		return outsideScope("sandbox", t.asked, t.ref)
	}
	return err
}

// RunNaming refuses a run whose exec has an identity or template. The program runs in the sandbox
// that spec creates.
func RunNaming(req api.RunRequest) error {
	if req.Exec.NameTemplate == "" && req.Exec.Identity == nil {
		return nil
	}
	return api.Invalid("exec.identity", "exec sets its own identity or name_template").
		WithHint("set identity and name_template in spec: the program runs in the new sandbox")
}

// nameOf returns the name that a template gives to an identity. An empty template is the
// operator's.
func nameOf(text string, id *api.Identity, rule rules.NameRule) (string, *api.Error) {
	field := "name_template"
	if text == "" {
		text, _ = rule.EffectiveTemplate()
		field = "names.template"
	}
	t, err := rules.ParseTemplate(field, text)
	if err != nil {
		return "", err
	}
	values := t.Values(id)
	if shared(values) && !rule.AllowShared {
		return "", rules.Denied(ruleSharedName, "identity", "the template %s requires an identity, and the request has none", rules.Quote(text)).
			WithHint("set %s in identity; the smallest rule that would allow it is `names: {allow_shared: true}`", strings.Join(t.Wants(), " or "))
	}
	return t.Name(values), nil
}

// checkIdentity limits the values of an identity.
func checkIdentity(field string, id *api.Identity) *api.Error {
	if id == nil {
		return nil
	}
	for _, v := range []struct{ key, value string }{
		{rules.VarLauncherType, id.LauncherType}, {rules.VarLauncherID, id.LauncherID}, {rules.VarSenderID, id.SenderID}, {rules.VarQueryID, id.QueryID},
	} {
		at := field + "." + v.key
		if len(v.value) > maxIdentityValue {
			return rules.TooLarge(at, "%s has %d bytes", at, len(v.value)).WithHint("at most %d", maxIdentityValue)
		}
		if !utf8.ValidString(v.value) || strings.ContainsFunc(v.value, unicode.IsControl) {
			return api.Invalid(at, "%s is %s", at, rules.Quote(v.value)).WithHint("use UTF-8 text without control characters")
		}
	}
	if n := len(id.Variables); n > maxVariables {
		return rules.TooLarge(field+".variables", "there are %d variables", n).WithHint("at most %d", maxVariables)
	}
	for _, key := range slices.Sorted(maps.Keys(id.Variables)) {
		at, v := field+".variables."+rules.Shorten(key), id.Variables[key]
		if !rules.ValidVariable(key) {
			return api.Invalid(at, "variable %s is not valid", rules.Quote(key)).WithHint("%s", variableHint())
		}
		if len(v) > maxVariableValue {
			return rules.TooLarge(at, "the value of variable %s has %d bytes", key, len(v)).WithHint("at most %d", maxVariableValue)
		}
		if !utf8.ValidString(v) {
			return api.Invalid(at, "the value of variable %s is not UTF-8", key).WithHint("use text")
		}
	}
	return nil
}

func variableHint() string {
	return "use 1 to " + strconv.Itoa(rules.MaxVariableName) + " letters, digits and '_', not starting with a digit"
}

// shared reports whether a value is missing and no value was given. All callers without an identity
// would get the same name.
func shared(values []rules.NameValue) bool {
	return slices.ContainsFunc(values, func(v rules.NameValue) bool { return v.Missing }) &&
		!slices.ContainsFunc(values, func(v rules.NameValue) bool { return v.Given })
}

// shadowedNames warns of forced templates that don't separate callers as expected.
func shadowedNames(r rules.Rules, report rules.Reporter) {
	text, _ := r.Names.EffectiveTemplate()
	t, err := rules.ParseTemplate("names.template", text)
	if err != nil || !r.Names.Force {
		return
	}
	if len(t.Wants()) == 0 {
		report(rules.Warning("names.template", "the forced template %s gives every sandbox of a tenant the same name", rules.Quote(text)).
			WithHint("use a variable that identifies the caller, such as {launcher_id}"))
	}
	for _, v := range t.Wants() {
		if !slices.Contains([]string{rules.VarLauncherType, rules.VarLauncherID, rules.VarSenderID, rules.VarQueryID}, v) {
			report(rules.Warning("names.template", "{%s} in the forced template %s isn't part of the verified identity: the caller chooses its value", v, rules.Quote(text)).
				WithHint("use {launcher_type}, {launcher_id}, {sender_id} or {query_id}"))
		}
	}
}

func cloneIdentity(id *api.Identity) *api.Identity {
	if id == nil {
		return nil
	}
	out := *id
	out.Variables = maps.Clone(out.Variables)
	return &out
}
