package main

import (
	"go/format"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const sample = `package p

import "errors"

func f(n, max int, c chan int) (err error) {
	defer close(c)
	if n > max && max != 0 {
		return errors.New("too many")
	}
	if err := g(); err != nil {
		return err
	}
	n = max
	g()
	if n > 1 {
		log.Warn("much")
	}
	return nil
}
`

func TestChangesIn(t *testing.T) {
	changes, err := changesIn("p.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		if _, err := format.Source(c.source); err != nil {
			t.Errorf("%s is not Go: %v", c, err)
		}
		if string(c.source) == sample {
			t.Errorf("%s changes nothing", c)
		}
		got = append(got, c.String())
	}
	want := []string{
		"line 6: p.go: f: statement is dropped: defer close(c)",
		"line 13: p.go: f: statement is dropped: n = max",
		"line 14: p.go: f: statement is dropped: g()",
		"line 7: p.go: f: condition is never true: if n > max && max != 0 {",
		"line 7: p.go: f: condition is always true: if n > max && max != 0 {",
		"line 7: p.go: f: and is or, or is and: if n > max && max != 0 {",
		"line 7: p.go: f: bound is off by one: if n > max && max != 0 {",
		"line 7: p.go: f: equal is unequal: if n > max && max != 0 {",
		"line 10: p.go: f: condition is never true: if err := g(); err != nil {",
		"line 10: p.go: f: equal is unequal: if err := g(); err != nil {",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The same line in two functions is two changes, and so is the same line twice in one.
func TestKeys(t *testing.T) {
	const twice = `package p

func (s *set[T]) add() {
	s.mu.Lock()
	s.mu.Lock()
}

func (s set[T]) drop() {
	s.mu.Lock()
}
`
	changes, err := changesIn("p.go", []byte(twice))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.key())
	}
	want := []string{
		"p.go: set.add: statement is dropped: s.mu.Lock()",
		"p.go: set.add: statement is dropped (2): s.mu.Lock()",
		"p.go: set.drop: statement is dropped: s.mu.Lock()",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What is drawn does not change with what else there is.
func TestDraw(t *testing.T) {
	var all []change
	for i := range 40 {
		all = append(all, change{path: "p.go", fn: "f", kind: kindDrop, text: strconv.Itoa(i), nth: 1})
	}
	few := slices.Clone(all[:30])
	draw(all, 1)
	all = slices.DeleteFunc(all, func(c change) bool { n, _ := strconv.Atoi(c.text); return n >= 30 })
	draw(few, 1)
	texts := func(changes []change) (out []string) {
		for _, c := range changes {
			out = append(out, c.text)
		}
		return out
	}
	one := texts(few)
	if !slices.Equal(texts(all), one) {
		t.Errorf("drawn of more: %v, drawn of less: %v", texts(all), one)
	}
	if draw(few, 2); slices.Equal(texts(few), one) {
		t.Error("another seed draws the same")
	}
}

func TestEquivalents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "equivalent.txt")
	read := func(text string) (equivalents, error) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readEquivalent(path)
	}
	known, err := read("# a comment\n\nd/p.go: f: statement is dropped: g() # it has no effect\n")
	if err != nil {
		t.Fatal(err)
	}
	c := change{path: "d/p.go", fn: "f", kind: kindDrop, text: "g()", nth: 1}
	if !known.has(c) {
		t.Error("a listed change is not known")
	}
	for name, other := range map[string]change{
		"another line":     {path: "d/p.go", fn: "f", kind: kindDrop, text: "h()", nth: 1},
		"another function": {path: "d/p.go", fn: "e", kind: kindDrop, text: "g()", nth: 1},
		"the next of them": {path: "d/p.go", fn: "f", kind: kindDrop, text: "g()", nth: 2},
	} {
		if known.has(other) {
			t.Errorf("%s is known", name)
		}
	}
	if gone := known.stale("d", []change{c}); len(gone) != 0 {
		t.Errorf("stale although it is there: %v", gone)
	}
	if gone := known.stale("d", nil); len(gone) != 1 {
		t.Errorf("stale: %v, want one", gone)
	}
	if gone := known.stale("e", nil); len(gone) != 0 {
		t.Errorf("stale of another package: %v", gone)
	}
	for _, bad := range []string{
		"p.go: f: statement is dropped: g()\n",
		"p.go: statement is dropped: g() # no function\n",
		"p.go: f: statement is dropped: g() # once\np.go: f: statement is dropped: g() # twice\n",
	} {
		if _, err := read(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// What a run says can be read for the next.
func TestSaidIn(t *testing.T) {
	one := change{path: "d/p.go", line: 7, fn: "f", kind: kindDrop, text: "g(a: b)", nth: 2}
	two := change{path: "d/p.go", line: 9, fn: "f", kind: kindDrop, text: "h()", nth: 1}
	said := saidIn(saidLate + one.String() + "\nd: 1 of 2\n")
	if want := map[string]verdict{one.key(): late}; !maps.Equal(said, want) {
		t.Errorf("%v, want %v", said, want)
	}
	said = saidIn(saidUnnoticed + one.String() + "\n" + saidInvalid + two.String() + "\n")
	if want := map[string]verdict{one.key(): unnoticed, two.key(): invalid}; !maps.Equal(said, want) {
		t.Errorf("%v, want %v", said, want)
	}
	if said = saidIn(saidNoticed + two.String() + "\n"); said[two.key()] != noticed {
		t.Errorf("%v", said)
	}
}

// The table has a line for each package and one for all, and a score that is too low is an
// error that names the package.
func TestSummarize(t *testing.T) {
	var out strings.Builder
	err := summarize(&out, []score{{dir: "a", places: 90, tried: 20, noticed: 20, equal: 1}, {dir: "b", places: 50, tried: 10, noticed: 7, late: 1}}, 21, 3)
	if err == nil || !strings.HasSuffix(err.Error(), ": b") {
		t.Errorf("error: %v, want one that names b", err)
	}
	for _, want := range []string{"first 21 changes", "seed 3", "| a | 90 | 20 | 20 | 0 | 1 | 100 % |", "| b | 50 | 10 | 7 | 1 | 0 | 70 % |", "| overall | 140 | 30 | 27 | 1 | 1 | 90 % |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if err := summarize(io.Discard, []score{{dir: "a", tried: 20, noticed: 17}}, 20, 1); err != nil {
		t.Errorf("85 of 100: %v", err)
	}
	if err := summarize(io.Discard, []score{{dir: "a", tried: 20, noticed: 16}}, 20, 1); err == nil {
		t.Error("80 of 100 are enough")
	}
}
