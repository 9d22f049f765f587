package intercept

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

const (
	// marker begins every placeholder, so that the search for them does not depend on
	// what is random in them.
	marker = "cloche-secret-"
	// placeholderLen is the marker and 26 of a-z2-7.
	placeholderLen = len(marker) + 26
)

// NewPlaceholder is a text that stands for a secret in one sandbox and is nowhere
// else. It is made of letters, digits and '-', which headers, queries, URLs and
// shells leave as they are.
func NewPlaceholder() string { return marker + strings.ToLower(rand.Text()) }

func isPlaceholder(s string) bool {
	return len(s) == placeholderLen && strings.HasPrefix(s, marker) && strings.Trim(s[len(marker):], "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// placeholders calls yield with where each placeholder of s begins in text. How
// long that takes does not tell how much of one was guessed.
func placeholders(text string, s Secret, yield func(at int)) {
	for from := 0; ; {
		at := strings.Index(text[from:], marker)
		if at < 0 {
			return
		}
		at += from
		from = at + len(marker)
		if len(text) >= at+placeholderLen && subtle.ConstantTimeCompare([]byte(text[at:at+placeholderLen]), []byte(s.Placeholder)) == 1 {
			yield(at)
		}
	}
}

func contains(text string, s Secret) bool {
	found := false
	placeholders(text, s, func(int) { found = true })
	return found
}

// replace is text with value in the place of each placeholder of s.
func replace(text string, s Secret, value string) string {
	var out strings.Builder
	end := 0
	placeholders(text, s, func(at int) {
		if at < end {
			return
		}
		out.WriteString(text[end:at])
		out.WriteString(value)
		end = at + placeholderLen
	})
	out.WriteString(text[end:])
	return out.String()
}

// basic takes "Basic …" apart.
func basic(value string) (scheme, credentials string, ok bool) {
	scheme, rest, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "basic") {
		return "", "", false
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	return scheme, string(raw), err == nil
}

// fieldOf is the name of a field in which a placeholder of s stands; empty if no field has one.
func fieldOf(s Secret, h http.Header) string {
	for name, values := range h {
		for _, v := range values {
			if contains(v, s) {
				return name
			}
			if _, credentials, ok := basic(v); ok && contains(credentials, s) {
				return name
			}
		}
	}
	return ""
}

// foundIn is where in a head a placeholder of s stands, in words; empty is nowhere.
func foundIn(s Secret, h http.Header, target string) string {
	if name := fieldOf(s, h); name != "" {
		return "field " + name
	}
	if contains(target, s) {
		return "target"
	}
	if plain, err := url.PathUnescape(target); err == nil && contains(plain, s) {
		return "target"
	}
	return ""
}

// errValue is a secret whose value is not available now, or is not valid in its
// place.
var errValue = errors.New("the value of a secret is not available")

// substitution is what was put into one request.
type substitution struct {
	names []string // of secrets
	// sent are texts that must not come back: values, and what holds one in another
	// coding.
	sent []string
}

// judgeSecrets says why the placeholders of a request must not go where it goes.
func (i *Interceptor) judgeSecrets(n rule.Name, port uint16, r *http.Request) *rule.Refusal {
	target := r.URL.RequestURI()
	for _, s := range i.secrets {
		where := foundIn(s, r.Header, target)
		if where == "" {
			continue
		}
		bound := slices.ContainsFunc(s.Hosts, func(h rule.Host) bool { return h.Matches(n, port) })
		if !bound {
			to := rule.Host{Name: string(n), Port: port}.String()
			return refuseSecret(s, "does not go to "+to, "hosts: ["+to+"]")
		}
		if ref := s.misplaced(r); ref != nil {
			return ref
		}
	}
	return nil
}

// misplaced says where in a request to the right host a placeholder must not be.
func (s Secret) misplaced(r *http.Request) *rule.Refusal {
	if contains(r.URL.EscapedPath(), s) || contains(r.URL.Path, s) {
		return refuseSecret(s, "is in the path of the request, where it is not replaced", "")
	}
	if !s.Query && contains(r.URL.RawQuery, s) {
		return refuseSecret(s, "is in the query of the request, where it is not replaced", "query: true")
	}
	if len(s.Headers) == 0 {
		return nil
	}
	rest := http.Header{}
	for name, values := range r.Header {
		if !slices.ContainsFunc(s.Headers, func(h string) bool { return strings.EqualFold(h, name) }) {
			rest[name] = values
		}
	}
	if name := fieldOf(s, rest); name != "" {
		return refuseSecret(s, "is in the field "+shown(name)+", where it is not replaced", "headers: ["+shown(name)+"]")
	}
	return nil
}

func refuseSecret(s Secret, why, allow string) *rule.Refusal {
	ref := &rule.Refusal{Rule: rule.RuleSecret, Reason: fmt.Sprintf("the placeholder of the secret %s %s", s.Name, why)}
	if allow != "" {
		ref.Allow = "secrets: {name: " + s.Name + ", " + allow + "}"
	}
	return ref
}

// substitute puts values in the place of their placeholders. The request was
// judged before.
func (i *Interceptor) substitute(ctx context.Context, n rule.Name, port uint16, r *http.Request) (substitution, error) {
	var out substitution
	for _, s := range i.boundTo(n, port) {
		if foundIn(s, r.Header, r.URL.RequestURI()) == "" {
			continue
		}
		value, err := i.value(ctx, s.Name)
		if err != nil {
			return out, fmt.Errorf("%w: secret %s: %w", errValue, s.Name, err)
		}
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return out, fmt.Errorf("%w: secret %s has a control character in it, which no field may have", errValue, s.Name)
		}
		out.names = append(out.names, s.Name)
		out.sent = append(out.sent, value)
		for name, values := range r.Header {
			for at, v := range values {
				r.Header[name][at] = out.field(v, s, value)
			}
		}
		if s.Query && contains(r.URL.RawQuery, s) {
			escaped := url.QueryEscape(value)
			r.URL.RawQuery = replace(r.URL.RawQuery, s, escaped)
			out.sent = append(out.sent, escaped)
		}
	}
	return out, nil
}

// field is one value of a field, with the secret in it.
func (o *substitution) field(v string, s Secret, value string) string {
	if scheme, credentials, ok := basic(v); ok && contains(credentials, s) {
		coded := base64.StdEncoding.EncodeToString([]byte(replace(credentials, s, value)))
		o.sent = append(o.sent, coded)
		return scheme + " " + coded
	}
	return replace(v, s, value)
}
