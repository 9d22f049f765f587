package policy

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// maxShown is how many bytes of a caller's value a message repeats.
const maxShown = 80

// show quotes a caller's value for a message: printable, on one line, with limited length.
func show(s string) string {
	if len(s) <= maxShown {
		return strconv.Quote(s)
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

// denied returns a refusal by policy. An empty rule becomes the name of the step.
func denied(rule, field, format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeDenied, format, args...)
	e.Rule, e.Field = rule, field
	return e
}

// tooLarge returns the error for a field over a limit of the server.
func tooLarge(field, format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeTooLarge, format, args...)
	e.Field = field
	return e
}

// yamlString returns s as a YAML scalar for the rule in a hint.
func yamlString(s string) string {
	for _, r := range s {
		if r < 0x80 && (r == '/' || r == '-' || r == '_' || r == '.' ||
			r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			continue
		}
		return show(s)
	}
	if s == "" || strings.HasPrefix(s, "-") {
		return show(s)
	}
	return s
}
