package api

// SecretMode is how a secret gets to a program.
type SecretMode string

// The modes.
const (
	// SecretPlaceholder: programs see a text that stands for the value, which takes its
	// place on the way to the hosts that the secret is bound to.
	SecretPlaceholder SecretMode = "placeholder"
	// SecretEnv: programs see the value itself, in their environment.
	SecretEnv SecretMode = "env"
)

// SecretUse is a secret that a sandbox is to have: a name that the operator's rules
// know. No answer has the value.
type SecretUse struct {
	// Name is the secret's in the operator's rules.
	Name string `json:"name"`
	// Env is the variable that processes find it in; empty is the name in upper case,
	// with '_' for everything that is no letter or digit.
	Env string `json:"env,omitempty"`
	// Mode is empty for what the operator's rule says.
	Mode SecretMode `json:"mode,omitempty"`
}

// Secret is what a caller is told of a secret that it may use.
type Secret struct {
	Name string `json:"name"`
	// Hosts are those that the value may go to: HOST, or HOST:PORT for a port other
	// than 443.
	Hosts []string `json:"hosts,omitempty"`
	// Modes are those that the rule allows, the usual one first.
	Modes []SecretMode `json:"modes"`
	// Headers are the only ones in which a placeholder is replaced; empty is any.
	Headers []string `json:"headers,omitempty"`
	// Query says that a placeholder in the query of a request is replaced too.
	Query bool `json:"query,omitempty"`
	// From is the kind of the source: "env", "file" or "exec"; only operators are told.
	From string `json:"from,omitempty"`
}

// SecretList is every secret that a caller may use, in order of names.
type SecretList struct {
	Secrets []Secret `json:"secrets"`
}

// SecretVariable is the variable of a secret for which a request names none.
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
