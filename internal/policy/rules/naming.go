package rules

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// NameRule says how sandboxes get their names from the identity of requests.
type NameRule struct {
	// Template is the name with variables, such as "{launcher_type}_{launcher_id}". It applies to
	// requests with an identity and no template of their own. The variables are launcher_type,
	// launcher_id, sender_id, query_id, global, and those of the identity. A variable without a
	// value is "unknown".
	Template string `yaml:"template"`
	// Force applies the template to every create, exec and process start of every caller, the
	// operator included. A request that names another sandbox is refused.
	Force bool `yaml:"force"`
	// AllowShared allows names that do not depend on the identity.
	AllowShared bool `yaml:"allow_shared"`
}

// Limits of a template and an identity.
const (
	maxTemplate     = 256
	maxTemplateVars = 16
	MaxVariableName = 64
)

// Variables that the identity always has.
const (
	VarLauncherType = "launcher_type"
	VarLauncherID   = "launcher_id"
	VarSenderID     = "sender_id"
	VarQueryID      = "query_id"
	varGlobal       = "global"
)

// Replacements for missing values.
const (
	unknownValue = "unknown"
	queryValue   = "query"
)

// EffectiveTemplate returns the template of requests without one, with its rule.
func (n NameRule) EffectiveTemplate() (text, rule string) {
	if n.Template != "" {
		return n.Template, "names.template"
	}
	return api.DefaultNameTemplate, ByBuiltin
}

// ValidVariable reports whether s can be the name of a variable of a template.
func ValidVariable(s string) bool {
	if s == "" || len(s) > MaxVariableName {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '_' && !IsAlphanumeric(c) || i == 0 && c >= '0' && c <= '9' {
			return false
		}
	}
	return true
}

// nameTemplate is a parsed template: text, variable, text, …, text.
type nameTemplate struct {
	source string
	texts  []string // one more than variables
	vars   []string
}

// ParseTemplate parses a template. A variable is a plain name in braces. There is no syntax for
// formats, and nothing is evaluated.
func ParseTemplate(field, source string) (nameTemplate, *api.Error) {
	wrong := func(format string, args ...any) (nameTemplate, *api.Error) {
		e := api.Invalid(field, format, args...)
		return nameTemplate{}, e.WithHint("write text and variables as plain {name}, such as %s", api.DefaultNameTemplate)
	}
	if source == "" || len(source) > maxTemplate {
		return wrong("the template has %d bytes; it must have 1 to %d", len(source), maxTemplate)
	}
	if !utf8.ValidString(source) || strings.ContainsFunc(source, unicode.IsControl) {
		return wrong("the template %s is not a single line of UTF-8 text", Quote(source))
	}
	t := nameTemplate{source: source}
	for rest := source; ; {
		text, after, open := strings.Cut(rest, "{")
		if strings.Contains(text, "}") {
			return wrong("the template %s has a } without a {", Quote(source))
		}
		t.texts = append(t.texts, text)
		if !open {
			return t, nil
		}
		name, next, closed := strings.Cut(after, "}")
		if !closed {
			return wrong("the template %s has a { without a }", Quote(source))
		}
		if !ValidVariable(name) {
			return wrong("the template %s has {%s}, which is not a valid variable", Quote(source), strings.Trim(Quote(name), `"`))
		}
		if t.vars = append(t.vars, name); len(t.vars) > maxTemplateVars {
			return wrong("the template %s has more than %d variables", Quote(source), maxTemplateVars)
		}
		rest = next
	}
}

// NameValue is the value of a variable.
type NameValue struct {
	text string
	// Given means that the identity has a value. Missing means that it has none and no other
	// value replaces it.
	Given, Missing bool
}

// Values returns the values of the variables. An empty value counts as missing.
func (t nameTemplate) Values(id *api.Identity) []NameValue {
	if id == nil {
		id = &api.Identity{}
	}
	out := make([]NameValue, len(t.vars))
	for i, name := range t.vars {
		var text string
		switch name {
		case VarLauncherType:
			text = id.LauncherType
		case VarLauncherID:
			text = cmp.Or(id.LauncherID, id.QueryID)
		case VarSenderID:
			text = cmp.Or(id.SenderID, id.LauncherID, id.QueryID)
		case VarQueryID:
			text = id.QueryID
		case varGlobal:
			out[i] = NameValue{text: varGlobal}
			continue
		default: // any other variable, from the caller's own values
			text = id.Variables[name]
		}
		switch {
		case text != "":
			out[i] = NameValue{text: text, Given: true}
		case name == VarLauncherType:
			out[i] = NameValue{text: queryValue}
		default:
			out[i] = NameValue{text: unknownValue, Missing: true}
		}
	}
	return out
}

// Wants returns the variables that would distinguish callers.
func (t nameTemplate) Wants() []string {
	var out []string
	for _, v := range t.vars {
		if v != varGlobal && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// Name returns the text with its values if no other values can give the same text: values of
// lower-case letters, digits and '-', separated by a '_'. Other values become their readable part,
// a '.', and a digest of template and values. A name without a digest has no '.', so the two kinds
// never collide. A text in the form of an ID also gets a digest.
func (t nameTemplate) Name(values []NameValue) string {
	var b strings.Builder
	plain := true
	for i, v := range values {
		b.WriteString(t.texts[i])
		b.WriteString(v.text)
		apart := i == 0 || strings.Contains(t.texts[i], "_")
		plain = plain && apart && plainValue(v.text) && (v.text != unknownValue || v.Missing)
	}
	b.WriteString(t.texts[len(values)])
	name := b.String()
	if plain && api.ValidName(name) && !strings.Contains(name, ".") && !strings.HasPrefix(name, "sb-") {
		return name
	}
	return readable(name) + "." + t.digest(values)
}

func plainValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// digestLen is the length of a digest in a name.
const digestLen = 26

// nameDigits is the alphabet of digests.
var nameDigits = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// digest covers everything that determines a name. Each part is preceded by its length, so two
// different lists of parts never give the same bytes.
func (t nameTemplate) digest(values []NameValue) string {
	h := sha256.New()
	put := func(kind byte, text string) {
		var head [9]byte
		head[0] = kind
		binary.BigEndian.PutUint64(head[1:], uint64(len(text)))
		h.Write(head[:])
		h.Write([]byte(text))
	}
	put('t', t.source)
	for _, v := range values {
		kind := byte('k')
		if v.Missing {
			kind = 'u'
		}
		put(kind, v.text)
	}
	return nameDigits.EncodeToString(h.Sum(nil)[:16])
}

// readable returns the letters and digits of a name, for people, as many as fit.
func readable(s string) string {
	const room = api.MaxNameLen - digestLen - 1
	var b strings.Builder
	gap := false
	for _, r := range strings.ToLower(s) {
		if b.Len() >= room {
			break
		}
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
			gap = b.Len() > 0
			continue
		}
		if gap && b.Len() < room-1 {
			b.WriteByte('-')
		}
		gap = false
		if r == '_' && b.Len() == 0 {
			continue
		}
		b.WriteByte(byte(r))
	}
	return cmp.Or(strings.TrimRight(b.String(), "-_"), "n")
}

// ruleNames checks the name rules of the policy file.
func ruleNames(r Rules, report Reporter) {
	if r.Names.Template == "" {
		return
	}
	if _, err := ParseTemplate("names.template", r.Names.Template); err != nil {
		report(err)
	}
}
