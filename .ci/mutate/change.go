package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// change is one changed place of one file.
type change struct {
	path string // relative to the module
	line int
	fn   string // the function or method that it is in, "-" outside of all
	kind string // what was done
	text string // the line as it is in the file
	// nth counts, from 1, the changes of this kind in this function on lines with this text.
	nth int
	// source is the changed file.
	source []byte
}

// key says which change this is, whatever is changed elsewhere in the file.
func (c change) key() string {
	kind := c.kind
	if c.nth > 1 {
		kind += fmt.Sprintf(" (%d)", c.nth)
	}
	return strings.Join([]string{c.path, c.fn, kind, c.text}, ": ")
}

func (c change) String() string { return fmt.Sprintf("line %d: %s", c.line, c.key()) }

// The kinds of changes.
const (
	kindNever  = "condition is never true"
	kindAlways = "condition is always true"
	kindBound  = "bound is off by one"
	kindJoin   = "and is or, or is and"
	kindDrop   = "statement is dropped"
	kindEqual  = "equal is unequal"
)

// changesOf finds every change of a package's files that this system builds.
func changesOf(dir string) ([]change, error) {
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var all []change
	for _, name := range p.GoFiles {
		path := filepath.Join(dir, name)
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found, err := changesIn(path, src)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// changesIn finds the changes of one file; generated ones have none.
func changesIn(path string, src []byte) ([]change, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	lines := strings.Split(string(src), "\n")
	var all []change
	seen := map[string]int{}
	fn := "-"
	// replace makes a change of the bytes from one place to another.
	replace := func(kind string, from, to token.Pos, with string) {
		a, b := fset.Position(from), fset.Position(to)
		out := bytes.Join([][]byte{src[:a.Offset], []byte(with), src[b.Offset:]}, nil)
		if _, err := format.Source(out); err != nil {
			return
		}
		c := change{path: path, line: a.Line, fn: fn, kind: kind, text: strings.TrimSpace(lines[a.Line-1]), source: out}
		seen[c.key()]++
		c.nth = seen[c.key()]
		all = append(all, c)
	}
	text := func(n ast.Node) string {
		return string(src[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset])
	}
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if onlyLogs(n) {
				return false
			}
			replace(kindNever, n.Cond.Pos(), n.Cond.End(), "("+text(n.Cond)+") && false")
			if !endsWithError(n) {
				replace(kindAlways, n.Cond.Pos(), n.Cond.End(), "("+text(n.Cond)+") || true")
			}
		case *ast.BinaryExpr:
			if with, ok := swapped[n.Op]; ok {
				replace(with.kind, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), with.op.String())
			}
		case *ast.BlockStmt:
			dropIn(n.List, replace)
		case *ast.CaseClause:
			dropIn(n.Body, replace)
		case *ast.CommClause:
			dropIn(n.Body, replace)
		}
		return true
	}
	for _, d := range file.Decls {
		fn = nameOf(d)
		ast.Inspect(d, visit)
	}
	return all, nil
}

// nameOf is the name of a function, with the type of a method before it.
func nameOf(d ast.Decl) string {
	f, ok := d.(*ast.FuncDecl)
	if !ok {
		return "-"
	}
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch of := t.(type) {
		case *ast.StarExpr:
			t = of.X
		case *ast.IndexExpr:
			t = of.X
		case *ast.IndexListExpr:
			t = of.X
		case *ast.Ident:
			return of.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

var swapped = map[token.Token]struct {
	kind string
	op   token.Token
}{
	token.LSS: {kindBound, token.LEQ}, token.LEQ: {kindBound, token.LSS},
	token.GTR: {kindBound, token.GEQ}, token.GEQ: {kindBound, token.GTR},
	token.LAND: {kindJoin, token.LOR}, token.LOR: {kindJoin, token.LAND},
	token.EQL: {kindEqual, token.NEQ}, token.NEQ: {kindEqual, token.EQL},
}

// dropIn drops calls, deferred ones and assignments to what is there already: a check,
// a lock, a step of an undo.
func dropIn(list []ast.Stmt, replace func(kind string, from, to token.Pos, with string)) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt, *ast.DeferStmt, *ast.IncDecStmt, *ast.SendStmt:
			if !isLog(s) {
				replace(kindDrop, s.Pos(), s.End(), "{}")
			}
		case *ast.AssignStmt:
			if s.Tok == token.ASSIGN {
				replace(kindDrop, s.Pos(), s.End(), "{}")
			}
		}
	}
}

// isLog reports whether a statement only writes to the log: its words are not tested.
func isLog(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch sel.Sel.Name {
	case "Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext":
		return true
	}
	return false
}

// onlyLogs reports whether all that depends on a condition is a line in the log.
func onlyLogs(n *ast.IfStmt) bool {
	return n.Init == nil && n.Else == nil && len(n.Body.List) > 0 && !slices.ContainsFunc(n.Body.List, func(s ast.Stmt) bool { return !isLog(s) })
}

// endsWithError reports whether an if statement returns where err is not nil: that it
// always returns is noticed by anything that runs it.
func endsWithError(n *ast.IfStmt) bool {
	b, ok := n.Cond.(*ast.BinaryExpr)
	if !ok {
		return false
	}
	id, ok := b.X.(*ast.Ident)
	return ok && id.Name == "err" && b.Op == token.NEQ
}
