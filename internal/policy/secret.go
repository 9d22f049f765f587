package policy

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
	modeEither = "either"
	maxSecrets = 64
)

// modes returns the modes that a rule allows, the default first.
func (r SecretRule) modes() []api.SecretMode {
	switch r.Mode {
	case string(api.SecretEnv):
		return []api.SecretMode{api.SecretEnv}
	case modeEither:
		return []api.SecretMode{api.SecretPlaceholder, api.SecretEnv}
	}
	return []api.SecretMode{api.SecretPlaceholder}
}

// SecretGrant is a granted secret of a sandbox.
type SecretGrant struct {
	Name string
	// Env is the environment variable of processes that holds it.
	Env  string
	Mode api.SecretMode
	// Hosts, Headers and Query are those of the rule, for placeholders.
	Hosts   []string
	Headers []string
	Query   bool
}

// Secrets returns the secrets of the sandbox, in the order of the request.
func (p Permit) Secrets() []SecretGrant { return slices.Clone(p.secrets) }

// SecretsOf returns the secrets that a caller can use.
func SecretsOf(caller Caller, rules Rules) []api.Secret {
	out := []api.Secret{}
	for _, r := range rules.Secrets {
		if !secretIsFor(r, caller) {
			continue
		}
		s := api.Secret{Name: r.Name, Hosts: r.canonicalHosts(), Modes: r.modes(), Headers: slices.Clone(r.Headers), Query: r.Query}
		if caller.Operator {
			s.From = r.From.Kind()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b api.Secret) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (r SecretRule) canonicalHosts() []string {
	var out []string
	for _, h := range r.Hosts {
		if c, err := rule.ParseHost(h); err == nil {
			out = append(out, c.String())
		}
	}
	return out
}

func secretIsFor(r SecretRule, c Caller) bool {
	return c.Operator || len(r.Tenants) == 0 || slices.Contains(r.Tenants, c.Tenant)
}

// checkSecrets decides which secrets the sandbox gets. A refusal does not reveal whether another
// tenant has a secret of that name.
func checkSecrets(d *decision) *api.Error {
	if n := len(d.spec.Secrets); n > maxSecrets {
		return tooLarge("secrets", "%d secrets were asked for", n).WithHint("at most %d", maxSecrets)
	}
	taken := map[string]string{}
	for i := range d.spec.Secrets {
		use, field := &d.spec.Secrets[i], at("secrets", i)
		r, err := d.secretRule(field, use.Name)
		if err != nil {
			return err
		}
		if use.Env == "" {
			use.Env = api.SecretVariable(use.Name)
		}
		if !variable(use.Env) {
			return api.Invalid(field+".env", "%s.env %s is not the name of a variable", field, show(use.Env)).WithHint("use letters, digits and '_', and no digit first")
		}
		if _, own := d.spec.Env[use.Env]; own {
			taken[use.Env] = "env." + use.Env
		}
		if by, dup := taken[use.Env]; dup {
			return api.Invalid(field+".env", "%s goes to the variable %s, and so does %s", field, use.Env, by).WithHint("give each a variable of its own")
		}
		taken[use.Env] = field
		if err := d.secretMode(field, use, r); err != nil {
			return err
		}
		d.because(field, keyed("secrets", r.Name))
		d.secrets = append(d.secrets, SecretGrant{
			Name: use.Name, Env: use.Env, Mode: use.Mode, Hosts: r.canonicalHosts(), Headers: slices.Clone(r.Headers), Query: r.Query,
		})
	}
	return nil
}

// secretRule returns the rule that lets this caller use a secret in this sandbox.
func (d *decision) secretRule(field, name string) (SecretRule, *api.Error) {
	if !api.ValidName(name) {
		return SecretRule{}, api.Invalid(field+".name", "secret name %s is not valid", show(name)).WithHint("%s", nameHint())
	}
	i := slices.IndexFunc(d.rules.Secrets, func(r SecretRule) bool { return r.Name == name && secretIsFor(r, d.caller) })
	if i < 0 {
		return SecretRule{}, denied("secrets", field+".name", "there is no secret %s that this caller may use", show(name)).
			WithHint("`cloche secret ls` lists those that there are; the smallest rule that would allow it is `secrets: [{name: %s, from: {…}, hosts: […], tenants: [%s]}]`",
				yamlString(name), yamlString(d.caller.Tenant))
	}
	r := d.rules.Secrets[i]
	if len(r.Profiles) > 0 && !slices.Contains(r.Profiles, d.profile.name) {
		return SecretRule{}, denied(keyed("secrets", name)+".profiles", field+".name", "secret %s is not for sandboxes of profile %s", show(name), d.profile.name).
			WithHint("use one of the profiles %s", strings.Join(r.Profiles, ", "))
	}
	return r, nil
}

// secretMode decides how programs get the secret. It refuses a secret that could not be restricted
// to its hosts.
func (d *decision) secretMode(field string, use *api.SecretUse, r SecretRule) *api.Error {
	modes := r.modes()
	if use.Mode == "" {
		use.Mode = modes[0]
	}
	if use.Mode != api.SecretPlaceholder && use.Mode != api.SecretEnv {
		return api.Invalid(field+".mode", "%s.mode %s is not known", field, show(string(use.Mode))).
			WithHint("write %q or %q, or leave it out for what the operator's rule says", api.SecretPlaceholder, api.SecretEnv)
	}
	if !slices.Contains(modes, use.Mode) {
		return denied(keyed("secrets", r.Name)+".mode", field+".mode", "secret %s is available as %s, and not as %s", show(use.Name), modes[0], use.Mode).
			WithHint("leave mode out; the smallest rule that would allow it is `mode: %s` at the secret", modeEither)
	}
	if use.Mode != api.SecretPlaceholder {
		return nil
	}
	if d.spec.Network != networkOn {
		return denied(keyed("secrets", r.Name)+".mode", field, "secret %s replaces its placeholder in requests, and this sandbox has no network", show(use.Name)).
			WithHint("ask for a network, with egress to %s", strings.Join(r.canonicalHosts(), ", "))
	}
	if d.facts.NoInterception != nil {
		return new(*d.facts.NoInterception)
	}
	return nil
}

// variable reports whether every shell and program accepts s as a variable name.
func variable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '_' && (!alnum(c) || i == 0 && c <= '9') {
			return false
		}
	}
	return s != "" && len(s) <= maxEnvName
}

