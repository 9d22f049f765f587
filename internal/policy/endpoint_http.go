package policy

import (
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// cleanEndpointHTTP checks how requests are forwarded.
func cleanEndpointHTTP(field string, e *api.Endpoint) *api.Error {
	if e.HTTP == nil && len(e.Presets) > 0 && !e.Raw() {
		e.HTTP = &api.EndpointHTTP{}
	}
	h, field := e.HTTP, under(field, "http")
	if h == nil {
		return nil
	}
	if e.Raw() {
		return api.Invalid(field, "endpoint %s passes bytes on, and %s is about requests", rules.Quote(e.Name), field).
			WithHint("leave it out, or write a target with http or https")
	}
	for i, m := range h.Methods {
		one := rules.ElementAt(field+".methods", i)
		h.Methods[i] = strings.ToUpper(m)
		if !headerToken(m) || h.Methods[i] == "CONNECT" || h.Methods[i] == "TRACE" || len(h.Methods) > maxEndpointList {
			return api.Invalid(one, "%s %s is not a method that an endpoint takes", one, rules.Quote(m)).
				WithHint("write at most %d such as GET; CONNECT and TRACE never go through", maxEndpointList)
		}
	}
	for i, p := range h.Paths {
		one := rules.ElementAt(field+".paths", i)
		if !endpointPath(p) || len(h.Paths) > maxEndpointList {
			return api.Invalid(one, "%s %s is not a path", one, rules.Quote(p)).
				WithHint(`write at most %d such as "/v1/models", or "/v1/*" for all below it; there are no other patterns`, maxEndpointList)
		}
	}
	if h.BodyFilter == "" && len(e.Presets) > 0 {
		h.BodyFilter = api.BodyFilterStrip
	}
	if one := field + ".body_filter"; rules.FilterStrength(h.BodyFilter) < 0 {
		return api.Invalid(one, "%s is %s", one, rules.Quote(h.BodyFilter)).WithHint("write off, strip or refuse")
	}
	if one, n := field+".event_keepalive_ms", h.EventKeepAliveMS; n != 0 && (n < minKeepAliveMS || n > maxEndpointMS) {
		return api.Invalid(one, "%s is %d", one, n).WithHint("%d to %d; 0 is never", minKeepAliveMS, maxEndpointMS)
	}
	return cleanEndpointHeaders(field, h)
}

// holdFilter applies the weakest filter that a rule allows.
func holdFilter(field string, g *EndpointGrant, floor int) *api.Error {
	if floor <= 0 || g.Spec.Raw() {
		return nil
	}
	if g.Spec.HTTP == nil {
		g.Spec.HTTP = &api.EndpointHTTP{}
	}
	name := []string{api.BodyFilterOff, api.BodyFilterStrip, api.BodyFilterRefuse}[floor]
	h := g.Spec.HTTP
	if h.BodyFilter == api.BodyFilterOff {
		return rules.Denied(g.Rule+".body_filter", under(field, "http.body_filter"), "body_filter is off, and the operator wants %s for this target", name).
			WithHint("leave it out, or write %s", name)
	}
	if rules.FilterStrength(h.BodyFilter) < floor {
		h.BodyFilter = name
	}
	return nil
}

func endpointPath(p string) bool {
	below := strings.TrimSuffix(p, "/*")
	if !strings.HasPrefix(p, "/") || len(p) > rules.MaxTarget || strings.ContainsFunc(p, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' || c == '?' || c == '#' }) {
		return false
	}
	return !strings.Contains(below, "*") && !strings.Contains(p, "//") &&
		!slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return s == "." || s == ".." })
}

