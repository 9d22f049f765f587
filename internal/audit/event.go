// Package audit keeps the record of what was asked and what came of it: one JSON
// object a line, appended, never changed, and each with the hash of the one
// before. See package chain for the form and the proof.
package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
)

// Outcome is what came of a request.
type Outcome string

// The outcomes.
const (
	// Granted: policy allowed it, and it is about to be done. Written before what
	// must not happen unrecorded; Done or Failed follows.
	Granted Outcome = "granted"
	// Done: it was done.
	Done Outcome = "ok"
	// Refused: policy or validation said no; nothing was done.
	Refused Outcome = "refused"
	// Failed: it was allowed and did not work.
	Failed Outcome = "failed"
)

// Event is what a caller records. It must hold no secret: see ExecDetails and
// SpecDetails for what may be said of a request. What Options.Redactor knows is
// taken out of every part.
type Event struct {
	// Time is set by Record when it is zero.
	Time      time.Time
	RequestID string
	Tenant    string
	// Caller says who it was beyond the tenant: "unix uid 1000".
	Caller  string
	Verb    string
	Sandbox string
	Outcome Outcome
	// Code is the code of the error, if there was one.
	Code string
	// Rule is the rule that refused.
	Rule    string
	Details map[string]string
	// Usage is what a sandbox used; it belongs to VerbUsage.
	Usage *api.AuditUsed
}

const (
	// VerbUsage is the verb of the record of what a sandbox used.
	VerbUsage = "usage"
	// VerbUsePath is the verb of the record of what a rule on a path refused to a
	// program inside. A caller's use of a file has the caller's verb.
	VerbUsePath = "use_path"
	// VerbUsePort is the verb of the record of a request to the URL of a port: each refused one,
	// and each that exchanged a token for a cookie.
	VerbUsePort = "use_port"
	// VerbConnect is the verb of the record of a connection that a server in front of
	// the daemon refused, before any verb was asked for.
	VerbConnect = "connect"
)

// The details of what was noted of a request to an endpoint and of its answer.
const (
	DetailRequestHeader  = "request_header"
	DetailResponseHeader = "response_header"
	DetailRequestBody    = "request_body"
	DetailResponseBody   = "response_body"
)

// Bounds of one event, in bytes before JSON escapes.
const (
	maxField   = 1024
	maxDetails = 32
	maxKey     = 64
	// maxArgv bounds a command line.
	maxArgv = 4096
	// maxCapture bounds what was noted of a request to an endpoint.
	maxCapture = 12 << 10
	// MaxLine is the longest line of the log, its newline included.
	MaxLine = chain.MaxLine
	// chainRoom is what the chain adds to a line at most.
	chainRoom = 256
)

// encoder writes the JSON of one event, without braces.
type encoder struct {
	buf       []byte
	redactor  Redactor
	truncated bool
}

// encode returns the event as the fields of a JSON object. Every character that
// is not printable is escaped, so that nothing in an event can end the line or
// speak to a terminal.
func encode(e Event, fact *api.AuditFact, redactor Redactor) ([]byte, error) {
	body, err := encodeEvent(e, fact, redactor)
	if err != nil || len(body) <= MaxLine-chainRoom {
		return body, err
	}
	// Escapes made it too long; what names the event is small and stays.
	e.Details = map[string]string{"details": "too long"}
	if e.Usage != nil {
		short := *e.Usage
		short.Labels, e.Usage = nil, &short
	}
	return encodeEvent(e, fact, redactor)
}

func encodeEvent(e Event, fact *api.AuditFact, redactor Redactor) ([]byte, error) {
	w := encoder{buf: make([]byte, 0, 512), redactor: redactor}
	w.buf = append(w.buf, `"time":"`...)
	w.buf = e.Time.UTC().AppendFormat(w.buf, time.RFC3339Nano)
	w.buf = append(w.buf, '"')
	w.field("request_id", e.RequestID, false)
	w.field("tenant", e.Tenant, true)
	w.field("caller", e.Caller, false)
	w.field("verb", e.Verb, true)
	w.field("sandbox", e.Sandbox, false)
	w.field("outcome", string(e.Outcome), false)
	w.field("code", e.Code, false)
	w.field("rule", e.Rule, false)
	w.details(e.Details)
	if fact != nil {
		if err := w.json("chain", fact); err != nil {
			return nil, err
		}
	}
	if e.Usage != nil {
		if err := w.json("usage", redactedUsage(*e.Usage, redactor)); err != nil {
			return nil, err
		}
	}
	if w.truncated {
		w.buf = append(w.buf, `,"truncated":true`...)
	}
	return w.buf, nil
}

