package policy

import (
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const (
	maxSecrets = 64
)

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
func SecretsOf(caller Caller, set rules.Rules) []api.Secret {
	out := []api.Secret{}
	for _, r := range set.Secrets {
		if !secretIsFor(r, caller) {
			continue
		}
		s := api.Secret{Name: r.Name, Hosts: r.CanonicalHosts(), Modes: r.Modes(), Headers: slices.Clone(r.Headers), Query: r.Query}
		if caller.Operator {
			s.From = r.From.Kind()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b api.Secret) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func secretIsFor(r rules.SecretRule, c Caller) bool {
	return c.Operator || len(r.Tenants) == 0 || slices.Contains(r.Tenants, c.Tenant)
}

// checkSecrets decides which secrets the sandbox gets. A refusal does not reveal whether another
// tenant has a secret of that name.
func checkSecrets(d *decision) *api.Error {
	if n := len(d.spec.Secrets); n > maxSecrets {
		return rules.TooLarge("secrets", "%d secrets were asked for", n).WithHint("at most %d", maxSecrets)
	}
	taken := map[string]string{}
	for i := range d.spec.Secrets {
		use, field := &d.spec.Secrets[i], rules.ElementAt("secrets", i)
		r, err := d.secretRule(field, use.Name)
		if err != nil {
			return err
		}
		if use.Env == "" {
			use.Env = api.SecretVariable(use.Name)
		}
		if !rules.Variable(use.Env) {
			return api.Invalid(field+".env", "%s.env %s is not the name of a variable", field, rules.Quote(use.Env)).WithHint("use letters, digits and '_', and no digit first")
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
		d.because(field, rules.KeyAt("secrets", r.Name))
		d.secrets = append(d.secrets, SecretGrant{
			Name: use.Name, Env: use.Env, Mode: use.Mode, Hosts: r.CanonicalHosts(), Headers: slices.Clone(r.Headers), Query: r.Query,
		})
	}
	return nil
}

// secretRule returns the rule that lets this caller use a secret in this sandbox.
func (d *decision) secretRule(field, name string) (rules.SecretRule, *api.Error) {
	if !api.ValidName(name) {
		return rules.SecretRule{}, api.Invalid(field+".name", "secret name %s is not valid", rules.Quote(name)).WithHint("%s", rules.NameHint())
	}
	i := slices.IndexFunc(d.rules.Secrets, func(r rules.SecretRule) bool { return r.Name == name && secretIsFor(r, d.caller) })
	if i < 0 {
		return rules.SecretRule{}, rules.Denied("secrets", field+".name", "there is no secret %s that this caller may use", rules.Quote(name)).
			WithHint("`cloche secret ls` lists those that there are; the smallest rule that would allow it is `secrets: [{name: %s, from: {…}, hosts: […], tenants: [%s]}]`",
				rules.YamlString(name), rules.YamlString(d.caller.Tenant))
	}
	r := d.rules.Secrets[i]
	if len(r.Profiles) > 0 && !slices.Contains(r.Profiles, d.profile.Name) {
		return rules.SecretRule{}, rules.Denied(rules.KeyAt("secrets", name)+".profiles", field+".name", "secret %s is not for sandboxes of profile %s", rules.Quote(name), d.profile.Name).
			WithHint("use one of the profiles %s", strings.Join(r.Profiles, ", "))
	}
	return r, nil
}

// secretMode decides how programs get the secret. It refuses a secret that could not be restricted
// to its hosts.
func (d *decision) secretMode(field string, use *api.SecretUse, r rules.SecretRule) *api.Error {
	modes := r.Modes()
	if use.Mode == "" {
		use.Mode = modes[0]
	}
	if use.Mode != api.SecretPlaceholder && use.Mode != api.SecretEnv {
		return api.Invalid(field+".mode", "%s.mode %s is not known", field, rules.Quote(string(use.Mode))).
			WithHint("write %q or %q, or leave it out for what the operator's rule says", api.SecretPlaceholder, api.SecretEnv)
	}
	if !slices.Contains(modes, use.Mode) {
		return rules.Denied(rules.KeyAt("secrets", r.Name)+".mode", field+".mode", "secret %s is available as %s, and not as %s", rules.Quote(use.Name), modes[0], use.Mode).
			WithHint("leave mode out; the smallest rule that would allow it is `mode: %s` at the secret", rules.ModeEither)
	}
	if use.Mode != api.SecretPlaceholder {
		return nil
	}
	if d.spec.Network != rules.NetworkOn {
		return rules.Denied(rules.KeyAt("secrets", r.Name)+".mode", field, "secret %s replaces its placeholder in requests, and this sandbox has no network", rules.Quote(use.Name)).
			WithHint("ask for a network, with egress to %s", strings.Join(r.CanonicalHosts(), ", "))
	}
	if d.facts.NoInterception != nil {
		return new(*d.facts.NoInterception)
	}
	return nil
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
