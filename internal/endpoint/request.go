package endpoint

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/hop"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

var (
	errTarget  = errors.New("the target of the request is not a path")
	errDots    = errors.New("the path has a segment that another path could be meant by")
	errEscaped = errors.New("the path has an encoded slash, an empty segment, or what is encoded twice")
)

// pathOf takes the path out of the target of a request, as it was sent and decoded.
// A confined path must not lead above its prefix, even for a server that decodes it once more or
// removes parameters.
func pathOf(target string, confined bool) (raw, decoded string, err error) {
	raw, _, _ = strings.Cut(target, "?")
	if !strings.HasPrefix(target, "/") || strings.ContainsFunc(target, forbidden) || strings.Contains(raw, "#") {
		return "", "", errTarget
	}
	decoded, fault := rule.ReadPath(raw)
	switch {
	case fault == rule.PathMalformed:
		return "", "", errTarget
	case fault == rule.PathDots:
		return "", "", errDots
	case fault == rule.PathTwoWays && confined:
		return "", "", errEscaped
	}
	return raw, decoded, nil
}

// forbidden is true for what no target of a request holds.
func forbidden(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }

// allowed says whether a decoded path is one of those; none allow all.
func allowed(paths []string, p string) bool {
	return len(paths) == 0 || slices.ContainsFunc(paths, func(pattern string) bool {
		if below, ok := strings.CutSuffix(pattern, "/*"); ok {
			return strings.HasPrefix(p, below+"/")
		}
		return p == pattern
	})
}

// settle takes out of the header of a request what ends at this hop, before anything reads
// the header to decide: a field that Connection names would be read here and be missing at
// the target. The code says why the request goes no further; empty is that it does.
func (x *exchange) settle(r *http.Request) (code string) {
	asked := hop.Asked(hop.Head{
		Method: r.Method, HTTP11: r.ProtoMajor == 1 && r.ProtoMinor == 1, Body: r.ContentLength != 0 || len(r.TransferEncoding) > 0,
		Upgrade: r.Header["Upgrade"], Connection: r.Header["Connection"],
	})
	hop.Strip(r.Header)
	for name := range r.Header {
		if !plain(name) {
			delete(r.Header, name)
		}
	}
	switch asked {
	case hop.Malformed:
		x.detail = "it asks for a WebSocket with a body, or with another method than GET"
		return codeMalformed
	case hop.WebSocket:
		x.websocket = true
		r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	}
	return ""
}

// rewrite makes the request that the target gets. It was freed of what is for one
// hop before, so what is set here stays.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	out, spec := p.Out, x.up.spec.HTTP
	if spec == nil {
		spec = &api.EndpointHTTP{}
	}
	base := x.up.base
	_, query, asked := strings.Cut(p.In.RequestURI, "?")
	out.URL = &url.URL{
		Scheme: base.Scheme, Host: base.Host, RawQuery: query, ForceQuery: asked && query == "",
		Path:    strings.TrimSuffix(base.Path, "/") + x.decoded,
		RawPath: strings.TrimSuffix(base.EscapedPath(), "/") + x.raw,
	}
	out.Host = base.Host
	out.Trailer = p.In.Trailer // the same map: its values come after the body
	x.trailer = out.Trailer
	x.settleTrailer()
	for name := range out.Header {
		if removed(name) && !slices.ContainsFunc(spec.PassHeaders, func(h string) bool { return strings.EqualFold(h, name) }) {
			delete(out.Header, name)
		}
	}
	for name, value := range spec.SetHeaders {
		out.Header.Set(name, value)
		x.record.Injected = append(x.record.Injected, http.CanonicalHeaderKey(name))
	}
	for name, value := range x.secrets {
		out.Header.Set(name, value)
		x.record.Injected = append(x.record.Injected, name)
	}
	slices.Sort(x.record.Injected)
	out.Header.Set("X-Sandbox-Id", x.e.o.Sandbox)
	out.Header.Set("X-Endpoint", x.e.o.Spec.Name)
	x.capture.asked(out.Header)
}

// plain is true for names of fields with letters, digits and "-" alone. What runs behind
// WSGI, CGI or PHP takes other characters for "-": it could not tell X_Sandbox_Id from the
// field that the host sets.
func plain(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-'
	})
}

// settleTrailer takes out of the trailer what a target would believe as it believes the
// header: some put both together. It is called when the names are known that were
// announced, and when all has come.
func (x *exchange) settleTrailer() {
	for name := range x.trailer {
		if !plain(name) || removed(name) || hop.Ends(name) || ofHead(name) || x.sets(name) {
			delete(x.trailer, name)
		}
	}
}

// ofHead is true for fields that say how a request is to be read, which no trailer may.
func ofHead(name string) bool {
	switch name {
	case "Host", "Content-Length", "Content-Type", "Content-Encoding", "Content-Range", "Expect":
		return true
	}
	return false
}

// sets says whether the host sets a header of that name.
func (x *exchange) sets(name string) bool {
	same := func(o string) bool { return strings.EqualFold(o, name) }
	if h := x.up.spec.HTTP; h != nil && slices.ContainsFunc(slices.Collect(maps.Keys(h.SetHeaders)), same) {
		return true
	}
	return slices.ContainsFunc(slices.Collect(maps.Keys(x.secrets)), same)
}

// removed is true for headers that a target would trust, which a sandbox may not set.
func removed(name string) bool {
	switch name {
	case "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie", "Forwarded", "X-Endpoint", "X-Real-Ip":
		return true
	}
	for _, prefix := range []string{"Proxy-", "X-Forwarded-", "X-Sandbox-", "X-Bridge-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
