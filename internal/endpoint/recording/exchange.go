// Package recording keeps what went through endpoints as recordings, and finds the answers
// in them again: a file of JSON lines, the first about itself and one for each exchange.
package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// format is the version of the file.
	format = 1
	// MaxBody bounds the body of a request or response that is kept.
	MaxBody = 8 << 20
	// maxLine bounds a line of a file: both bodies in their longest form.
	maxLine = 48 << 20
	// maxHeaders, maxChunks bound an exchange.
	maxHeaders = 256
	maxChunks  = 1 << 20
)

// Chunk is bytes that came at once, as text where they are text.
type Chunk struct {
	// MS counts from when the request came.
	MS   int64  `json:"ms,omitempty"`
	Text string `json:"text,omitempty"`
	B64  []byte `json:"b64,omitempty"`
}

// ChunkOf makes one of bytes, which it copies.
func ChunkOf(b []byte, ms int64) Chunk {
	if utf8.Valid(b) && !strings.ContainsFunc(string(b), func(c rune) bool { return c < ' ' && c != '\n' && c != '\r' && c != '\t' || c == 0x7f }) {
		return Chunk{MS: ms, Text: string(b)}
	}
	return Chunk{MS: ms, B64: append([]byte{}, b...)}
}

// Bytes are what it holds.
func (c Chunk) Bytes() []byte {
	if c.B64 != nil {
		return c.B64
	}
	return []byte(c.Text)
}

// Request is what a target is asked.
type Request struct {
	Method string `json:"method"`
	// Path is below the target, as it was sent.
	Path string `json:"path"`
	// Query is without the values that grant access.
	Query string `json:"query,omitempty"`
	Body  Chunk  `json:"body,omitzero"`
}

// Response is what the target said.
type Response struct {
	Status  int         `json:"status"`
	Header  http.Header `json:"header,omitempty"`
	Trailer http.Header `json:"trailer,omitempty"`
	Chunks  []Chunk     `json:"chunks,omitempty"`
	// HeadMS is when it began.
	HeadMS int64 `json:"head_ms,omitempty"`
	// Cut: it did not come to its end.
	Cut bool `json:"cut,omitempty"`
}

// Exchange is a request with its response.
type Exchange struct {
	// N counts requests as they came.
	N        int64     `json:"n"`
	Time     time.Time `json:"time"`
	Request  Request   `json:"request"`
	Response Response  `json:"response,omitzero"`
	// Omitted is why the response is not here; empty is that it is.
	Omitted string `json:"omitted,omitempty"`
}

// head is the first line of a file.
type head struct {
	Recording int       `json:"recording"`
	Name      string    `json:"name"`
	Sandbox   string    `json:"sandbox,omitempty"`
	Endpoint  string    `json:"endpoint,omitempty"`
	Created   time.Time `json:"created"`
}

var errMalformed = errors.New("it is not a line of a recording")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// parse reads the line of an exchange, which may come from anywhere.
func parse(line []byte) (Exchange, error) {
	var x Exchange
	if err := json.Unmarshal(line, &x); err != nil {
		return x, malformed("%v", err)
	}
	if !token(x.Request.Method) || len(x.Request.Method) > 32 || !strings.HasPrefix(x.Request.Path, "/") || x.N < 1 {
		return x, malformed("its request has no method, path or number")
	}
	if x.Omitted != "" {
		return x, nil
	}
	if s := x.Response.Status; s < 200 || s > 599 {
		return x, malformed("the status is %d", s)
	}
	if n := len(x.Response.Header) + len(x.Response.Trailer); n > maxHeaders || len(x.Response.Chunks) > maxChunks {
		return x, malformed("it has %d headers and %d chunks", n, len(x.Response.Chunks))
	}
	for _, h := range []http.Header{x.Response.Header, x.Response.Trailer} {
		for name, values := range h {
			if !token(name) || http.CanonicalHeaderKey(name) != name || perHop(name) {
				return x, malformed("header %.80q", name)
			}
			for _, v := range values {
				if strings.ContainsFunc(v, control) {
					return x, malformed("the value of header %.80q", name)
				}
			}
		}
	}
	last := x.Response.HeadMS
	for _, c := range x.Response.Chunks {
		if c.Text != "" && c.B64 != nil || c.MS < last || c.MS > 24*time.Hour.Milliseconds() {
			return x, malformed("a chunk of its body")
		}
		last = c.MS
	}
	if last < 0 {
		return x, malformed("it began before it was asked for")
	}
	return x, nil
}

// token is true for what can be a method or the name of a header.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c) })
}

// control is true for what no value of a header holds.
func control(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// perHop is true for headers that are the connection's, and for the endpoint's own.
func perHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Te", "Trailer":
		return true
	}
	return strings.HasPrefix(name, "X-Bridge-") || strings.HasPrefix(name, "Proxy-")
}

// Headers are those that are kept: no cookies, and nothing of one hop.
func Headers(h http.Header) http.Header {
	out := http.Header{}
	for name, values := range h {
		if !perHop(name) && name != "Set-Cookie" && name != "Set-Cookie2" && len(out) < maxHeaders/2 {
			out[name] = append([]string{}, values...)
		}
	}
	return out
}

// credentials are parameters of queries that grant access.
var credentials = []string{"key", "api_key", "api-key", "apikey", "token", "access_token", "auth", "authorization", "password", "secret", "sig", "signature"}

// Query is one without the values that grant access; everything else of it stays as it
// is.
func Query(raw string) string {
	parts := strings.Split(raw, "&")
	for i, p := range parts {
		name, _, ok := strings.Cut(p, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil {
			plain = name
		}
		for _, d := range credentials {
			if ok && strings.EqualFold(plain, d) {
				parts[i] = name + "=redacted"
			}
		}
	}
	return strings.Join(parts, "&")
}
