// Package hop says which fields of an HTTP request end at the next hop, and which change
// of protocol may be passed on. It serves what the host forwards for a sandbox: endpoints
// and egress have one rule.
package hop

import (
	"net/http"
	"slices"
	"strings"
)

// Upgrade is what a request asks for by its field of that name.
type Upgrade int

const (
	// Ignored is no upgrade, or one that is not passed on. RFC 9110, 7.8, lets a server ignore
	// the field: the request goes on without it, as plain HTTP.
	Ignored Upgrade = iota
	// WebSocket is the first message of a WebSocket.
	WebSocket
	// Malformed names WebSocket and is not the first message of one: the target could
	// read its body as what comes after the change.
	Malformed
)

// Head is the part of a request by which its Upgrade is judged.
type Head struct {
	Method string
	// HTTP11 is false for every other version, where the field has no meaning.
	HTTP11 bool
	// Body is true where a body follows, or may follow.
	Body bool
	// Upgrade and Connection are the values of the fields.
	Upgrade, Connection []string
}

// Asked judges the Upgrade of a request. Anything but WebSocket alone is ignored, for a
// connection that becomes another protocol can carry requests that are not judged.
func Asked(h Head) Upgrade {
	switch {
	case len(h.Upgrade) != 1 || !strings.EqualFold(strings.Trim(h.Upgrade[0], " \t"), "websocket"):
		return Ignored
	case !h.HTTP11 || !slices.Contains(tokens(h.Connection), "upgrade"):
		return Ignored
	case h.Method != http.MethodGet || h.Body:
		return Malformed
	}
	return WebSocket
}

// Switched is true when the header of a response with the status 101 says that the
// connection is a WebSocket from now on.
func Switched(h http.Header) bool {
	return Asked(Head{Method: http.MethodGet, HTTP11: true, Upgrade: h["Upgrade"], Connection: h["Connection"]}) == WebSocket
}

// Strip takes out of a header the fields that end at this hop, and those that its
// Connection names. A Te with trailers stays as that alone.
func Strip(h http.Header) {
	trailers := slices.Contains(tokens(h["Te"]), "trailers")
	named := tokens(h["Connection"])
	for name := range h {
		if Ends(name) || slices.Contains(named, strings.ToLower(name)) {
			delete(h, name)
		}
	}
	if trailers {
		h["Te"] = []string{"trailers"}
	}
}

// Ends is true for the names of fields that end at this hop.
func Ends(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "connection", "keep-alive", "te", "trailer", "transfer-encoding":
		return true
	}
	return OfUpgrade(name) || strings.HasPrefix(name, "proxy-")
}

// OfUpgrade is true for the names of fields that go when an Upgrade is ignored, and for
// the tokens by which Connection names them.
func OfUpgrade(name string) bool {
	return strings.EqualFold(name, "Upgrade") || strings.EqualFold(name, "HTTP2-Settings")
}

// tokens are the parts of lists in lower case.
func tokens(values []string) []string {
	var out []string
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if t = strings.Trim(t, " \t"); t != "" {
				out = append(out, strings.ToLower(t))
			}
		}
	}
	return out
}
