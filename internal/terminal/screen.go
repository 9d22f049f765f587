// Package terminal reads what programs write to terminals. It follows escape sequences and
// private modes, draws the recent output as a screen, and makes untrusted text safe to print.
// Output is untrusted: all that is kept or drawn is bounded.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/charmbracelet/x/vt"
)

// Limits of the recent output that is examined to draw a screen, of the size of the emulated
// terminal, and of the time for drawing. The output comes from untrusted programs.
const (
	MaxHistory    = 256 << 10
	maxScreenRows = 512
	maxScreenCols = 1024
	DrawTimeout   = 500 * time.Millisecond
)

// maxStep is how much text is drawn between two looks at the clock.
const maxStep = 4 << 10

// RecentScreen returns what makes a real terminal of this size look as if it had
// been there for the recent output, which may begin anywhere (cut) in what there
// was. The modes are those that the output left. What takes longer than within to draw
// is shown as text.
func RecentScreen(history []byte, cut bool, rows, cols int, modes *Modes, within time.Duration) string {
	if cut {
		history = history[wholeFrom(history):]
	}
	rows, cols = min(rows, maxScreenRows), min(cols, maxScreenCols)
	if len(history) == 0 || rows < 1 || cols < 1 {
		return ""
	}
	modes.Feed(history)
	from, before := skim(history, rows)
	lines, x, y, ok := emulate(append([]byte(before), history[from:]...), rows, cols, within)
	if !ok {
		return modes.enter() + plainScreen(history, rows)
	}
	var b strings.Builder
	if modes.Alternate() {
		b.WriteString(modes.enter() + "\x1b[H\x1b[2J")
	} else {
		// What the terminal shows now goes up into its history, not away.
		b.WriteString(fmt.Sprintf("\x1b[%d;1H", rows) + strings.Repeat("\r\n", rows) + modes.enter())
	}
	b.WriteString("\x1b[?6l\x1b[?7l\x1b[m")
	for i, line := range lines {
		if line = strings.TrimRight(line, " "); line != "" {
			fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[m", i+1, line)
		}
	}
	if !modes.switched[7] {
		b.WriteString("\x1b[?7h")
	}
	if modes.switched[6] {
		b.WriteString("\x1b[?6h")
	}
	fmt.Fprintf(&b, "\x1b[%d;%dH", y+1, x+1)
	return b.String()
}

// wholeFrom is where output that was cut somewhere begins to make sense: at the
// first line or escape sequence that is whole.
func wholeFrom(p []byte) int {
	for i, b := range p {
		switch b {
		case '\n':
			return i + 1
		case 0x1b:
			return i
		}
	}
	return 0
}

// emulate runs output through a terminal emulator and returns its screen, line by
// line, and its cursor. It gives up, with ok false, where that takes longer than within or
// the emulator does not bear what it is given.
func emulate(output []byte, rows, cols int, within time.Duration) (lines []string, x, y int, ok bool) {
	e := vt.NewEmulator(cols, rows)
	e.SetScrollbackSize(1)
	// The emulator answers questions that programs ask of terminals. The answers
	// were given long ago, by another.
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, e)
	}()
	defer func() {
		if recover() != nil {
			lines, ok = nil, false
		}
		if in, is := e.InputPipe().(io.Closer); is {
			_ = in.Close()
			<-drained
		}
	}()
	began := time.Now()
	for len(output) > 0 {
		n := stepLen(output)
		if _, err := e.Write(output[:n]); err != nil || time.Since(began) > within {
			return nil, 0, 0, false
		}
		output = output[n:]
	}
	lines = strings.Split(e.Render(), "\n")
	at := e.CursorPosition()
	if len(lines) > rows {
		return nil, 0, 0, false
	}
	return lines, min(max(at.X, 0), cols-1), min(max(at.Y, 0), rows-1), true
}

// stepLen is where the next step ends: before what may act, since a sequence of
// eight bytes can ask for 65535 lines. Characters that belong together are not
// taken apart by that.
func stepLen(p []byte) int {
	end := min(maxStep, len(p))
	for i := 1; i < end; i++ {
		if p[i] < 0x20 || p[i] == 0x9b {
			return i
		}
	}
	return end
}

// plainScreen is the last lines of output without anything that acts on a
// terminal.
func plainScreen(history []byte, rows int) string {
	all := strings.Split(strings.ReplaceAll(string(history), "\r", ""), "\n")
	all = all[max(0, len(all)-rows):]
	for i, line := range all {
		all[i] = Printable(strings.ToValidUTF8(line, "\uFFFD"))
	}
	return "\r\n" + strings.Join(all, "\r\n")
}
