package terminal

import (
	"slices"
	"strings"
)

// maxPen bounds what is kept of how characters are drawn.
const maxPen = 1 << 10

// skim finds where in the output of a program a screen of so many rows begins to
// matter: what was drawn before has scrolled away. It returns that place, and
// what puts a new terminal into the state of there. An emulator is slow, and of
// long output only the end is to be seen.
func skim(output []byte, rows int) (from int, before string) {
	s := skimmer{window: make([]int, 2*rows)}
	for i, b := range output {
		s.step(i, b)
	}
	if s.from == 0 {
		return 0, ""
	}
	var pen penScanner
	var modes Modes
	for _, b := range output[:s.from] {
		pen.step(b)
	}
	modes.Feed(output[:s.from])
	return s.from, modes.enter() + pen.String()
}

// skimmer counts the lines that scroll. After twice as many as there are rows nothing is left of a
// screen, wherever its cursor was. This holds only if the cursor never moved up and the whole
// screen scrolled.
type skimmer struct {
	scan scanner
	// window holds where the last lines began; from is what was found.
	window []int
	from   int
	lines  int // since the last thing after which counting begins anew
	last   byte
	// While one of these holds no line counts: it scrolls another screen, or a
	// part of one, or what is skipped could be missed later.
	alternate, region, charset, strange bool
	// A cursor is saved and restored with how it draws: unsure holds after that,
	// until how it draws is put back, unless it was at its default each time.
	pen           penScanner
	saved, unsure bool
	// keptAt is behind where a cursor was last saved. One that is restored after what is
	// skipped must not have been saved in it.
	keptAt int
}

func (s *skimmer) step(i int, b byte) {
	found, params, final := s.scan.step(b)
	if s.pen.token(found, params, final); found == tokenSequence && final == 'm' && len(s.pen.set) == 0 && !s.alternate {
		s.unsure = false
	}
	switch found {
	case tokenText:
		s.text(i, b)
	case tokenSequence:
		s.sequence(i, params, final)
	case tokenEscape:
		if strings.IndexByte("DE=>\\", final) < 0 {
			s.lines = 0
		}
		switch final {
		case '7':
			s.save(i)
		case '8':
			s.restore()
		case 'c':
			s.alternate, s.region, s.charset = false, false, false
		case 'D', 'E', '=', '>', '\\', 'M':
		default:
			s.strange = true
		}
	case tokenCharset:
		s.lines = 0
		s.charset = final != 'B' // not plain ASCII
	}
	s.last = b
}

// swap is where one cursor may take another's place.
func (s *skimmer) swap() {
	s.saved = s.saved || len(s.pen.set) > 0
	s.unsure = s.unsure || s.saved
}

// save is where a cursor is kept, at i in the output.
func (s *skimmer) save(i int) {
	s.swap()
	s.keptAt = i + 1
}

// restore is where the cursor that was kept comes back.
func (s *skimmer) restore() {
	s.swap()
	if s.keptAt > 0 && s.keptAt <= s.from {
		s.from, s.lines = 0, 0
	}
}

// text counts lines that end as those of a terminal do, at the left margin.
func (s *skimmer) text(i int, b byte) {
	switch {
	case b == 0x0e || b == 0x8e || b == 0x8f:
		s.strange = true
	case b == '\n' && s.last == '\r' && !s.alternate && !s.region && !s.charset && !s.strange && !s.unsure:
		at := &s.window[s.lines%len(s.window)]
		if s.lines >= len(s.window) {
			s.from = *at
		}
		*at = i + 1
		s.lines++
	}
}

func (s *skimmer) sequence(i int, params string, final byte) {
	private := params != "" && params[0] == '?'
	switch {
	case private && (final == 'h' || final == 'l'):
		for p := range strings.SplitSeq(params[1:], ";") {
			switch p {
			case "47", "1047", "1049":
				s.alternate, s.lines = final == 'h', 0
				if s.alternate {
					s.save(i)
				} else {
					s.restore()
				}
			case "1", "12", "25", "2004", "2026", "1000", "1002", "1003", "1004", "1006":
			default:
				s.strange = true
			}
		}
	case params != "" && params[0] > ';': // private, and nothing that draws
	case strings.IndexByte("CDGJKPXm@BnctEe", final) >= 0: // neither up nor elsewhere
	case final == 'r':
		s.region, s.lines = params != "", 0
	case strings.IndexByte("AFHfdLMST`a", final) >= 0:
		s.lines = 0
	case final == 'b': // again what was last written, which may have been long ago
		s.from, s.lines = 0, 0
	case final == 'q': // the cursor's shape
	case final == 'u':
		s.restore()
		s.strange = true
	default:
		s.strange = true
	}
}

// penScanner follows how characters are drawn.
type penScanner struct {
	scan scanner
	set  []string // since all was put back
	size int
}

func (p *penScanner) step(b byte) { p.token(p.scan.step(b)) }

func (p *penScanner) token(found token, params string, final byte) {
	switch {
	case found == tokenEscape && final == 'c':
		p.set, p.size = nil, 0
	case found != tokenSequence || final != 'm' || strings.Trim(params, "0123456789;:") != "":
	case strings.Trim(params, "0;") == "":
		p.set, p.size = nil, 0
	default:
		p.set = append(p.set, params)
		for p.size += len(params) + 3; p.size > maxPen; {
			p.size -= len(p.set[0]) + 3
			p.set = slices.Delete(p.set, 0, 1)
		}
	}
}

// String is what sets it.
func (p *penScanner) String() string {
	var b strings.Builder
	for _, params := range p.set {
		b.WriteString("\x1b[" + params + "m")
	}
	return b.String()
}
