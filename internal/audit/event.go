// Package audit keeps the record of what was asked and what came of it: one
// JSON object a line, appended and never changed.
package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"
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

// Event is one line of the log. It must hold no secret: see ExecDetails and
// SpecDetails for what may be said of a request.
type Event struct {
	// Time is set by Record when it is zero.
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id,omitempty"`
	Tenant    string    `json:"tenant"`
	// Caller says who it was beyond the tenant: "unix uid 1000".
	Caller  string  `json:"caller,omitempty"`
	Verb    string  `json:"verb"`
	Sandbox string  `json:"sandbox,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Code is the code of the error, if there was one.
	Code string `json:"code,omitempty"`
	// Rule is the rule that refused.
	Rule    string            `json:"rule,omitempty"`
	Details map[string]string `json:"details,omitempty"`
	// Truncated is set by Record when a part was too long and was cut.
	Truncated bool `json:"truncated,omitempty"`
}

// Bounds of one event, in bytes before JSON escapes.
const (
	maxField   = 1024
	maxDetails = 32
	maxKey     = 64
	// MaxLine is the longest line of the log, its newline included.
	MaxLine = 64 << 10
)

// encode returns the event as one line with its newline, of at most MaxLine
// bytes. Every character that is not printable is escaped, so that nothing in
// an event can end the line or speak to a terminal.
func encode(e Event) ([]byte, error) {
	e.Time = e.Time.UTC()
	for _, f := range []*string{
		&e.RequestID, &e.Tenant, &e.Caller, &e.Verb, &e.Sandbox, (*string)(&e.Outcome), &e.Code, &e.Rule,
	} {
		*f = e.cut(*f, maxField)
	}
	details := e.Details
	e.Details = make(map[string]string, min(len(details), maxDetails))
	for _, k := range slices.Sorted(maps.Keys(details)) {
		if len(e.Details) == maxDetails {
			e.Truncated = true
			break
		}
		e.Details[e.cut(k, maxKey)] = e.cut(details[k], maxField)
	}
	line, err := marshalLine(e)
	if err != nil || len(line) <= MaxLine {
		return line, err
	}
	// Escapes made it too long; what names the event is small and stays.
	e.Details, e.Truncated = nil, true
	return marshalLine(e)
}

func (e *Event) cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	e.Truncated = true
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

func marshalLine(e Event) ([]byte, error) {
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode event: %w", err)
	}
	var line bytes.Buffer
	line.Grow(len(raw) + 1)
	// Outside of strings JSON is all printable ASCII, so every rune that is
	// escaped here stands in a string, where \u is right.
	for _, r := range string(raw) {
		switch {
		case unicode.IsPrint(r):
			line.WriteRune(r)
		case r > 0xffff:
			hi, lo := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			fmt.Fprintf(&line, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&line, `\u%04x`, r)
		}
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}
