package terminal

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// shown is the screen of a terminal that was used before and then got text.
func shown(t *testing.T, text string, rows, cols int) (lines []string, x, y int) {
	t.Helper()
	got, x, y, ok := emulate([]byte("what was here before\r\n$ "+text), rows, cols, time.Minute)
	if !ok {
		t.Fatalf("the emulator gave up on %q", text)
	}
	return got, x, y
}

// TestRecentScreenLooksTheSame: a terminal that gets only the recent screen
// shows what one shows that was there all the time.
func TestRecentScreenLooksTheSame(t *testing.T) {
	const rows, cols = 12, 40
	many := &strings.Builder{}
	for i := range 2000 {
		fmt.Fprintf(many, "line %d\r\n", i)
	}
	for name, output := range map[string]string{
		"a prompt":                 "$ ls\r\na b c\r\n$ ",
		"colours":                  "\x1b[1;31mred\x1b[0m plain \x1b[48;5;22mgreen ground\x1b[m\r\n",
		"more lines than fit":      many.String() + "$ ",
		"a line that wraps":        strings.Repeat("0123456789", 9) + "\r\n$ x",
		"a line of the full width": strings.Repeat("x", cols) + "\r\nnext",
		"wide characters":          "日本語 and é e\u0301 \U0001F469\u200D\U0001F680 end\r\n$ ",
		"a full-screen program":    "$ vi\r\n\x1b[?1049h\x1b[?1h\x1b=\x1b[2J\x1b[3;10Htext\x1b[12;1H-- INSERT --\x1b[3;14H",
		"back from one":            "$ vi\r\n\x1b[?1049h\x1b[2Jfull\x1b[?1049l$ ",
		"questions":                "\x1b[c\x1b[6n\x1b[>c\x1b]11;?\x07$ asked",
		"erased":                   "abc\r\ndef\x1b[2J\x1b[Hnew",
		"a scroll region":          "\x1b[2;5r\x1b[2;1Ha\r\nb\r\nc\r\nd\r\ne\r\nf\x1b[r\x1b[8;3Hhere",
	} {
		t.Run(name, func(t *testing.T) {
			want, wx, wy, ok := emulate([]byte(output), rows, cols, time.Minute)
			if !ok {
				t.Fatal("the emulator gave up")
			}
			var modes Modes
			got, x, y := shown(t, RecentScreen([]byte(output), false, rows, cols, &modes, time.Minute), rows, cols)
			for i := range want {
				want[i], got[i] = strings.TrimRight(want[i], " "), strings.TrimRight(got[i], " ")
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") || x != wx || y != wy {
				t.Errorf("cursor %d,%d, screen\n%q\nwant %d,%d,\n%q", x, y, got, wx, wy, want)
			}
		})
	}
}

func TestRecentScreenKeepsWhatWasThere(t *testing.T) {
	e := RecentScreen([]byte("$ "), false, 5, 20, new(Modes), DrawTimeout)
	if !strings.HasPrefix(e, "\x1b[5;1H\r\n\r\n\r\n\r\n\r\n") || strings.Contains(e, "\x1b[2J") {
		t.Errorf("%q: the old screen is erased and not pushed up", e)
	}
}

