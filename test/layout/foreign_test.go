package layout_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// foreignLine matches lines that are a statement of Python, of a shell or of
// JavaScript, and no prose, no YAML and no Go.
var foreignLine = regexp.MustCompile(`(?m)^\s*(?:` + strings.Join([]string{
	// Python
	`(?:async )?def \w+\(.*\).*:$`, `class \w+(?:\(.*\))?:$`, `import \w+(?:, ?\w+)*$`, `from [\w.]+ import \S+.*`,
	`(?:if|elif|while|for|with|except|try|else)\b[^;{}]*:$`, `print\(.*\)$`, `return\b.*[)\]'"]$`,
	// shells
	`set -[a-z]+.*`, `(?:if|elif|while) .*; ?(?:then|do)$`, `(?:then|do|fi|done|esac)$`, `export \w+=.*`, `\w+=\$\(.*\)$`, `trap .* \w+$`, `exec "?\$.*`,
	// JavaScript
	`(?:const|let|var) [\w{}, ]+ = .*;?$`, `(?:async )?function \w*\(.*\) \{$`, `.*=> \{$`, `.*\brequire\(['"].*`, `module\.exports\b.*`,
}, "|") + `)`)

// foreignAllowed are files with source in strings, each with its reason.
var foreignAllowed = map[string]string{
	"internal/cli/process/shell.go": "one line without data in it chooses between the image's own shells",
}

// isForeign reports whether text is source of another language: it begins like a
// script, or two of its lines are statements of one.
func isForeign(text string) bool {
	if strings.HasPrefix(text, "#!/") || strings.HasPrefix(text, "#!python") {
		return true
	}
	return len(foreignLine.FindAllString(text, 2)) == 2
}

// interpreters take source in the argument after their flag.
var interpreters = []string{"sh", "bash", "dash", "python", "python3", "node", "perl", "ruby"}

// sourceArgument finds a program that is written out as the argument of an
// interpreter: {"sh", "-c", "a script"}.
func sourceArgument(list []ast.Expr) (string, bool) {
	for i := 0; i+2 < len(list); i++ {
		name, flag := literal(list[i]), literal(list[i+1])
		if flag != "-c" && flag != "-e" || !slices.Contains(interpreters, name[strings.LastIndex(name, "/")+1:]) {
			continue
		}
		if program := literal(list[i+2]); program != "" {
			return program, true
		}
	}
	return "", false
}

// literal is the value of a string literal, or of several put together; "" for
// everything else.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return literal(e.X) + literal(e.Y)
		}
	case *ast.ParenExpr:
		return literal(e.X)
	}
	return ""
}

// findForeign calls found for each piece of foreign source in a file.
func findForeign(file *ast.File, found func(token.Pos, string)) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.CompositeLit:
			if s, ok := sourceArgument(n.Elts); ok {
				found(n.Pos(), s)
			}
		case *ast.CallExpr:
			if s, ok := sourceArgument(n.Args); ok {
				found(n.Pos(), s)
			}
		case *ast.BinaryExpr:
			if s := literal(n); isForeign(s) {
				found(n.Pos(), s)
				return false
			}
		case *ast.BasicLit:
			if s := literal(n); isForeign(s) {
				found(n.Pos(), s)
			}
		}
		return true
	})
}

func parsed(t *testing.T, src string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestNoForeignSource: what runs inside a sandbox is a package or a file of its own,
// which its own tools read, and no string in a Go file.
func TestNoForeignSource(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		// The programs in bench are what is measured: they are its data.
		if f.test || f.gen || strings.HasPrefix(f.pkg, "bench") || foreignAllowed[f.path] != "" {
			continue
		}
		findForeign(f.ast, func(pos token.Pos, s string) {
			first, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
			t.Errorf("%s: source of another language in a string, %q: make it a file of its own, and embed that", fset.Position(pos), first)
		})
	}
}

// TestForeignSourceIsKnown: the rule sees what it is for, and nothing else.
func TestForeignSourceIsKnown(t *testing.T) {
	for _, s := range []string{
		"#!/bin/sh\necho hi\n",
		"import os\nprint(os.environ)\n",
		"import sys, time\n\ndef main(args):\n    for a in args:\n        print(a)\n",
		"set -e\nexport A=1\nmake\n",
		"if [ -f x ]; then\n  rm x\nfi\n",
		"while read l; do\n  echo $l\ndone\n",
		"const fs = require('fs');\nmodule.exports = {};\n",
		"function f(a) {\n  let b = a;\n}\n",
	} {
		if !isForeign(s) {
			t.Errorf("this is source of another language: %q", s)
		}
	}
	for _, s := range []string{
		"", "plain", "for each of them:\nthe answer is here\n",
		"  cloche run -- sh -c 'echo hi'\n  cloche exec box -- python3 -c 'print(1)'\n",
		"rules:\n  - allow: [a.example]\n    deny:\n      - b.example\n",
		"CREATE TABLE a (\n  b TEXT,\n  c TEXT\n);\n",
		"set the size\nand export it\n",
	} {
		if isForeign(s) {
			t.Errorf("this is none: %q", s)
		}
	}
	for src, want := range map[string]bool{
		`{"sh", "-c", "echo " + "hi"}`:            true,
		`{"/usr/bin/python3", "-c", "print(1)"}`:  true,
		`{"env", "bash", "-c", "exec \"$@\"", x}`: true,
		`{"sh", "-c", script}`:                    false,
		`{"grep", "-c", "x"}`:                     false,
	} {
		got := false
		findForeign(parsed(t, "package p\nvar x = []string"+src), func(token.Pos, string) { got = true })
		if got != want {
			t.Errorf("%s: found is %v, want %v", src, got, want)
		}
	}
}