// TrustVariables returns the variables in which programs look for trusted certificates, for
// intercepted TLS.
func TrustVariables() []string {
	return []string{
		"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE",
		"DENO_CERT", "CARGO_HTTP_CAINFO", "JAVA_TOOL_OPTIONS",
	}
}

// checkTrust reports a variable of the caller that prevents programs from trusting intercepted TLS.
func checkTrust(d *decision) *api.Error {
	opened := slices.ContainsFunc(d.secrets, func(g SecretGrant) bool { return g.Mode == api.SecretPlaceholder }) ||
		Permit{first: d.first, egress: d.egress}.Opens()
	if !opened {
		return nil
	}
	for _, name := range TrustVariables() {
		if _, own := d.spec.Env[name]; own {
			d.unenforced = append(d.unenforced, api.Unenforced{
				Field: "env." + name, Reason: "TLS is opened, and programs that use this variable of the request may not trust it",
			})
		}
	}
	return nil
}

// ruleSecrets checks the secrets of a policy file.
func ruleSecrets(r Rules, report reporter) {
	if r.TLS.Roots != "" {
		if _, err := ruleHostPath("tls.roots", r.TLS.Roots); err != nil {
			report(err)
		}
	}
	taken := map[string]int{}
	for i, s := range r.Secrets {
		field := at("secrets", i)
		if !api.ValidName(s.Name) {
			report(api.Invalid(field+".name", "%s.name %s is not valid", field, show(s.Name)).WithHint("%s", nameHint()))
		} else if first, dup := taken[s.Name]; dup {
			report(api.Invalid(field+".name", "%s and %s have the name %s", at("secrets", first), field, show(s.Name)).WithHint("give each a name of its own"))
		} else {
			taken[s.Name] = i
		}
		ruleSecretFrom(field+".from", s.From, report)
		ruleSecretUse(field, s, report)
	}
}

func ruleSecretFrom(field string, f SecretFrom, report reporter) {
	given := map[string]bool{"env": f.Env != "", "file": f.File != "", "exec": len(f.Exec) > 0}
	maps.DeleteFunc(given, func(_ string, is bool) bool { return !is })
	if len(given) != 1 {
		report(api.Invalid(field, "%s names %d sources", field, len(given)).WithHint("write one of env, file and exec"))
		return
	}
	switch {
	case f.Env != "" && !variable(f.Env):
		report(api.Invalid(field+".env", "%s.env %s is not the name of a variable", field, show(f.Env)).WithHint("write a name such as OPENAI_API_KEY"))
	case f.File != "":
		if _, err := ruleHostPath(field+".file", f.File); err != nil {
			report(err)
		}
	case len(f.Exec) > 0:
		if _, err := ruleHostPath(field+".exec", f.Exec[0]); err != nil && !path.IsAbs(f.Exec[0]) || slices.ContainsFunc(f.Exec, func(a string) bool { return strings.ContainsRune(a, 0) }) {
			report(api.Invalid(field+".exec", "%s.exec begins with %s, which is no absolute path", field, show(f.Exec[0])).
				WithHint(`write a program and its arguments, such as ["/usr/bin/pass", "show", "openai"]`))
		}
	}
}

func ruleSecretUse(field string, s SecretRule, report reporter) {
	switch s.Mode {
	case "", string(api.SecretPlaceholder), string(api.SecretEnv), modeEither:
	default:
		report(api.Invalid(field+".mode", "%s.mode %s is not known", field, show(s.Mode)).
			WithHint("write %s, %s or %s", api.SecretPlaceholder, api.SecretEnv, modeEither))
	}
	if len(s.Hosts) == 0 && s.Mode != string(api.SecretEnv) {
		report(api.Invalid(field+".hosts", "%s.hosts is empty, so its value may go nowhere", field).WithHint("name the hosts that it is for, such as api.openai.com"))
	}
	for i, h := range s.Hosts {
		if _, err := rule.ParseHost(h); err != nil {
			report(api.Invalid(at(field+".hosts", i), "%s %s is no host that a secret can go to", at(field+".hosts", i), show(h)).
				WithHint(`write a name such as api.example.com, "*.example.com", or one with a port`))
		}
	}
	for i, h := range s.Headers {
		if !headerName(h) {
			report(api.Invalid(at(field+".headers", i), "%s %s is not the name of a header", at(field+".headers", i), show(h)).WithHint("write a name such as Authorization"))
		}
	}
	for _, l := range []struct {
		key   string
		names []string
	}{{"tenants", s.Tenants}, {"profiles", s.Profiles}} {
		for i, n := range l.names {
			if n == "" {
				report(api.Invalid(at(field+"."+l.key, i), "%s is empty", at(field+"."+l.key, i)).WithHint("name one, or leave %s out", l.key))
			}
		}
	}
}

func headerName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}