// TestHostileOutput: drawing ends soon, whatever it is given.
func TestHostileOutput(t *testing.T) {
	const much = MaxHistory / 4
	for name, output := range map[string]string{
		"repeat":         strings.Repeat("x\x1b[65535b", much/9),
		"line feeds":     strings.Repeat("\n", much),
		"repeat in C1":   strings.Repeat("x\x9b65535b", much/8),
		"repeat in UTF":  strings.Repeat("\xe6\x9b65535b", much/8),
		"scroll":         strings.Repeat("\x1b[65535S", much/8),
		"insert lines":   strings.Repeat("\x1b[65535L", much/8),
		"tabs":           strings.Repeat("\x1b[65535I", much/8),
		"an open string": "\x1b]0;" + strings.Repeat("x", much),
		"a title":        "\x1b]0;" + strings.Repeat("x", 1<<16) + "\x07",
		"marks":          "e" + strings.Repeat("\u0301", much/2),
		"questions":      strings.Repeat("\x1b[c", much/3),
		"screens":        strings.Repeat("\x1b[?1049h\x1b[2J\x1b[?1049l", much/20),
		"sixel":          "\x1bPq" + strings.Repeat("!65535~", much/8),
		"zeros":          strings.Repeat("\x00", much),
		"binary":         strings.Repeat("\xff\x80\x9b\x90\x1b", much/5),
		"parameters":     "\x1b[" + strings.Repeat("1;", much/2) + "m",
		"big screen":     strings.Repeat("\x1b[2J\x1b#8", much/7),
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			got := RecentScreen([]byte(output), true, 100, 300, new(Modes), DrawTimeout)
			// Generous: the clock is looked at often, and a race detector is slow.
			if d := time.Since(began); d > 20*DrawTimeout {
				t.Errorf("drawn after %v", d)
			}
			if len(got) > 64<<20 {
				t.Errorf("%d bytes to draw", len(got))
			}
		})
	}
}

