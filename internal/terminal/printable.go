package terminal

import (
	"strings"
	"unicode"
)

// Printable keeps text that a sandbox may have influenced from moving the
// cursor, forging further lines on the caller's terminal, or being read in another
// order than it has.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0), unicode.Is(unicode.Bidi_Control, r):
			return '\uFFFD'
		}
		return r
	}, s)
}

// Clip cuts a long value for a message. A short one is returned as it is.
func Clip(s string) string {
	const longest = 200
	if len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(s[:longest], "") + "…"
}