func cleanEndpointHeaders(field string, h *api.EndpointHTTP) *api.Error {
	seen := map[string]string{}
	check := func(one, name string) *api.Error {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if !headerToken(name) || ownedHeader(canonical) {
			return api.Invalid(one, "%s: header %s cannot be chosen", one, rules.Quote(name)).
				WithHint("write the name of an end-to-end header; Cloche sets headers about the connection and the client")
		}
		if by := seen[canonical]; by != "" {
			return api.Invalid(one, "%s: header %s is in %s too", one, rules.Quote(name), by).WithHint("say it once")
		}
		seen[canonical] = one
		return nil
	}
	if n := len(h.SetHeaders) + len(h.SecretHeaders) + len(h.PassHeaders); n > maxEndpointHeaders {
		return rules.TooLarge(field, "%s names %d headers", field, n).WithHint("at most %d", maxEndpointHeaders)
	}
	for _, name := range slices.Sorted(maps.Keys(h.SetHeaders)) {
		one, v := field+".set_headers", h.SetHeaders[name]
		if err := check(one, name); err != nil {
			return err
		}
		if credential(textproto.CanonicalMIMEHeaderKey(name)) {
			return api.Invalid(one, "%s: header %s is for a credential, and what is written here is shown", one, rules.Quote(name)).
				WithHint("name a secret in secret_headers")
		}
		if len(v) > maxHeaderValue || strings.ContainsFunc(v, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return api.Invalid(one, "%s: the value of %s cannot stand in a header", one, rules.Quote(name)).
				WithHint("at most %d bytes on one line", maxHeaderValue)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.SecretHeaders)) {
		one := field + ".secret_headers"
		if err := check(one, name); err != nil {
			return err
		}
		if s := h.SecretHeaders[name]; s == "" || len(s) > api.MaxNameLen || !headerToken(s) {
			return api.Invalid(one, "%s: %s is not the name of a secret", one, rules.Quote(s)).WithHint("name a secret, not its value")
		}
	}
	for i, name := range h.PassHeaders {
		one := rules.ElementAt(field+".pass_headers", i)
		if err := check(one, name); err != nil {
			return err
		}
		if strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return api.Invalid(one, "%s: header %s never goes on, for a target could take it for another", one, rules.Quote(name)).
				WithHint("write a name of letters, digits and -")
		}
	}
	return nil
}

// headerToken reports whether s is a valid name of a header or a method.
func headerToken(s string) bool {
	if s == "" || len(s) > maxLabelKey {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// ownedHeader reports whether a header is hop-by-hop or identifies the sender, or has a name that
// some targets use for that, such as X_Sandbox_Id.
func ownedHeader(name string) bool {
	name = textproto.CanonicalMIMEHeaderKey(strings.NewReplacer("_", "-", ".", "-").Replace(name))
	switch name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade", "Http2-Settings", "Expect", "X-Endpoint":
		return true
	}
	for _, prefix := range []string{"Proxy-", "X-Sandbox-", "X-Bridge-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// credential reports whether a header's name says that it holds a credential.
func credential(name string) bool {
	switch name {
	case "Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key":
		return true
	}
	return false
}

// cleanRecording checks the recording settings.
func cleanRecording(field string, e *api.Endpoint) *api.Error {
	replays := strings.HasPrefix(e.Target, api.TargetReplay)
	switch one := under(field, "record"); {
	case e.Record == "":
	case !api.ValidName(e.Record):
		return api.Invalid(one, "%s %s cannot name a recording", one, rules.Quote(e.Record)).WithHint("use 1 to 64 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit")
	case replays || e.Raw():
		return api.Invalid(one, "%s is for a target that speaks HTTP, and %s does not or is a recording itself", one, rules.Quote(e.Target)).WithHint("leave it out")
	}
	if e.Replay == nil {
		return nil
	}
	if one := under(field, "replay"); !replays {
		return api.Invalid(one, "%s is for the target of a recording, and %s is not one", one, rules.Quote(e.Target)).WithHint("leave it out, or write replay:NAME as the target")
	}
	if one, m := under(field, "replay.match"), e.Replay.Match; m != "" && m != api.ReplayByDigest && m != api.ReplayByOrder {
		return api.Invalid(one, "%s is %s", one, rules.Quote(m)).WithHint("write digest or order")
	}
	return nil
}
