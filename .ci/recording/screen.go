package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// cell is a character of the screen with its colour: a number of SGR, 0 for the default.
type cell struct {
	char   rune
	colour int
	bold   bool
}

// screen is a small terminal: text, line ends, and colours of the foreground. Other
// sequences are errors, so that no picture is wrong without notice.
type screen struct {
	width, height int
	cells         [][]cell
	x, y          int
	pen           cell
}

func newScreen(width, height int) *screen {
	s := &screen{width: width, height: height}
	for range height {
		s.cells = append(s.cells, make([]cell, width))
	}
	return s
}

// write shows text, which has whole sequences.
func (s *screen) write(text string) error {
	for text != "" {
		if strings.HasPrefix(text, "\x1b") {
			all := colour.FindString(text)
			if all == "" || !strings.HasPrefix(text, all) {
				return fmt.Errorf("unknown sequence in %q", text)
			}
			if err := s.paint(all[2 : len(all)-1]); err != nil {
				return err
			}
			text = text[len(all):]
			continue
		}
		c := []rune(text)[0]
		text = text[len(string(c)):]
		switch {
		case c == '\r':
			s.x = 0
		case c == '\n':
			s.down()
		case c < ' ' || c == 0x7f:
			return fmt.Errorf("unknown control character %q", c)
		default:
			if s.x == s.width {
				s.x = 0
				s.down()
			}
			at := s.pen
			at.char = c
			s.cells[s.y][s.x] = at
			s.x++
		}
	}
	return nil
}

// down moves to the next line, and scrolls at the last one.
func (s *screen) down() {
	if s.y++; s.y == s.height {
		s.y--
		s.cells = append(slices.Delete(s.cells, 0, 1), make([]cell, s.width))
	}
}

// paint sets the colour of the text that follows.
func (s *screen) paint(codes string) error {
	for code := range strings.SplitSeq(codes, ";") {
		n, err := strconv.Atoi(code)
		switch {
		case code == "" || n == 0 && err == nil:
			s.pen = cell{}
		case n == 1:
			s.pen.bold = true
		case n == 22:
			s.pen.bold = false
		case n == 39:
			s.pen.colour = 0
		case n >= 30 && n <= 37 || n >= 90 && n <= 97:
			s.pen.colour = n
		default:
			return fmt.Errorf("unknown colour %q", codes)
		}
	}
	return nil
}
