// Package redact takes texts that must not reach a sandbox out of the head of an answer:
// out of the values of its fields, and out of their names.
package redact

import (
	"net/http"
	"strings"
)

// name stands in the place of a text in the name of a field, in which few characters can.
const name = "redacted"

// Header replaces texts in all fields of h: by what the function by makes of one in a
// value, and by a word in a name. Upper and lower case are the same, for what is written
// into a name comes back in other letters. Empty texts are none.
func Header(h http.Header, texts []string, by func(text string) string) {
	var renamed []string
	for field, values := range h {
		clean := field
		for _, text := range texts {
			for i, v := range values {
				values[i] = replace(v, text, by)
			}
			clean = replace(clean, text, func(string) string { return name })
		}
		if clean != field {
			renamed = append(renamed, field, clean)
		}
	}
	for i := 0; i < len(renamed); i += 2 {
		field, clean := renamed[i], renamed[i+1]
		h[clean] = append(h[clean], h[field]...)
		delete(h, field)
	}
}

// replace is s with every text in it replaced.
func replace(s, text string, by func(string) string) string {
	if text == "" || len(s) < len(text) {
		return s
	}
	low, find := lower(s), lower(text)
	var b strings.Builder
	for {
		at := strings.Index(low, find)
		if at < 0 {
			break
		}
		b.WriteString(s[:at])
		b.WriteString(by(text))
		s, low = s[at+len(find):], low[at+len(find):]
	}
	return b.String() + s
}

// lower makes letters of ASCII small, and changes no length.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Writer is an http.ResponseWriter whose informational answers have no such text in their
// heads, and no trailers of the final one. Those are written once Close was called.
type Writer struct {
	http.ResponseWriter
	Hide func(http.Header)
}

// Unwrap is for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *Writer) WriteHeader(status int) {
	w.Hide(w.Header())
	w.ResponseWriter.WriteHeader(status)
}

// Close hides texts in the trailers, which are among the fields by then.
func (w *Writer) Close() { w.Hide(w.Header()) }
