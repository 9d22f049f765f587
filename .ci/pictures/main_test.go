package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pictures = "../../docs/pictures"

// TestPicturesAreFresh checks the layout of each description, and that its SVG file is the
// result of it.
func TestPicturesAreFresh(t *testing.T) {
	if err := run(io.Discard, pictures, true); err != nil {
		t.Error(err)
	}
}

// TestPicturesAreSelfContained checks that each picture is valid XML without scripts and
// references, and has what screen readers and dark mode need.
func TestPicturesAreSelfContained(t *testing.T) {
	root, err := os.OpenRoot(pictures)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	names, err := descriptions(pictures)
	if err != nil || len(names) == 0 {
		t.Fatalf("descriptions: %v, %v", names, err)
	}
	for _, name := range names {
		svg, err := render(root, name)
		if err != nil {
			t.Error(err)
			continue
		}
		seen := map[string]bool{}
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			start, ok := token.(xml.StartElement)
			if !ok {
				continue
			}
			seen[start.Name.Local] = true
			for _, a := range start.Attr {
				if a.Name.Local == "href" || strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("%s has the attribute %s", name, a.Name.Local)
				}
				seen[a.Name.Local] = true
			}
		}
		for _, want := range []string{"title", "desc", "viewBox", "style"} {
			if !seen[want] {
				t.Errorf("%s has no %s", name, want)
			}
		}
		for _, not := range []string{"script", "image", "use", "foreignObject"} {
			if seen[not] {
				t.Errorf("%s has the element %s", name, not)
			}
		}
		if !bytes.Contains(svg, []byte("prefers-color-scheme: dark")) || bytes.Contains(svg, []byte("url(")) {
			t.Errorf("%s has no colors for dark mode, or a reference", name)
		}
	}
}

// TestErrorsOfLayout checks that each error of a layout is found, and the others aren't.
func TestErrorsOfLayout(t *testing.T) {
	const head = "title T\ndesc D\nsize 40 30\n"
	for name, c := range map[string]struct{ source, want string }{
		"correct": {"frame f 1 5 38 20 host\n  F\nbox a 2 8 10 4 plain\n  text\nbox b 20 8 10 4 plain\narrow a.right b.left\n  label\n", ""},
		// 12 characters of 7.2 pixels and the padding need 96.4 pixels.
		"text that just fits": {"box a 2 8 9.7 4 plain\n  123456789012\n", ""},
		"wide text":           {"box a 2 8 9.6 4 plain\n  123456789012\n", "the text of a needs a width"},
		"wide bold text":      {"box a 2 8 9.7 4 plain\n  * 123456789012\n", "the text of a needs a width"},
		"high text":           {"box a 2 8 9 4 plain\n  1\n  2\n  3\n", "the text of a needs a height"},
		"boxes that touch":    {"box a 2 8 5 5 plain\nbox b 7 8 5 5 plain\n", ""},
		"boxes that overlap":  {"box a 2 8 5 5 plain\nbox b 6.9 12 5 5 plain\n", "b overlaps a"},
		"box in a box":        {"box a 2 8 20 15 plain\nbox b 6 10 2 2 plain\n", "b overlaps a"},
		"note on a box":       {"box a 2 8 5 5 plain\nnote n 6 8 5 5\n", "n overlaps a"},
		"box outside":         {"box a 36 8 5 5 plain\n", "a is outside the picture"},
		"box on the title":    {"box a 2 2 5 5 plain\n", "a is outside the picture"},
		"box across a frame":  {"frame f 1 5 10 10 host\nbox a 8 8 5 5 plain\n", "a crosses the border of the frame f"},
		"box on a label":      {"frame f 1 5 20 10 host\n  label\nbox a 2 6 5 5 plain\n", "a covers the label of the frame f"},
		"arrow over a box":    {"box a 2 8 5 5 plain\nbox b 12 8 5 5 plain\nbox c 22 8 5 5 plain\narrow a.right c.left\n", "the arrow a.right to c.left crosses b"},
		"label on a box":      {"box a 2 8 5 5 plain\nbox b 9 8 5 5 plain\narrow a.right b.left\n  label\n", "overlaps a"},
		"label on an arrow":   {"box a 2 8 5 5 plain\nbox b 22 8 5 5 plain\narrow a.right b.left\n  label\narrow a.right@1.5 b.left@1.5\n", "crosses the label of a.right to b.left"},
		"label on a border":   {"frame f 1 5 14 20 host\nbox a 2 8 5 5 plain\nbox b 22 8 5 5 plain\narrow a.right b.left\n  label\n", "crosses the border of the frame f"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := parse(head + c.source)
			if err != nil {
				t.Fatal(err)
			}
			err = p.check()
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestErrorsOfSyntax checks that a wrong description is refused with its line.
func TestErrorsOfSyntax(t *testing.T) {
	const head = "title T\ndesc D\nsize 40 30\n"
	for source, want := range map[string]string{
		"title T\ndesc D\n":                                 "title, desc or size is missing",
		head + "circle a 1 2 3\n":                           "line 4: \"circle\" is no statement",
		head + "box a 1 2 3 plain\n":                        "line 4: 4 numbers expected",
		head + "box a 1 2 3 4 red\n":                        "line 4: the style isn't one of",
		head + "  text\n":                                   "line 4: text that belongs to nothing",
		head + "arrow a.right b.left\n":                     "line 4: no box has the id \"a\"",
		head + "box a 1 5 5 5 plain\narrow a\n":             "line 5: an arrow needs two ends",
		head + "box a 1 5 5 5 plain\nbox a 9 5 5 5 plain\n": "line 5: duplicate id",
		head + "box a 1 5 5 5 plain\nbox b 9 5 5 5 plain\narrow a.right@7 b.left":  "is outside its box",
		head + "box a 1 5 5 5 plain\nbox b 9 5 5 5 plain\narrow a.right b.left up": "is no option of an arrow",
	} {
		if _, err := parse(source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", source, err, want)
		}
	}
}

// TestRun checks that files are written, and that -check names a file that is missing, out of
// date or without a description.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(want string) {
		t.Helper()
		if err := run(io.Discard, dir, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	source := "title T\ndesc D\nsize 40 30\nbox a 2 8 9 6 plain\n  text\n"
	write("a.txt", source)
	fails("a.svg is out of date")
	if err := run(io.Discard, dir, false); err != nil {
		t.Fatal(err)
	}
	if err := run(io.Discard, dir, true); err != nil {
		t.Fatal(err)
	}
	write("a.txt", source+"  more\n")
	fails("a.svg is out of date")
	write("a.txt", source)
	write("b.svg", "<svg/>")
	fails("b.svg has no description")
	write("b.txt", "0 cloche version\n")
	fails("b.txt: line 1")
	write("b.cast", "{}")
	if err := run(io.Discard, dir, true); err != nil {
		t.Errorf("a recording: %v", err)
	}
}
