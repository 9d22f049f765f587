// Package words checks the English of the documentation, of comments and of messages. It
// counts the phrases that docs/style.md tells authors to avoid, and compares each file's
// count with the allowance of that file.
//
// testdata/banned.txt has the phrases, and testdata/allowed.txt the allowances. A file
// without an allowance may have no banned phrase. An allowance that is higher than the
// count fails too, so allowances only go down: "go test ./test/words -update" lowers them.
package words

import (
	"bytes"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "lower the allowances in testdata/allowed.txt to the current counts")

const (
	root        = "../.."
	bannedFile  = "testdata/banned.txt"
	allowedFile = "testdata/allowed.txt"
)

// TestWords compares the number of banned phrases in each file with its allowance.
func TestWords(t *testing.T) {
	banned := readBanned(t)
	allowed := readAllowed(t)
	found := map[string][]string{}
	for path, text := range proseOf(t) {
		if hits := banned.in(text); len(hits) > 0 {
			found[path] = hits
		}
	}
	if *update {
		lower(t, allowed, found)
		return
	}
	for path, hits := range found {
		if len(hits) > allowed[path] {
			t.Errorf("%s: %d banned phrases, %d allowed; see docs/style.md:\n\t%s", path, len(hits), allowed[path], strings.Join(hits, "\n\t"))
		}
	}
	for path, n := range allowed {
		if len(found[path]) < n {
			t.Errorf("%s: %d banned phrases, %d allowed: lower the allowance with go test ./test/words -update", path, len(found[path]), n)
		}
	}
}

// phrase is a banned phrase and what to write instead.
type phrase struct {
	pattern *regexp.Regexp
	instead string
}

type phrases []phrase

// in returns the banned phrases of a text, each with its line.
func (ps phrases) in(text []byte) (hits []string) {
	for _, p := range ps {
		for _, at := range p.pattern.FindAllIndex(text, -1) {
			line := 1 + bytes.Count(text[:at[0]], []byte("\n"))
			hits = append(hits, fmt.Sprintf("line %d: %q: write %s", line, bytes.Join(bytes.Fields(text[at[0]:at[1]]), []byte(" ")), p.instead))
		}
	}
	return hits
}

// readBanned reads lines of a regular expression, " => " and what to write instead. A space
// in the expression matches any white space, so that a phrase may continue on the next line.
func readBanned(t *testing.T) (ps phrases) {
	t.Helper()
	for line := range lines(t, bannedFile) {
		pattern, instead, ok := strings.Cut(line, " => ")
		if !ok {
			t.Fatalf("%s: no => in %q", bannedFile, line)
		}
		re, err := regexp.Compile(`(?i)\b(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`)
		if err != nil {
			t.Fatalf("%s: %v", bannedFile, err)
		}
		ps = append(ps, phrase{re, instead})
	}
	return ps
}

// readAllowed reads lines of a number and a path.
func readAllowed(t *testing.T) map[string]int {
	t.Helper()
	allowed := map[string]int{}
	for line := range lines(t, allowedFile) {
		var n int
		var path string
		if _, err := fmt.Sscanf(line, "%d %s", &n, &path); err != nil || n < 1 {
			t.Fatalf("%s: %q is not a number and a path: %v", allowedFile, line, err)
		}
		allowed[path] = n
	}
	return allowed
}

// lines yields the lines of a file without empty lines and comments.
func lines(t *testing.T, path string) func(func(string) bool) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !yield(line) {
				return
			}
		}
	}
}

