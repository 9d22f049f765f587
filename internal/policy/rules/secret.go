package rules

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// SecretRule is a secret that sandboxes can use, by its name. Only the daemon that reads it knows
// its value.
type SecretRule struct {
	// Name is the name in requests.
	Name string `yaml:"name"`
	// From is the source of the value. It is read at each use.
	From SecretFrom `yaml:"from"`
	// Hosts are the hosts to which the value can be sent in place of a placeholder: a name, or
	// "*." followed by a name for all names below it, with a port if it is not 443.
	Hosts []string `yaml:"hosts"`
	// Mode is placeholder (the default), env, which puts the value itself into the environment of
	// processes, or either, which lets the request choose.
	Mode string `yaml:"mode"`
	// Tenants are the tenants that it is for. Empty is every caller. The operator can use all.
	Tenants []string `yaml:"tenants"`
	// Profiles are the profiles of the sandboxes that can use it. Empty is all.
	Profiles []string `yaml:"profiles"`
	// Headers are the only headers in which a placeholder is replaced. Empty is any header.
	Headers []string `yaml:"headers"`
	// Query allows the replacement in the query of a request too. Servers often write queries to
	// their logs.
	Query bool `yaml:"query"`
}

// SecretFrom is one source of a value.
type SecretFrom struct {
	// Env is a variable of the daemon's own environment.
	Env string `yaml:"env"`
	// File is the absolute path of a file that belongs to the daemon's user and that no other
	// user can read.
	File string `yaml:"file"`
	// Exec is a program with its arguments, run without a shell, that writes the value.
	Exec []string `yaml:"exec"`
}

// Kind returns "env", "file" or "exec".
func (f SecretFrom) Kind() string {
	switch {
	case f.Env != "":
		return "env"
	case f.File != "":
		return "file"
	}
	return "exec"
}

const (
	ModeEither = "either"
)

// Modes returns the modes that a rule allows, the default first.
func (r SecretRule) Modes() []api.SecretMode {
	switch r.Mode {
	case string(api.SecretEnv):
		return []api.SecretMode{api.SecretEnv}
	case ModeEither:
		return []api.SecretMode{api.SecretPlaceholder, api.SecretEnv}
	}
	return []api.SecretMode{api.SecretPlaceholder}
}

// CanonicalHosts are the hosts that the secret can be sent to, in canonical form.
func (r SecretRule) CanonicalHosts() []string {
	var out []string
	for _, h := range r.Hosts {
		if c, err := rule.ParseHost(h); err == nil {
			out = append(out, c.String())
		}
	}
	return out
}

// Variable reports whether every shell and program accepts s as a variable name.
func Variable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '_' && (!IsAlphanumeric(c) || i == 0 && c <= '9') {
			return false
		}
	}
	return s != "" && len(s) <= MaxEnvName
}

// ruleSecrets checks the secrets of a policy file.
func ruleSecrets(r Rules, report Reporter) {
	if r.TLS.Roots != "" {
		if _, err := ruleHostPath("tls.roots", r.TLS.Roots); err != nil {
			report(err)
		}
	}
	taken := map[string]int{}
	for i, s := range r.Secrets {
		field := ElementAt("secrets", i)
		if !api.ValidName(s.Name) {
			report(api.Invalid(field+".name", "%s.name %s is not valid", field, Quote(s.Name)).WithHint("%s", NameHint()))
		} else if first, dup := taken[s.Name]; dup {
			report(api.Invalid(field+".name", "%s and %s have the name %s", ElementAt("secrets", first), field, Quote(s.Name)).WithHint("give each a name of its own"))
		} else {
			taken[s.Name] = i
		}
		ruleSecretFrom(field+".from", s.From, report)
		ruleSecretUse(field, s, report)
	}
}

func ruleSecretFrom(field string, f SecretFrom, report Reporter) {
	given := map[string]bool{"env": f.Env != "", "file": f.File != "", "exec": len(f.Exec) > 0}
	maps.DeleteFunc(given, func(_ string, is bool) bool { return !is })
	if len(given) != 1 {
		report(api.Invalid(field, "%s names %d sources", field, len(given)).WithHint("write one of env, file and exec"))
		return
	}
	switch {
	case f.Env != "" && !Variable(f.Env):
		report(api.Invalid(field+".env", "%s.env %s is not the name of a variable", field, Quote(f.Env)).WithHint("write a name such as OPENAI_API_KEY"))
	case f.File != "":
		if _, err := ruleHostPath(field+".file", f.File); err != nil {
			report(err)
		}
	case len(f.Exec) > 0:
		if _, err := ruleHostPath(field+".exec", f.Exec[0]); err != nil && !path.IsAbs(f.Exec[0]) || slices.ContainsFunc(f.Exec, func(a string) bool { return strings.ContainsRune(a, 0) }) {
			report(api.Invalid(field+".exec", "%s.exec begins with %s, which is no absolute path", field, Quote(f.Exec[0])).
				WithHint(`write a program and its arguments, such as ["/usr/bin/pass", "show", "openai"]`))
		}
	}
}

func ruleSecretUse(field string, s SecretRule, report Reporter) {
	switch s.Mode {
	case "", string(api.SecretPlaceholder), string(api.SecretEnv), ModeEither:
	default:
		report(api.Invalid(field+".mode", "%s.mode %s is not known", field, Quote(s.Mode)).
			WithHint("write %s, %s or %s", api.SecretPlaceholder, api.SecretEnv, ModeEither))
	}
	if len(s.Hosts) == 0 && s.Mode != string(api.SecretEnv) {
		report(api.Invalid(field+".hosts", "%s.hosts is empty, so its value may go nowhere", field).WithHint("name the hosts that it is for, such as api.openai.com"))
	}
	for i, h := range s.Hosts {
		if _, err := rule.ParseHost(h); err != nil {
			report(api.Invalid(ElementAt(field+".hosts", i), "%s %s is no host that a secret can go to", ElementAt(field+".hosts", i), Quote(h)).
				WithHint(`write a name such as api.example.com, "*.example.com", or one with a port`))
		}
	}
	for i, h := range s.Headers {
		if !headerName(h) {
			report(api.Invalid(ElementAt(field+".headers", i), "%s %s is not the name of a header", ElementAt(field+".headers", i), Quote(h)).WithHint("write a name such as Authorization"))
		}
	}
	for _, l := range []struct {
		key   string
		names []string
	}{{"tenants", s.Tenants}, {"profiles", s.Profiles}} {
		for i, n := range l.names {
			if n == "" {
				report(api.Invalid(ElementAt(field+"."+l.key, i), "%s is empty", ElementAt(field+"."+l.key, i)).WithHint("name one, or leave %s out", l.key))
			}
		}
	}
}

func headerName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}
