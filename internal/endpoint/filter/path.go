// Package filter takes out of requests to a model's API what the provider would do by
// itself, such as searching the web or fetching an address: a sandbox without a network
// would have one through it. It is pure, and what it cannot judge it does not let pass.
package filter

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Kind is what a request is to a filter.
type Kind int

const (
	// Other is no request to a model's API.
	Other Kind = iota
	// Plain is one that makes a provider do nothing else than it says.
	Plain
	// Model is one whose body says what the provider may do.
	Model
	// Denied is to a part of the API that is a network, or that is not known.
	Denied
)

// version is the segment of a path that begins an API: what comes after it and is not
// known is denied.
var version = regexp.MustCompile(`^v[0-9]+[0-9a-z.]*$`)

// Of says what a request is, by its method and its whole path on the target. A request
// for another protocol, such as a WebSocket, cannot be looked into.
func Of(method, path string, upgrade bool) Kind {
	segments := clean(path)
	i := slices.IndexFunc(segments, version.MatchString)
	kind := unversioned(segments)
	if i >= 0 {
		kind = versioned(method, segments[i+1:])
	}
	if upgrade && kind != Other {
		return Denied
	}
	return kind
}

// clean is the path as any server could read it.
func clean(path string) []string {
	if again, err := url.PathUnescape(path); err == nil {
		path = again
	}
	var out []string
	for seg := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		seg, _, _ = strings.Cut(seg, ";")
		if seg = fold(strings.TrimSpace(seg)); seg != "" {
			out = append(out, seg)
		}
	}
	return out
}

// fold makes one of the forms that some server takes for the same.
func fold(s string) string { return strings.ToLower(strings.ToUpper(s)) }

func versioned(method string, rest []string) Kind {
	switch strings.Join(rest, "/") {
	case "chat/completions", "completions", "responses", "responses/input_tokens", "responses/compact", "messages", "messages/count_tokens":
		return Model
	case "", "models", "embeddings", "moderations", "rerank", "score", "tokenize", "detokenize":
		return Plain
	}
	if n := len(rest); n > 2 && rest[n-2] == "chat" && rest[n-1] == "completions" {
		return Model // as providers offer it below an API of their own
	}
	look := method == "GET" || method == "HEAD"
	switch {
	case rest[0] == "models" && look:
		return Plain
	case rest[0] == "responses" && len(rest) == 2 && (look || method == "DELETE"),
		rest[0] == "responses" && len(rest) == 3 && (rest[2] == "cancel" || rest[2] == "input_items" && look):
		return Plain
	}
	return Denied
}

// unversioned judges paths of APIs that name no version, by how they end.
func unversioned(segments []string) Kind {
	tail := func(want ...string) bool {
		return len(segments) >= len(want) && slices.Equal(segments[len(segments)-len(want):], want)
	}
	if tail("completions") || tail("responses") || tail("messages") || tail("messages", "count_tokens") ||
		tail("responses", "input_tokens") || tail("responses", "compact") {
		return Model
	}
	if len(segments) > 0 {
		// Dialects whose capabilities are not known here.
		last := segments[len(segments)-1]
		_, verb, _ := strings.Cut(last, ":")
		for _, name := range []string{verb, last} {
			switch name {
			case "generatecontent", "streamgeneratecontent", "rawpredict", "streamrawpredict", "converse", "converse-stream", "invoke-with-response-stream":
				return Denied
			}
		}
	}
	return Other
}
