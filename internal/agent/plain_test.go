package agent

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPlainTextLeavesOutSequences(t *testing.T) {
	for said, want := range map[string]string{
		"\x1b[31mred\x1b[0m text":            "red text",
		"\x1b[?2004l\x1b[?1049hin vim":       "in vim",
		"\x1b]0;a title\x07after":            "after",
		"\x1b]8;;http://x\x1b\\link\x1b]8;;": "link",
		"\x1bPdevice\x1b\\done":              "done",
		"cut \x1b[12":                        "cut ",
		"cut \x1b":                           "cut ",
		"\x1b(Bcharset":                      "charset",
	} {
		if got := PlainText(said, 100); got != want {
			t.Errorf("PlainText(%q) = %q, want %q", said, got, want)
		}
	}
}

func FuzzPlainText(f *testing.F) {
	for _, s := range []string{"", "plain", "a\x1b[31mred\x1b[0m", "\xff\xfe", "tab\tline\nend\r", strings.Repeat("ü", 300), "\u202egnp.exe", "\x00"} {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = min(max(most, 0), 1000)
		got := PlainText(s, most)
		if len(got) > most || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\x07\x1b\x7f\n\r\t\u0085\u202e\u200b") {
			t.Errorf("PlainText(%q, %d) = %q", s, most, got)
		}
	})
}
