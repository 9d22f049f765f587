package ingress

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// maxTokens bounds the tokens of one request that are compared. A page of another origin of the
// domain can add cookies of the same name.
const maxTokens = 16

// The names of the cookie with the token. Browsers accept the one for TLS only from the host itself.
const (
	cookieName       = "cloche_port"
	secureCookieName = "__Host-cloche_port"
)

func (b Base) cookieName() string {
	if b.Secure() {
		return secureCookieName
	}
	return cookieName
}

// ownCookie reports whether a name is one of the names above. Browsers compare the prefix without
// case.
func ownCookie(name string) bool {
	return strings.EqualFold(name, cookieName) || strings.EqualFold(name, secureCookieName)
}

// tokens returns the tokens that a request shows in its header and its cookies.
func (b Base) tokens(r *http.Request, sandbox string) []string {
	out := append([]string{}, r.Header[api.PortTokenHeader]...)
	if b.ownPage(r, sandbox) {
		for _, line := range r.Header["Cookie"] {
			for pair := range strings.SplitSeq(line, ";") {
				if name, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && name == b.cookieName() && len(out) < maxTokens {
					out = append(out, value)
				}
			}
		}
	}
	return out[:min(len(out), maxTokens)]
}

// ownPage reports whether the cookie of a request counts: it comes from a page of the same sandbox,
// from the user, or is a navigation that changes nothing. All ports are below one domain, which makes
// them one site for browsers, so that SameSite alone does not separate sandboxes.
func (b Base) ownPage(r *http.Request, sandbox string) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "null" {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != b.Scheme {
			return false
		}
		from, _, ok := b.parse(u.Host)
		return ok && from == sandbox
	} else if origin == "null" {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" && safe(r.Method)
}

// safe reports whether a method changes nothing.
func safe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// parameter returns the token in the query of a request, and whether there is one. Of several, none
// is valid.
func parameter(r *http.Request) (token string, ok bool) {
	n := 0
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if value, is := tokenPair(pair); is {
			token, n = value, n+1
		}
	}
	if n > 1 {
		token = ""
	}
	return token, n > 0
}

// tokenPair reports whether a pair of a query has the token, and returns it.
func tokenPair(pair string) (value string, ok bool) {
	name, value, _ := strings.Cut(pair, "=")
	if name, err := url.QueryUnescape(name); err != nil || name != api.PortTokenParameter {
		return "", false
	}
	value, err := url.QueryUnescape(value)
	if err != nil {
		return "", true
	}
	return value, true
}

// withoutToken returns a query without the token, and otherwise byte for byte the same.
func withoutToken(query string) string {
	if query == "" {
		return ""
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		if _, is := tokenPair(pair); !is {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

// withoutCookie removes the cookies with a token from a request, and leaves the others byte for byte
// the same.
func withoutCookie(h http.Header) {
	var lines []string
	for _, line := range h["Cookie"] {
		var kept []string
		for pair := range strings.SplitSeq(line, ";") {
			if name, _, _ := strings.Cut(strings.TrimSpace(pair), "="); !ownCookie(strings.TrimSpace(name)) {
				kept = append(kept, pair)
			}
		}
		if line := strings.TrimSpace(strings.Join(kept, ";")); line != "" {
			lines = append(lines, line)
		}
	}
	if delete(h, "Cookie"); len(lines) > 0 {
		h["Cookie"] = lines
	}
}

// cookiesOfSandbox changes the cookies that a program sets: none can have the name of the token, and
// none reaches the origins of other ports.
func cookiesOfSandbox(h http.Header) {
	var lines []string
	for _, line := range h["Set-Cookie"] {
		parts := strings.Split(line, ";")
		if name, _, _ := strings.Cut(parts[0], "="); ownCookie(strings.TrimSpace(name)) {
			continue
		}
		kept := parts[:1]
		for _, part := range parts[1:] {
			if name, _, _ := strings.Cut(part, "="); !strings.EqualFold(strings.TrimSpace(name), "domain") {
				kept = append(kept, part)
			}
		}
		lines = append(lines, strings.Join(kept, ";"))
	}
	if delete(h, "Set-Cookie"); len(lines) > 0 {
		h["Set-Cookie"] = lines
	}
}