func (w *encoder) json(name string, part any) error {
	raw, err := json.Marshal(part)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	w.buf = append(w.buf, `,"`+name+`":`...)
	// Outside of strings JSON is printable ASCII: what is escaped stands in one.
	for _, r := range string(raw) {
		w.rune(r)
	}
	return nil
}

func redactedUsage(u api.AuditUsed, redactor Redactor) api.AuditUsed {
	if redactor == nil || len(u.Labels) == 0 {
		return u
	}
	labels := make(map[string]string, len(u.Labels))
	for k, v := range u.Labels {
		labels[redactor.Redact(k)] = redactor.Redact(v)
	}
	u.Labels = labels
	return u
}

func (w *encoder) field(name, value string, always bool) {
	if value == "" && !always {
		return
	}
	w.buf = append(w.buf, `,"`...)
	w.buf = append(w.buf, name...)
	w.buf = append(w.buf, `":`...)
	w.str(value, maxField)
}

func (w *encoder) details(d map[string]string) {
	if len(d) == 0 {
		return
	}
	keys := slices.Sorted(maps.Keys(d))
	if len(keys) > maxDetails {
		keys, w.truncated = keys[:maxDetails], true
	}
	w.buf = append(w.buf, `,"details":{`...)
	for i, k := range keys {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.str(k, maxKey)
		w.buf = append(w.buf, ':')
		w.str(d[k], limitOf(k))
	}
	w.buf = append(w.buf, '}')
}

// limitOf is how long the value of a detail may be.
func limitOf(key string) int {
	switch key {
	case detailArgv, "exec_" + detailArgv:
		return maxArgv
	case DetailRequestHeader, DetailResponseHeader, DetailRequestBody, DetailResponseBody:
		return maxCapture
	}
	return maxField
}

// str writes a string of at most limit bytes, after what is secret is out of it.
func (w *encoder) str(s string, limit int) {
	if w.redactor != nil {
		s = w.redactor.Redact(s)
	}
	if len(s) > limit {
		w.truncated = true
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	w.buf = append(w.buf, '"')
	for i := 0; i < len(s); {
		// Plain text is most of it.
		from := i
		for i < len(s) && plain[s[i]] {
			i++
		}
		w.buf = append(w.buf, s[from:i]...)
		if i == len(s) {
			break
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		switch r {
		case '"', '\\':
			w.buf = append(w.buf, '\\', byte(r))
		case '<', '>', '&': // as encoding/json has them, so that it changes nothing
			w.escape(uint16(r))
		default:
			w.rune(r)
		}
	}
	w.buf = append(w.buf, '"')
}

// rune writes a character that needs no backslash, escaped if it is not printable.
func (w *encoder) rune(r rune) {
	switch {
	case r != utf8.RuneError && unicode.IsPrint(r):
		w.buf = utf8.AppendRune(w.buf, r)
	case r > 0xffff:
		w.escape(uint16((r-0x10000)>>10 + 0xd800))
		w.escape(uint16((r-0x10000)&0x3ff + 0xdc00))
	default:
		w.escape(uint16(r))
	}
}

func (w *encoder) escape(u uint16) {
	const digits = "0123456789abcdef"
	w.buf = append(w.buf, '\\', 'u', digits[u>>12], digits[u>>8&15], digits[u>>4&15], digits[u&15])
}

// plain are the bytes that a JSON string holds as they are.
var plain = func() (t [256]bool) {
	for b := byte(' '); b < 0x7f; b++ {
		t[b] = b != '"' && b != '\\' && b != '<' && b != '>' && b != '&'
	}
	return t
}()
