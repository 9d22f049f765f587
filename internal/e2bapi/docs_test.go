package e2bapi

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	docCall = regexp.MustCompile("`([A-Za-z]+)`")
	capital = regexp.MustCompile("[A-Z]")
)

// TestCallsOfTheDocs holds the table of docs/e2b.md against the programs that run E2B's clients: each call
// that is supported is made by one of them.
func TestCallsOfTheDocs(t *testing.T) {
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "e2b.md"))
	if err != nil {
		t.Fatal(err)
	}
	var programs strings.Builder
	for _, pattern := range []string{"../../test/e2e/testdata/e2b/*", "envd/testdata/client.*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			programs.Write(text)
		}
	}
	_, table, ok := strings.Cut(string(docs), "## Calls")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 || strings.HasPrefix(strings.TrimSpace(cells[2]), "no;") || strings.TrimSpace(cells[2]) == "no" {
			continue
		}
		rows++
		for _, call := range docCall.FindAllStringSubmatch(cells[1], -1) {
			snake := capital.ReplaceAllStringFunc(call[1], func(c string) string { return "_" + strings.ToLower(c) })
			if !regexp.MustCompile(`\b(` + call[1] + "|" + snake + `)\b`).MatchString(programs.String()) {
				t.Errorf("%s: no program makes this call", call[1])
			}
		}
	}
	if !ok || rows < 10 {
		t.Errorf("the table has %d rows of calls that are supported", rows)
	}
}
