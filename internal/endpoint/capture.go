package endpoint

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

const (
	// redacted replaces a hidden value.
	redacted = "[redacted]"
	// captureBeyond is how much more of a body is looked at than is told: the value of a
	// secret that begins in it is taken out whole.
	captureBeyond = 8 << 10
	// maxCaptured bounds what is told of a body or of headers as it stands in the log,
	// where what cannot be printed takes six bytes.
	maxCaptured = 12 << 10
)

// capturing is what of one exchange goes on record beside its outline. A nil one is
// nothing.
type capturing struct {
	x    *exchange
	spec api.EndpointAudit

	mu       sync.Mutex // bodies are read by what sends them on
	capture  api.ExchangeCapture
	in, out  []byte
	encoding [2]string // of the bodies
}

// startCapture begins to note a request that goes on, if it is to be on record.
func (x *exchange) startCapture(r *http.Request) {
	a := x.up.spec.Audit
	if a == nil {
		return
	}
	x.capture = &capturing{x: x, spec: *a}
	if a.MaxBytes > 0 && r.Body != nil && r.Body != http.NoBody {
		x.capture.encoding[0] = r.Header.Get("Content-Encoding")
		r.Body = &capturedBody{r.Body, x.capture}
	}
}

// capturedBody is the body of a request on its way.
type capturedBody struct {
	io.ReadCloser
	c *capturing
}

// Read implements io.Reader.
func (b *capturedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.c.in = b.c.more(b.c.in, p[:n])
	return n, err
}

// more adds to what is kept of a body. The caller holds mu.
func (c *capturing) more(kept, b []byte) []byte {
	room := c.spec.MaxBytes + captureBeyond - len(kept)
	return append(kept, b[:min(len(b), max(room, 0))]...)
}

// asked notes the headers that the target gets.
func (c *capturing) asked(h http.Header) {
	if c != nil {
		c.capture.RequestHeader = c.headers(h)
	}
}

// answered notes the head of the response.
func (c *capturing) answered(res *http.Response) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.capture.ResponseHeader = c.headers(res.Header)
	c.encoding[1] = res.Header.Get("Content-Encoding")
}

// took notes a piece of the response.
func (c *capturing) took(b []byte) {
	if c == nil || c.spec.MaxBytes == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = c.more(c.out, b)
}

// headers are a header of each line, without the values that grant access.
func (c *capturing) headers(h http.Header) string {
	var lines []string
	for name, values := range h {
		for _, v := range values {
			if c.hides(name) {
				v = redacted
			}
			lines = append(lines, name+": "+v)
		}
	}
	slices.Sort(lines)
	return c.tell(strings.Join(lines, "\n"), maxCaptured)
}

// hides reports whether the value of a header is hidden.
func (c *capturing) hides(name string) bool {
	same := func(o string) bool { return strings.EqualFold(o, name) }
	switch http.CanonicalHeaderKey(name) {
	case "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie", "Set-Cookie", "Set-Cookie2", "Proxy-Authorization", "Www-Authenticate":
		return true
	}
	return slices.ContainsFunc(c.spec.RedactHeaders, same) || slices.ContainsFunc(c.x.record.Injected, same)
}

// tell is a text without the values of secrets, cut.
func (c *capturing) tell(s string, most int) string {
	s = c.x.redact(s)
	cost := 0
	for i, r := range s {
		if cost++; r < ' ' || r > '~' || r == '<' || r == '>' || r == '&' {
			cost += 11
		}
		if i+utf8.RuneLen(r) > most || cost > maxCaptured {
			c.capture.Cut = true
			return s[:i]
		}
	}
	return s
}

// body is what is told of one, or why nothing is.
func (c *capturing) body(b []byte, encoding string) (text, why string) {
	switch whole := len(b) <= c.spec.MaxBytes; {
	case len(b) == 0:
		return "", ""
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		return "", "encoded" // where nothing can be taken out of it
	case !utf8.Valid(b) && (whole || !utf8.Valid(trimRune(b))):
		return "", "binary"
	}
	return c.tell(string(trimRune(b)), c.spec.MaxBytes), ""
}

// trimRune leaves out a character at the end that was cut.
func trimRune(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// end is what goes on record.
func (c *capturing) end() *api.ExchangeCapture {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var why [2]string
	c.capture.RequestBody, why[0] = c.body(c.in, c.encoding[0])
	c.capture.ResponseBody, why[1] = c.body(c.out, c.encoding[1])
	for i, which := range []string{"request", "response"} {
		if why[i] != "" {
			c.capture.Omitted = append(c.capture.Omitted, which+" "+why[i])
		}
	}
	out := c.capture
	return &out
}
