package command

import (
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// showing writes what a program wrote to a terminal that is not the program's own.
// Text, line ends, tabs and colours pass. Whatever else would act on the terminal
// (move the cursor, wipe what stands there, answer as if it had been typed) is
// shown instead: ESC as ^[, and a byte that is no text as \x9b. How the bytes are
// cut into writes makes no difference.
type showing struct {
	w io.Writer
	// held may be the beginning of something that passes. It is never longer than
	// maxSequence.
	held []byte
	// tinted is whether a colour is set that nothing put back.
	tinted bool
}

// Write implements io.Writer. It takes all of p, or fails with the terminal.
func (s *showing) Write(p []byte) (int, error) {
	if err := s.write(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush writes what is held back, because the rest of it will not come, and resets colors: other
// output follows.
func (s *showing) flush() error {
	if err := s.write(nil, true); err != nil || !s.tinted {
		return err
	}
	s.tinted = false
	_, err := io.WriteString(s.w, "\x1b[0m")
	return err
}

func (s *showing) write(p []byte, last bool) error {
	data := p
	if len(s.held) > 0 {
		data = append(s.held, p...)
	}
	out := make([]byte, 0, len(data)+len(data)/8)
	for len(data) > 0 {
		n, pass := s.next(data)
		if n == 0 && !last {
			break
		}
		if n == 0 {
			n = 1
		}
		if pass {
			out = append(out, data[:n]...)
		} else {
			out = spell(out, data[:n])
		}
		data = data[n:]
	}
	s.held = append([]byte(nil), data...)
	if len(out) == 0 {
		return nil
	}
	_, err := s.w.Write(out)
	return err
}

// next is how many bytes at the beginning of data belong together, and whether
// they pass; 0 when only what follows can tell.
func (s *showing) next(data []byte) (n int, pass bool) {
	b := data[0]
	switch {
	case b == '\n' || b == '\t' || b >= 0x20 && b < 0x7f:
		return 1, true
	case b == '\r' && len(data) == 1:
		return 0, false
	case b == '\r' && data[1] == '\n':
		return 2, true
	case b == 0x1b:
		return s.colour(data)
	case b < utf8.RuneSelf:
		return 1, false
	case !utf8.FullRune(data):
		return 0, false
	}
	r, size := utf8.DecodeRune(data)
	// U+0080 to U+009F are controls, which a terminal obeys in this form too.
	return size, r >= 0xa0 && (r != utf8.RuneError || size > 1)
}

// colour is next for an ESC: ESC [ numbers m passes.
func (s *showing) colour(data []byte) (n int, pass bool) {
	for i, b := range data[1:] {
		switch {
		case i == 0 && b == '[':
		case i > 0 && i < terminal.MaxSequence-1 && (b >= '0' && b <= '9' || b == ';' || b == ':'):
		case i > 0 && b == 'm':
			params := string(data[2 : i+1])
			s.tinted = params != "" && params != "0"
			return i + 2, true
		default:
			return 1, false
		}
	}
	return 0, false
}

// spell appends a control character, or a byte that is no text, as text.
func spell(out, char []byte) []byte {
	if c := char[0]; len(char) == 1 && c < utf8.RuneSelf {
		return append(out, '^', c^0x40)
	}
	if len(char) == 1 {
		return fmt.Appendf(out, `\x%02x`, char[0])
	}
	r, _ := utf8.DecodeRune(char)
	return fmt.Appendf(out, `\u%04x`, r)
}

// Output is where the output of a sandbox's programs goes.
type Output struct{ out, err io.Writer }

// Output is this process's own streams. Where one is a terminal, and is not the
// program's for this time, nothing passes that would act on it.
func (a *CLI) Output(own bool) Output {
	guard := func(w io.Writer) io.Writer {
		if _, tty := TerminalOf(w); tty && !own {
			return &showing{w: w}
		}
		return w
	}
	return Output{guard(a.Stdio.Out), guard(a.Stdio.Err)}
}

// Write writes what a program wrote to one of its streams.
func (o Output) Write(s api.Stream, p []byte) error {
	w := o.out
	if s == api.Stderr {
		w = o.err
	}
	if _, err := w.Write(p); err != nil {
		return OutputError(err)
	}
	return nil
}

// Flush ends a piece of output before something else is written.
func (o Output) Flush() error {
	for _, w := range []io.Writer{o.out, o.err} {
		if s, ok := w.(*showing); ok {
			if err := s.flush(); err != nil {
				return OutputError(err)
			}
		}
	}
	return nil
}

// RawUsage is the usage text of the flag --raw.
const RawUsage = "on a terminal, pass control characters of the output through (default: print them)"
