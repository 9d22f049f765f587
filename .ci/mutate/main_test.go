package main

import (
	"go/format"
	"os"
	"path/filepath"
	"slices"
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
		"p.go:6: statement is dropped: defer close(c)",
		"p.go:13: statement is dropped: n = max",
		"p.go:14: statement is dropped: g()",
		"p.go:7: condition is never true: if n > max && max != 0 {",
		"p.go:7: condition is always true: if n > max && max != 0 {",
		"p.go:7: and is or, or is and: if n > max && max != 0 {",
		"p.go:7: bound is off by one: if n > max && max != 0 {",
		"p.go:7: equal is unequal: if n > max && max != 0 {",
		"p.go:10: condition is never true: if err := g(); err != nil {",
		"p.go:10: equal is unequal: if err := g(); err != nil {",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEquivalents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "equivalent.txt")
	if err := os.WriteFile(path, []byte("# a comment\n\np.go: statement is dropped: g() # it has no effect\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := readEquivalent(path)
	if err != nil {
		t.Fatal(err)
	}
	c := change{path: "p.go", kind: kindDrop, text: "g()"}
	if !known.has(c) {
		t.Error("a listed change is not known")
	}
	if c.text = "h()"; known.has(c) {
		t.Error("another change is known")
	}
	if err := os.WriteFile(path, []byte("p.go: statement is dropped: g()\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readEquivalent(path); err == nil {
		t.Error("a line without a reason was read")
	}
}
