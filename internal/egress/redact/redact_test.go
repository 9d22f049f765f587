package redact_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/redact"
)

func TestHeader(t *testing.T) {
	h := http.Header{
		"X-Plain": {"nothing"}, "X-Value": {"a sk-SECRET1 b", "sk-secret1sk-secret1"}, "Sk-Secret1": {"v"}, "X-Sk-Secret1-Y": {"w"},
		"Vary": {"X-Sk-Secret1, Accept"}, "X-Empty": {""}, "X-Redacted-Y": {"old"},
	}
	redact.Header(h, []string{"sk-SECRET1", "", "other-secret"}, func(s string) string { return "[" + strings.Repeat("*", len(s)) + "]" })
	for field, values := range h {
		if text := strings.ToLower(field + strings.Join(values, " ")); strings.Contains(text, "sk-secret1") {
			t.Errorf("%s: %q", field, values)
		}
	}
	if got := h["X-Value"]; got[0] != "a [**********] b" || got[1] != "[**********][**********]" {
		t.Errorf("%q", got)
	}
	fields := map[string][]string(h) // names as they are, canonical or not
	if h.Get("X-Plain") != "nothing" || len(fields["redacted"]) != 1 || len(fields["X-Redacted-Y"])+len(fields["X-redacted-Y"]) != 2 {
		t.Errorf("%v", h)
	}
}

// FuzzHeader: whatever a server makes of a text in upper and lower case, and wherever it
// puts it, it does not come back.
func FuzzHeader(f *testing.F) {
	f.Add("sk-secret", "X-sk-SECRET-", "a SK-secret b sk-secretsk-secret")
	f.Add("aa", "aaa", "aaaaa")
	f.Add("\xc3(", "x", "\xc3(\xc3(")
	f.Fuzz(func(t *testing.T, text, field, value string) {
		if text == "" || strings.Contains("redacted", strings.ToLower(text)) || strings.ContainsAny(text, "#") {
			return
		}
		h := http.Header{field: {value}}
		redact.Header(h, []string{text}, func(string) string { return "#" })
		for name, values := range h {
			for _, v := range values {
				if strings.Contains(v, text) || strings.Contains(name, text) && !strings.Contains(name, "redacted") {
					t.Errorf("%q: %q is left of %q: %q", text, name, field, v)
				}
			}
		}
	})
}