// lower writes the allowances that are higher than the counts, and fails for the others.
func lower(t *testing.T, allowed map[string]int, found map[string][]string) {
	t.Helper()
	for path, hits := range found {
		if len(hits) > allowed[path] {
			t.Errorf("%s: %d banned phrases, %d allowed; an update does not raise that:\n\t%s", path, len(hits), allowed[path], strings.Join(hits, "\n\t"))
		}
	}
	var out strings.Builder
	out.WriteString("# How many banned phrases a file may have. Numbers only go down: go test ./test/words -update\n")
	for _, path := range slices.Sorted(maps.Keys(allowed)) {
		if n := min(allowed[path], len(found[path])); n > 0 {
			fmt.Fprintf(&out, "%d %s\n", n, path)
		}
	}
	if err := os.WriteFile(allowedFile, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// proseOf returns the prose of each file that has some. Line breaks outside prose are kept, so
// that lines keep their numbers.
func proseOf(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if hidden := strings.HasPrefix(name, ".") && p != root && name != ".ci"; hidden || name == "testdata" || name == "node_modules" || name == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if name == "CHANGELOG.md" || name == "style.md" || !d.Type().IsRegular() {
			return nil
		}
		path, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		only := proseIn(path)
		if only == nil {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		out[path] = repeated.ReplaceAll(only(text), []byte{0})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// proseIn returns how to find the prose of a file, or nil for a file without prose.
func proseIn(path string) func([]byte) []byte {
	switch {
	case strings.HasPrefix(path, "docs/cli/"), path == "api/openapi/openapi.yaml":
		return func(text []byte) []byte { return text }
	case strings.HasSuffix(path, ".md"):
		return markdown
	case strings.HasSuffix(path, "_test.go"):
		return goComments
	case strings.HasSuffix(path, ".go"):
		return goMessages
	case strings.HasSuffix(path, ".py"):
		return pythonComments
	}
	return nil
}

// masked is text of which nothing is visible yet. No pattern matches across masked bytes.
func masked(text []byte) []byte {
	out := bytes.Repeat([]byte{0}, len(text))
	for i, b := range text {
		if b == '\n' {
			out[i] = b
		}
	}
	return out
}

// repeated masked bytes say no more than one, and take time to search.
var repeated = regexp.MustCompile(`\x00+`)

var code = regexp.MustCompile("(?sm)^```.*?^```|``.+?``|`[^`]+`")

// markdown shows a page without its code and without the targets of its links.
func markdown(text []byte) []byte {
	out := bytes.Clone(text)
	for _, at := range code.FindAllIndex(text, -1) {
		copy(out[at[0]:at[1]], masked(text[at[0]:at[1]]))
	}
	return out
}

// goComments shows the comments of a Go file.
func goComments(text []byte) []byte { return goProse(text, false) }

// goMessages shows the comments of a Go file, and the strings with a space in them.
func goMessages(text []byte) []byte { return goProse(text, true) }

// goProse shows comments without their markers, and messages without their quotes.
func goProse(text []byte, messages bool) []byte {
	out := masked(text)
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	s.Init(file, text, nil, scanner.ScanComments)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return out
		}
		at := file.Offset(pos)
		if messages && tok == token.STRING && strings.Contains(literal, " ") {
			copy(out[at+1:], text[at+1:at+len(literal)-1])
		}
		if tok != token.COMMENT || strings.HasPrefix(literal, "//go:") || strings.HasPrefix(literal, "//nolint") {
			continue
		}
		copy(out[at:], "  ")
		copy(out[at+2:], text[at+2:at+len(literal)])
		indent(out, text, at)
	}
}

// indent shows the white space before a comment that is alone on its line, so that a phrase
// can continue on the next line.
func indent(out, text []byte, at int) {
	start := bytes.LastIndexByte(text[:at], '\n') + 1
	if before := text[start:at]; len(bytes.TrimSpace(before)) == 0 {
		copy(out[start:at], before)
	}
}

var pythonProse = regexp.MustCompile(`(?s)""".*?"""|(?m:(?:^|\s)#[^\n]*)`)

// pythonComments shows the comments and docstrings of a Python file.
func pythonComments(text []byte) []byte {
	out := masked(text)
	for _, at := range pythonProse.FindAllIndex(text, -1) {
		copy(out[at[0]:at[1]], text[at[0]:at[1]])
		for i := at[0]; i < at[1]; i++ {
			if out[i] == '#' {
				out[i] = ' '
			}
		}
	}
	return out
}

// TestProse checks what each kind of file shows, and that a phrase is found on its line.
func TestProse(t *testing.T) {
	banned := phrases{{regexp.MustCompile(`(?i)\b(?:stands?\s+still)\b`), "pause"}}
	for name, c := range map[string]struct {
		path, text string
		want       []string
	}{
		"markdown":           {"a.md", "one\nIt stands\nstill.", []string{`line 2: "stands still": write pause`}},
		"code of markdown":   {"a.md", "`stand still`\n```sh\nstand still\n```\n", nil},
		"Go":                 {"a_test.go", "package a\n\n// It stands\n// still.\nvar a = \"stand still\"", []string{`line 3: "stands still": write pause`}},
		"message":            {"a.go", "package a\n\nvar a = \"to stand still\"", []string{`line 3: "stand still": write pause`}},
		"word":               {"a.go", "package a\n\nvar a = \"standstill\"", nil},
		"string of a test":   {"a_test.go", "package a\n\nvar a = \"to stand still\"", nil},
		"indented Go":        {"a.go", "package a\n\nfunc a() {\n\t// It stands\n\t// still.\n}\n", []string{`line 4: "stands still": write pause`}},
		"comments with code": {"a.go", "package a\n\nvar a = 1 // It stands\nvar b = 2 // still.\n", nil},
		"Python":             {"a.py", "x = 'stand still' # stands still\n\"\"\"To stand\nstill.\"\"\"\n", []string{`line 1: "stands still": write pause`, `line 2: "stand still": write pause`}},
		"help":               {"docs/cli/a.md", "```\nstand still\n```", []string{`line 2: "stand still": write pause`}},
		"another kind":       {"a.txt", "stand still", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			if only := proseIn(c.path); only != nil {
				got = banned.in(only([]byte(c.text)))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
