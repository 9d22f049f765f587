package rules

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// maxShown is how many bytes of a caller's value a message repeats.
const maxShown = 80

// Quote quotes a caller's value for a message: printable, on one line, with limited length.
func Quote(s string) string {
	if len(s) <= maxShown {
		return strconv.Quote(s)
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

// Denied returns a refusal by policy. An empty rule becomes the name of the step.
func Denied(rule, field, format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeDenied, format, args...)
	e.Rule, e.Field = rule, field
	return e
}

// TooLarge returns the error for a field over a limit of the server.
func TooLarge(field, format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeTooLarge, format, args...)
	e.Field = field
	return e
}

// YamlString returns s as a YAML scalar for the rule in a hint.
func YamlString(s string) string {
	for _, r := range s {
		if r < 0x80 && (r == '/' || r == '-' || r == '_' || r == '.' ||
			r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			continue
		}
		return Quote(s)
	}
	if s == "" || strings.HasPrefix(s, "-") {
		return Quote(s)
	}
	return s
}

// What allows something that no key of the file allows.
const (
	ByBuiltin  = "builtin"
	ByOperator = "operator"
)

// Limits of a request. The limits of strings follow execve: 128 KiB for each string, including the
// final NUL.
const (
	MaxEnvName   = 256
	maxImageName = 512
)

// NameHint tells which names are valid.
func NameHint() string {
	return "use 1 to " + strconv.Itoa(api.MaxNameLen) + " of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit"
}

// IsAlphanumeric reports whether c is an ASCII letter or digit.
func IsAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// Warning is a problem of a rule that has no effect.
func Warning(field, format string, args ...any) *api.Error {
	return api.Invalid(field, format, args...)
}
