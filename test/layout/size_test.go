package layout_test

import (
	"go/ast"
	"testing"
)

// Limits of a package and of a type. More files or lines are two packages; more methods
// are two types.
const (
	maxPackageFiles = 35
	maxPackageLines = 7000
	maxTypeMethods  = 80
	// lineStep is the step in which the lines of a large package are listed.
	lineStep = 500
)

// size is what a package has without its tests and generated files.
type size struct{ files, lines int }

// largePackages are packages over a limit, with their size: the files, and the lines up to the
// next lineStep. The numbers only go down: a package that shrinks fails until its number is
// lowered, and one that no longer needs its entry fails until that is removed.
var largePackages = map[string]size{}

// wideTypes are types over maxTypeMethods, with how many methods they have. The numbers go
// down, except with a new verb of the API.
var wideTypes = map[string]int{
	"test/mockcore.Core": 130,
}

// verbTypes have one method for each verb of the API, by design: see RATIONALE.md.
var verbTypes = map[string]bool{"client.Client": true, "internal/core.Service": true}

func TestPackageSizes(t *testing.T) {
	_, files := sources(t)
	sizes := map[string]size{}
	for _, f := range files {
		if !f.test && !f.gen {
			s := sizes[f.pkg]
			sizes[f.pkg] = size{s.files + 1, s.lines + f.size}
		}
	}
	for pkg, is := range sizes {
		want := largePackages[pkg]
		if is.files <= maxPackageFiles {
			is.files = 0
		}
		if is.lines <= maxPackageLines {
			is.lines = 0
		}
		is.lines = (is.lines + lineStep - 1) / lineStep * lineStep
		switch {
		case is.files > want.files || is.lines > want.lines:
			t.Errorf("%s has %d files and up to %d lines over its limits %+v: split it by its nouns", pkg, is.files, is.lines, want)
		case is != want:
			t.Errorf("%s has %+v of the %+v that largePackages gives it: lower the numbers", pkg, is, want)
		}
	}
	for pkg := range largePackages {
		if _, ok := sizes[pkg]; !ok {
			t.Errorf("largePackages names %q, which does not exist", pkg)
		}
	}
}

func TestMethodCounts(t *testing.T) {
	_, files := sources(t)
	methods := map[string]int{}
	for _, f := range files {
		if f.test || f.gen {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[f.pkg+"."+receiver(fn)]++
			}
		}
	}
	for name, n := range methods {
		if n <= maxTypeMethods || verbTypes[name] {
			n = 0
		}
		switch want := wideTypes[name]; {
		case n > want:
			t.Errorf("%s has %d methods, want at most %d", name, n, max(want, maxTypeMethods))
		case n < want:
			t.Errorf("%s has %d methods of the %d that wideTypes gives it: lower the number", name, n, want)
		}
	}
	for name := range verbTypes {
		if methods[name] <= maxTypeMethods {
			t.Errorf("%s no longer needs its exemption", name)
		}
	}
}

// receiver is the name of the type that a method has.
func receiver(d *ast.FuncDecl) string {
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	switch x := typ.(type) {
	case *ast.IndexExpr:
		typ = x.X
	case *ast.IndexListExpr:
		typ = x.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
