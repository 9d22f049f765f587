package terminal

import "strings"

// MaxSequence bounds what is kept of one escape sequence.
const MaxSequence = 64

// scanState is where in an escape sequence a scanner stands.
type scanState uint8

const (
	inText scanState = iota
	afterEscape
	inSequence // control sequence: ESC [
	inString   // a string that only its terminator ends
	inStringEscape
	inDesignator // ESC and an intermediate byte: one more follows
)

// token is what a scanner found with one byte.
type token uint8

const (
	tokenNone     token = iota // in the middle of something
	tokenText                  // a character, or a part of one, or a control character
	tokenEscape                // ESC and final
	tokenCharset               // ESC, the intermediate byte in params, and final
	tokenSequence              // ESC [ params final
)

// scanner takes the output of a program for a terminal apart, byte by byte. Its
// memory is bounded, and a sequence that is too long comes without parameters
// that mean anything. The zero value stands in text.
type scanner struct {
	state scanState
	seq   []byte
}

// step reads one byte. What it returns is whole with that byte.
func (s *scanner) step(b byte) (found token, params string, final byte) {
	switch {
	case b == 0x18 || b == 0x1a: // cancel
		s.state = inText
	case s.state == inString:
		if b == 0x1b {
			s.state = inStringEscape
		} else if b == 0x07 {
			s.state = inText
		}
	case s.state == inStringEscape && b == '\\':
		s.state = inText
	case b == 0x1b:
		s.state = afterEscape
	case s.state == afterEscape || s.state == inStringEscape:
		return s.escape(b)
	case s.state == inText || b < 0x20: // a control character acts in the middle of a sequence
		return tokenText, "", b
	case s.state == inDesignator && b >= 0x30:
		s.state = inText
		return tokenCharset, string(s.seq), b
	case s.state == inSequence && b >= 0x40 && b < 0x7f:
		s.state = inText
		return tokenSequence, string(s.seq), b
	case len(s.seq) < MaxSequence:
		s.seq = append(s.seq, b)
	default:
		s.seq[0] = '!' // no number, and no private marker
	}
	return tokenNone, "", 0
}

// escape reads the byte behind ESC.
func (s *scanner) escape(b byte) (token, string, byte) {
	s.state, s.seq = inText, s.seq[:0]
	switch {
	case b == '[':
		s.state = inSequence
	case strings.IndexByte("]PX^_", b) >= 0:
		s.state = inString
	case b >= 0x20 && b < 0x30:
		s.state, s.seq = inDesignator, append(s.seq, b)
	default:
		return tokenEscape, "", b
	}
	return tokenNone, "", 0
}
