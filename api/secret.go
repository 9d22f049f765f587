package api

// SecretMode says how programs use a secret.
type SecretMode string

// Modes of secrets.
const (
	// SecretPlaceholder gives programs a placeholder. The daemon replaces it with the value in
	// requests to the hosts that the secret is bound to.
	SecretPlaceholder SecretMode = "placeholder"
	// SecretEnv gives programs the value itself, in their environment.
	SecretEnv SecretMode = "env"
)

// SecretUse requests a secret for a sandbox by its name in the operator's rules. No answer of the
// API contains the value.
type SecretUse struct {
	// Name is the secret's name in the operator's rules.
	Name string `json:"name"`
	// Env is the environment variable that holds it. Empty is the name in upper case, with '_'
	// for every character that is not a letter or digit.
	Env string `json:"env,omitempty"`
	// Mode is the mode. Empty is the mode of the operator's rule.
	Mode SecretMode `json:"mode,omitempty"`
}

// Secret describes a secret that the caller can use.
type Secret struct {
	Name string `json:"name"`
	// Hosts are the hosts that the value can be sent to: HOST, or HOST:PORT for a port other than
	// 443.
	Hosts []string `json:"hosts,omitempty"`
	// Modes are the modes that the rule allows, the default first.
	Modes []SecretMode `json:"modes"`
	// Headers are the only headers in which a placeholder is replaced. Empty is any header.
	Headers []string `json:"headers,omitempty"`
	// Query means that a placeholder in the query of a request is replaced too.
	Query bool `json:"query,omitempty"`
	// From is the kind of the source: "env", "file" or "exec". Only operators see it.
	From string `json:"from,omitempty"`
}

// SecretList lists every secret that the caller can use, sorted by name.
type SecretList struct {
	Secrets []Secret `json:"secrets"`
}

// SecretVariable returns the default environment variable of a secret.
func SecretVariable(name string) string {
	out := []byte(name)
	for i, c := range out {
		switch {
		case c >= 'a' && c <= 'z':
			out[i] = c - 'a' + 'A'
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9' && i > 0:
		default:
			out[i] = '_'
		}
	}
	return string(out)
}