func TestPlainScreen(t *testing.T) {
	got := plainScreen([]byte("a\r\nb\x1b[2Jc\r\n\xffd"), 2)
	if want := "\r\nb\uFFFD[2Jc\r\n\uFFFDd"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRecentScreenWithoutSize(t *testing.T) {
	for _, size := range [][2]int{{0, 80}, {24, 0}, {-1, -1}} {
		if got := RecentScreen([]byte("x"), false, size[0], size[1], new(Modes), DrawTimeout); got != "" {
			t.Errorf("%v: %q", size, got)
		}
	}
	if got := RecentScreen(nil, false, 24, 80, new(Modes), DrawTimeout); got != "" {
		t.Errorf("no output: %q", got)
	}
}

func FuzzRecentScreen(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[5;5Hx\x1b[65535b"), uint8(24), uint8(80))
	f.Add([]byte("\x1b[2;3r\x1b[999M\u0301\U0001F469\u200D"), uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, output []byte, rows, cols uint8) {
		if len(output) > 4096 {
			return
		}
		RecentScreen(output, true, int(rows), int(cols), new(Modes), DrawTimeout)
	})
}

// sameAfterSkim compares the screen of the whole output with the screen of its end.
func sameAfterSkim(t *testing.T, output []byte, rows, cols int) (skipped int) {
	t.Helper()
	want, wx, wy, ok := emulate(output, rows, cols, time.Minute)
	if !ok {
		t.Skip("needs output that the emulator bears")
	}
	from, before := skim(output, rows)
	got, x, y, ok := emulate(append([]byte(before), output[from:]...), rows, cols, time.Minute)
	if !ok || strings.Join(got, "\n") != strings.Join(want, "\n") || x != wx || y != wy {
		t.Errorf("from %d with %q of %q:\ncursor %d,%d %q\n  want %d,%d %q", from, before, output, x, y, got, wx, wy, want)
	}
	return from
}

func TestSkim(t *testing.T) {
	lines := strings.Repeat("some text that may be long\r\n", 200)
	for name, tc := range map[string]struct {
		output string
		skips  bool
	}{
		"lines":                      {lines, true},
		"a prompt behind them":       {lines + "$ ls\b\b\x1b[K", true},
		"colour from long ago":       {"\x1b[1m\x1b[32m" + lines + "x", true},
		"colour that was put back":   {"\x1b[1m\x1b[0;32m\x1b[m" + lines + "x", true},
		"moving up again and again":  {strings.Repeat("a\r\nb\r\n\x1b[2A", 200), false},
		"a line feed alone":          {strings.Repeat("x\n", 200), false},
		"lines of another screen":    {"main\r\n\x1b[?1049h" + lines + "\x1b[?1049l$ ", false},
		"another screen in between":  {lines + "\x1b[?1049hfull\x1b[?1049l" + "$ ", true},
		"a region":                   {"top\x1b[2;4r" + lines, false},
		"a region that was":          {"top\x1b[2;4r" + lines + "\x1b[r" + lines, true},
		"line drawing":               {"\x1b(0" + lines + "qqq", false},
		"a cleared screen":           {lines + "\x1b[H\x1b[2J\x1b[3Jnew", true},
		"few lines":                  {"a\r\nb\r\n", false},
		"a cursor from long ago":     {"a\x1b7\r\n" + lines + "\x1b8x", false},
		"one of another screen's":    {"a\x1b7\r\n" + lines + "\x1b[?1049lx", false},
		"one that was put back":      {"a\x1b7\r\n" + lines + "\x1b8\r\n" + lines, true},
		"tab stops":                  {"\x1b[3g" + lines + "\tx", false},
		"a title with lines":         {"\x1b]0;" + lines, false},
		"lines that wrap":            {strings.Repeat(strings.Repeat("w", 50)+"\r\n", 100), true},
		"wrapping that was shut off": {"\x1b[?7l" + strings.Repeat(strings.Repeat("w", 50)+"\r\n", 100), false},
	} {
		t.Run(name, func(t *testing.T) {
			if from := sameAfterSkim(t, []byte(tc.output), 6, 20); (from > 0) != tc.skips {
				t.Errorf("%d bytes are skipped", from)
			}
		})
	}
}

// FuzzSkim: nothing that is to be seen is skipped. The bytes choose from what
// terminals are sent, so that few of them say much.
func FuzzSkim(f *testing.F) {
	words := []string{
		"x", "word ", "\r\n", "\r\n\r\n\r\n\r\n\r\n\r\n", "\n", "\r", "\b", "\t", "\x1b[A", "\x1b[2B", "\x1b[H", "\x1b[3;2H", "\x1b[J", "\x1b[2J",
		"\x1b[K", "\x1b[31m", "\x1b[m", "\x1b[0;1m", "\x1b[?1049h", "\x1b[?1049l", "\x1b[2;3r", "\x1b[r", "\x1b[L", "\x1b[M", "\x1b[S", "\x1b[T",
		"\x1bM", "\x1b7", "\x1b8", "\x1bc", "\x1b(0", "\x1b(B", "q", "\x0e", "\x0f", "\x1b[4h", "\x1b[4l", "\x1b[3@", "\x1b[2P", "\x1b[?25l", "\x1b[?6h",
		"\x1b[5b", "\x1b[s", "\x1b[u", "\x1b[3g", "\x1bH", "\x1b]0;t\x07", "é", "日", "\x1b[?7l", "\x1b[C", "\x1b[2D", "\x1b[44m", "\x1b[2X", "\x1b[!p", "\x1bE", "\x1bD",
	}
	f.Add([]byte{0, 3, 3, 3, 3, 1, 15, 3, 3, 3, 8, 0})
	f.Add([]byte{18, 3, 3, 3, 3, 19, 20, 3, 3, 21, 3, 3, 3, 1})
	f.Fuzz(func(t *testing.T, chosen []byte) {
		if len(chosen) > 200 {
			return
		}
		var output []byte
		for _, c := range chosen {
			output = append(output, words[int(c)%len(words)]...)
		}
		sameAfterSkim(t, output, 4, 12)
	})
}

// BenchmarkRecentScreen draws what is kept of a program's output. The sub-benchmarks named whole
// give the emulator all of it: their ratio is what skim saves.
func BenchmarkRecentScreen(b *testing.B) {
	for name, line := range map[string]string{
		"colour": "\x1b[32mok\x1b[m  some line of a test that ran   0.01s\r\n",
		"plain":  strings.Repeat("x", 79) + "\r\n",
	} {
		text := []byte(strings.Repeat(line, MaxHistory/len(line)))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				RecentScreen(text, true, 50, 200, new(Modes), DrawTimeout)
			}
		})
		b.Run(name+"/whole", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				emulate(text, 50, 200, time.Minute)
			}
		})
	}
}
