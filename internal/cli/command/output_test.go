package command

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/internal/terminal"
)

// passThrough is what a terminal is shown of p, in writes that end where cuts say.
func passThrough(t *testing.T, p []byte, cuts []byte) string {
	t.Helper()
	var b bytes.Buffer
	s := &showing{w: &b}
	for len(p) > 0 {
		n := len(p)
		if len(cuts) > 0 {
			n, cuts = min(n, int(cuts[0])), cuts[1:]
		}
		if m, err := s.Write(p[:n]); m != n || err != nil {
			t.Fatalf("took %d of %d: %v", m, n, err)
		}
		if len(s.held) > terminal.MaxSequence {
			t.Fatalf("%d bytes are held", len(s.held))
		}
		p = p[n:]
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestOutputOnATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\nüñï 😀\n":                   "plain\ttext\nüñï 😀\n",
		"dos\r\nlines":                           "dos\r\nlines",
		"\x1b[1;31mred\x1b[0m":                   "\x1b[1;31mred\x1b[0m",
		"\x1b[38:5:8mred\x1b[m":                  "\x1b[38:5:8mred\x1b[m",
		"\x1b[31mstays":                          "\x1b[31mstays\x1b[0m", // and is put back
		"hidden\rshown":                          "hidden^Mshown",
		"\x1b[2J\x1b[H":                          "^[[2J^[[H",
		"\x1b]0;title\x07":                       "^[]0;title^G",
		"\x1b]52;c;cm0gLXJm\x1b\\":               `^[]52;c;cm0gLXJm^[\`,
		"\x1b[6n\x1b[c":                          "^[[6n^[[c",
		"\x1b[>4;2m":                             "^[[>4;2m", // no colour: it changes what keys send
		"\x1b[1 m\x1b[?1m":                       "^[[1 m^[[?1m",
		"\x1bc\x1b(0":                            "^[c^[(0",
		"\x1b\x1b[31m!\x1b[0m":                   "^[\x1b[31m!\x1b[0m",
		"\u009b2J\u0085\u0090":                   `\u009b2J\u0085\u0090`,
		"\x9b2J\xff\xc3":                         `\x9b2J\xff\xc3`,
		"\xe2\x82":                               `\xe2\x82`,
		"a\x08\x7f\x00\x0e\x18\x1a":              "a^H^?^@^N^X^Z",
		"\x1b[":                                  "^[[",
		"\x1b":                                   "^[",
		"\r":                                     "^M",
		"�":                                      "�",
		"\x1b[" + strings.Repeat("1;", 50) + "m": "^[[" + strings.Repeat("1;", 50) + "m",
	} {
		for _, cuts := range [][]byte{nil, bytes.Repeat([]byte{1}, len(in)), bytes.Repeat([]byte{2}, len(in)), bytes.Repeat([]byte{3}, len(in))} {
			if got := passThrough(t, []byte(in), cuts); got != want {
				t.Errorf("%q in pieces %v: %q, want %q", in, cuts, got, want)
			}
		}
	}
}

func FuzzOutputOnATerminal(f *testing.F) {
	for _, s := range []string{"text\n", "\x1b[1;31mred\x1b[0m", "\x1b[2J", "\r\n\r", "\u009b2J\x9b", "\x1b]0;x\x07", "ü\xc3", "\x1b[>4m\x1b[1"} {
		f.Add([]byte(s), []byte{1, 2, 3})
	}
	colour := regexp.MustCompile(`\x1b\[[0-9;:]*m`)
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		got := passThrough(t, in, cuts)
		if whole := passThrough(t, in, nil); got != whole {
			t.Errorf("%q in pieces: %q, whole: %q", in, got, whole)
		}
		rest := strings.ReplaceAll(colour.ReplaceAllString(got, ""), "\r\n", "\n")
		for _, r := range rest {
			if r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
				t.Errorf("%q passes %q", in, r)
			}
		}
		if !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, which is no text", in, got)
		}
		if got != string(in) && rest == string(in) {
			t.Errorf("%q is text and was changed to %q", in, got)
		}
	})
}
