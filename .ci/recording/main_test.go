package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const pictures = "../../docs/pictures"

func readPicture(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(pictures, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSVGIsFresh renders the committed cast.
func TestSVGIsFresh(t *testing.T) {
	want, err := render(readPicture(t, castFile))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readPicture(t, svgFile), want) {
		t.Errorf("%s is not what its cast gives: run go run ./.ci/recording -render", svgFile)
	}
	for _, not := range []string{"<script", "href", "url(", "@import"} {
		if bytes.Contains(want, []byte(not)) {
			t.Errorf("the SVG has %q", not)
		}
	}
}

// TestCastIsFresh compares the cast with the commands, and its length with what a reader waits.
func TestCastIsFresh(t *testing.T) {
	commands, err := readCommands(filepath.Join(pictures, commandsFile))
	if err != nil {
		t.Fatal(err)
	}
	c, err := decode(readPicture(t, castFile))
	if err != nil {
		t.Fatal(err)
	}
	text := c.text()
	for _, cmd := range commands {
		_, after, ok := strings.Cut(text, "$ "+cmd.line+"\r\n")
		if !ok {
			t.Errorf("%s does not have %q: run make recording", castFile, cmd.line)
			continue
		}
		text = after
	}
	if n := strings.Count(c.text(), "\n$ "); n != len(commands) {
		t.Errorf("%d commands were recorded, %d are in %s: run make recording", n, len(commands), commandsFile)
	}
	if total := c.events[len(c.events)-1].at + endPause; total > 30*time.Second {
		t.Errorf("it takes %s", total)
	}
	if !bytes.Equal(c.encode(), readPicture(t, castFile)) {
		t.Errorf("%s changes when it is read and written", castFile)
	}
}

// TestPlay covers line ends, wrapping, colours and scrolling.
func TestPlay(t *testing.T) {
	c := &cast{header: header{Version: 2, Width: 3, Height: 2}, events: []event{
		{0, "abc"},
		{time.Second, "\x1b[32md\x1b[0m\r\n"},
		{2 * time.Second, "e f"},
	}}
	spans, spots, err := play(c)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, s := range spans {
		to := "end"
		if s.to != forever {
			to = s.to.String()
		}
		got.WriteString(strings.Join([]string{string(s.text), s.from.String(), to, number(float64(s.y)), number(float64(s.x)), number(float64(s.style.colour))}, " ") + "\n")
	}
	want := "abc 0s 1s 0 0 0\nd 1s end 0 0 32\ne 2s end 1 0 0\nf 2s end 1 2 0\n"
	if got.String() != want {
		t.Errorf("spans:\n%swant:\n%s", got.String(), want)
	}
	if last := spots[len(spots)-1]; last.x != 2 || last.y != 1 || len(spots) != 3 {
		t.Errorf("cursor: %+v", spots)
	}
}

// TestUnknownSequences: what the small terminal does not show is an error.
func TestUnknownSequences(t *testing.T) {
	for _, text := range []string{"\x1b[2J", "\x1b]0;title\a", "\x1b[48;5;1m", "\b", "\x1b[xm"} {
		if err := newScreen(10, 2).write(text); err == nil {
			t.Errorf("%q is no error", text)
		}
	}
}

// TestWholeRunes: a character in two reads stays one.
func TestWholeRunes(t *testing.T) {
	for text, want := range map[string]int{"": 0, "a": 1, "é": 2, "aé": 3, "a\xc3": 1, "\xe2\x82": 0, "€": 3} {
		if got := wholeRunes([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
