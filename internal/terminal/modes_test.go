package terminal

import (
	"strings"
	"testing"
)

func TestTerminalModes(t *testing.T) {
	for name, tc := range map[string]struct{ output, enter, leave string }{
		"nothing":               {"plain \x1b[31mred\x1b[m\r\n", "", ""},
		"vim":                   {"\x1b[?1049h\x1b[>4;2m\x1b[?1h\x1b=\x1b[?2004h\x1b[2 q", "\x1b[?1h\x1b[?1049h\x1b[?2004h\x1b=\x1b[2 q\x1b[>4;2m", "\x1b[>4m\x1b[0 q\x1b>\x1b[r\x1b[?1l\x1b[?1049l\x1b[?2004l"},
		"on and off":            {"\x1b[?25l\x1b[?1049h\x1b[?1049l\x1b[?25h", "", ""},
		"no cursor":             {"\x1b[?25l", "\x1b[?25l", "\x1b[?25h"},
		"several in one":        {"\x1b[?1000;1006;9999h", "\x1b[?1000h\x1b[?1006h", "\x1b[?1000l\x1b[?1006l"},
		"a full reset":          {"\x1b[?1000h\x1b=\x1bc", "", ""},
		"a soft reset":          {"\x1b[?25l\x1b[?1h\x1b[?2004h\x1b[!p", "\x1b[?2004h", "\x1b[?2004l"},
		"in a title":            {"\x1b]0;\x1b[?25l\x07\x1b]0;[?25l\x1b\\", "\x1b[?25l", "\x1b[?25h"},
		"in a title, as text":   {"\x1b]0;[?25l\x1b\\text", "", ""},
		"cancelled":             {"\x1b[?25\x18l\x1b[?2\x1a5l", "", ""},
		"keyboard":              {"\x1b[>1u\x1b[>5u\x1b[<u", "\x1b[>1u", "\x1b[<1u"},
		"keyboard, too deep":    {strings.Repeat("\x1b[>1u", 100) + "\x1b[<200u", "", ""},
		"a charset":             {"\x1b(0\x1b[?25l", "\x1b[?25l", "\x1b[?25h"},
		"nonsense":              {"\x1b[?h\x1b[?;;h\x1b[?-1h\x1b[?99999999999999999999h\x1b[> u", "\x1b[>u", "\x1b[<1u"},
		"an endless sequence":   {"\x1b[?" + strings.Repeat("0", 100) + "25l", "", ""},
		"questions change none": {"\x1b[?25$p\x1b[?u\x1b[>q\x1b[c", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var whole, bytewise Modes
			whole.Feed([]byte(tc.output))
			for i := range len(tc.output) {
				bytewise.Feed([]byte{tc.output[i]})
			}
			if got := whole.enter(); got != tc.enter {
				t.Errorf("enter %q, want %q", got, tc.enter)
			}
			if got := whole.Leave(); got != tc.leave {
				t.Errorf("leave %q, want %q", got, tc.leave)
			}
			if bytewise.enter() != whole.enter() {
				t.Errorf("byte by byte: %q", bytewise.enter())
			}
		})
	}
}

// FuzzTerminalModes: what is switched is put back, and put on again the same.
func FuzzTerminalModes(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[>4;2m\x1b="), 3)
	f.Add([]byte("\x1b]0;x\x07\x1b[>1u\x1b[<3u\x1b[!p\x1bc"), 7)
	f.Fuzz(func(t *testing.T, output []byte, cut int) {
		var m, parts, late Modes
		m.Feed(output)
		cut = min(max(cut, 0), len(output))
		parts.Feed(output[:cut])
		parts.Feed(output[cut:])
		if m.enter() != parts.enter() || m.Leave() != parts.Leave() {
			t.Errorf("%q cut at %d: %q, whole: %q", output, cut, parts.enter(), m.enter())
		}
		late.Feed([]byte(m.enter()))
		if late.enter() != m.enter() {
			t.Errorf("%q: who enters late is in %q, want %q", output, late.enter(), m.enter())
		}
		late.Feed([]byte(m.Leave()))
		if left := late.enter(); left != "" {
			t.Errorf("%q: %q is left", output, left)
		}
	})
}
