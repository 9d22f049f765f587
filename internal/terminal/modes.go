package terminal

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// modeDefault returns whether a private mode of a terminal is on by default, and whether it is
// known. Unknown modes are left unchanged.
func modeDefault(mode int) (on, known bool) {
	switch mode {
	case 7, 25: // wrap at the margin, show the cursor
		return true, true
	case 1, 5, 6, // cursor keys, reverse video, origin
		9, 1000, 1002, 1003, 1005, 1006, 1015, 1016, // mouse
		1004, 2004, 2026, // focus, bracketed paste, synchronized output
		47, 1047, 1049: // alternate screen
		return false, true
	}
	return false, false
}

// maxKeyboards is how deep the stack of keyboard protocols is followed.
const maxKeyboards = 16

// Modes follows which modes of a terminal its output has switched: a
// terminal that joins late is put into them, and one that leaves is put back,
// without a word from the program. The zero value is a terminal in its default
// modes. It costs one look at each byte and never grows.
type Modes struct {
	switched map[int]bool // differs from the default
	keypad   bool
	style    string // of the cursor, as a parameter
	keys     string // modifyOtherKeys, as a parameter
	keyboard []string

	scan scanner
}

// Feed reads output.
func (m *Modes) Feed(p []byte) {
	for _, b := range p {
		switch found, params, final := m.scan.step(b); {
		case found == tokenSequence:
			m.sequence(params, final)
		case found == tokenEscape && final == 'c':
			m.reset()
		case found == tokenEscape && (final == '=' || final == '>'):
			m.keypad = final == '='
		}
	}
}

func (m *Modes) reset() { *m = Modes{scan: m.scan} }

// sequence acts on one whole control sequence.
func (m *Modes) sequence(params string, final byte) {
	marker := byte(0)
	if params != "" && params[0] >= '<' && params[0] <= '?' {
		marker, params = params[0], params[1:]
	}
	switch {
	case marker == '?' && (final == 'h' || final == 'l'):
		for p := range strings.SplitSeq(params, ";") {
			if mode, err := strconv.Atoi(p); err == nil {
				m.turn(mode, final == 'h')
			}
		}
	case marker == 0 && final == 'p' && params == "!": // soft reset
		m.keypad = false
		for _, mode := range []int{1, 6, 25} {
			delete(m.switched, mode)
		}
	case marker == 0 && final == 'q' && strings.HasSuffix(params, " "):
		m.style = number(strings.TrimSuffix(params, " "))
	case marker == '>' && final == 'm' && (params == "4" || strings.HasPrefix(params, "4;")):
		m.keys = number(strings.TrimPrefix(params[1:], ";"))
	case marker == '>' && final == 'u':
		if len(m.keyboard) == maxKeyboards {
			m.keyboard = m.keyboard[1:]
		}
		m.keyboard = append(m.keyboard, number(params))
	case marker == '<' && final == 'u':
		n, err := strconv.Atoi(params)
		if err != nil {
			n = 1
		}
		m.keyboard = m.keyboard[:max(0, len(m.keyboard)-max(n, 0))]
	}
}

// number is a parameter as it may be written again: a small number or nothing.
func number(s string) string {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 1000 {
		return strconv.Itoa(n)
	}
	return ""
}

func (m *Modes) turn(mode int, on bool) {
	standard, known := modeDefault(mode)
	switch {
	case !known:
	case on == standard:
		delete(m.switched, mode)
	default:
		if m.switched == nil {
			m.switched = map[int]bool{}
		}
		m.switched[mode] = true
	}
}

// Alternate is whether a full-screen program has the terminal.
func (m *Modes) Alternate() bool {
	return m.switched[47] || m.switched[1047] || m.switched[1049]
}

// enter puts a terminal from its default modes into these.
func (m *Modes) enter() string {
	var b strings.Builder
	for _, mode := range slices.Sorted(maps.Keys(m.switched)) {
		standard, _ := modeDefault(mode)
		b.WriteString(switchMode(mode, !standard))
	}
	if m.keypad {
		b.WriteString("\x1b=")
	}
	if m.style != "" {
		b.WriteString("\x1b[" + m.style + " q")
	}
	if m.keys != "" {
		b.WriteString("\x1b[>4;" + m.keys + "m")
	}
	for _, k := range m.keyboard {
		b.WriteString("\x1b[>" + k + "u")
	}
	return b.String()
}

// Leave puts the terminal back. It writes nothing where nothing was switched.
func (m *Modes) Leave() string {
	var b strings.Builder
	if n := len(m.keyboard); n > 0 {
		b.WriteString("\x1b[<" + strconv.Itoa(n) + "u")
	}
	if m.keys != "" {
		b.WriteString("\x1b[>4m")
	}
	if m.style != "" {
		b.WriteString("\x1b[0 q")
	}
	if m.keypad {
		b.WriteString("\x1b>")
	}
	if m.Alternate() {
		// What follows is for the screen of before, whose region is the whole.
		b.WriteString("\x1b[r")
	}
	for _, mode := range slices.Sorted(maps.Keys(m.switched)) {
		standard, _ := modeDefault(mode)
		b.WriteString(switchMode(mode, standard))
	}
	return b.String()
}

func switchMode(mode int, on bool) string {
	if on {
		return "\x1b[?" + strconv.Itoa(mode) + "h"
	}
	return "\x1b[?" + strconv.Itoa(mode) + "l"
}
