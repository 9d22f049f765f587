package agent

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// PlainText is a text from inside that can be shown anywhere: valid, without control
// characters and terminal sequences, at most so many bytes.
func PlainText(text string, most int) string {
	if len(text) > 4*most {
		text = text[:4*most]
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(withoutSequences(text), "\uFFFD"))
	if len(text) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return text
}

// withoutSequences leaves out what speaks to a terminal: control sequences, and
// strings such as a window's title, with all that is in them.
func withoutSequences(text string) string {
	const esc = 0x1b
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != esc {
			out.WriteByte(text[i])
			continue
		}
		i++
		if i == len(text) {
			break
		}
		switch text[i] {
		case '[':
			for i++; i < len(text) && (text[i] < '@' || text[i] > '~'); i++ {
			}
		case '(', ')', '*', '+', '#', '%', ' ':
			i++ // a character set or the like, named by the next byte
		case ']', 'P', 'X', '^', '_':
			for i++; i < len(text) && text[i] != 0x07 && text[i] != esc; i++ {
			}
			if i+1 < len(text) && text[i] == esc && text[i+1] == '\\' {
				i++
			}
		}
	}
	return out.String()
}
