package cloche_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cloche-dev/cloche"

// rooms is the import table of the house: which of our packages each package
// may import. A package that is not in it may not exist. ARCHITECTURE.md tells
// why it is cut this way.
var rooms = map[string][]string{
	"":                          {},
	"client":                    {"", "internal/reverse"},
	"internal/reverse":          {},
	"internal/peercred":         {},
	"internal/await":            {},
	"internal/poll":             {},
	"internal/porttest":         {},
	"api":                       {},
	"cmd/cloche":                {"client", "internal/agent", "internal/agent/guest", "internal/cli", "internal/daemon", "internal/egress/holder", "internal/engine/docker", "internal/engine/docker/inner", "internal/engine/gvisor", "internal/engine/gvisor/early", "internal/engine/oci"},
	"cmd/cloche-agent":          {"internal/agent/guest", "internal/engine/docker/inner"},
	"internal/policy":           {"", "internal/egress/rule"},
	"internal/secret":           {"", "internal/hostfile"},
	"internal/skill":            {""},
	"internal/spool":            {"", "internal/hostfile"},
	"internal/approval":         {""},
	"internal/event":            {"", "internal/hostfile"},
	"internal/audit":            {"", "internal/audit/chain", "internal/hostfile"},
	"internal/hostfile":         {},
	"internal/audit/chain":      {""},
	"internal/key":              {"", "internal/hostfile"},
	"internal/config":           {""},
	"internal/rulefile":         {"", "internal/policy"},
	"internal/image":            {"", "internal/archive", "internal/hostfile"},
	"internal/image/ingvisor":   {},
	"internal/archive":          {""},
	"internal/idmap":            {},
	"internal/workspace":        {"", "internal/hostfile", "internal/idmap", "internal/workspace/ext4"},
	"internal/workspace/ext4":   {},
	"internal/vmtest":           {"internal/vmtest/plan"},
	"internal/vmtest/guest":     {"internal/vmtest/plan"},
	"internal/vmtest/plan":      {},
	"internal/snapshot":         {"", "internal/hostfile"},
	"internal/egress":           {"", "internal/egress/inspect", "internal/egress/intercept", "internal/egress/resolver", "internal/egress/rule", "internal/egress/upstream"},
	"internal/egress/hop":       {},
	"internal/egress/inspect":   {"internal/egress/hop", "internal/egress/rule"},
	"internal/egress/intercept": {"internal/egress/hop", "internal/egress/inspect", "internal/egress/redact", "internal/egress/rule"},
	"internal/egress/redact":    {},
	"internal/egress/link":      {"internal/egress", "internal/egress/rule", "internal/poll"},
	"internal/egress/holder":    {"", "internal/peercred", "internal/poll"},
	"internal/egress/resolver":  {"internal/egress/rule", "internal/hostfile"},
	"internal/egress/rule":      {},
	"internal/egress/upstream":  {"internal/egress/rule"},
	"internal/bridge":           {"", "internal/bridge/filter", "internal/bridge/tape", "internal/egress/hop", "internal/egress/redact", "internal/egress/rule"},
	"internal/bridge/tape":      {""},
	"internal/bridge/filter":    {},
	"internal/bridge/caller":    {},
	"internal/egress/way": {
		"", "internal/egress", "internal/egress/holder", "internal/egress/intercept", "internal/egress/link", "internal/egress/resolver", "internal/egress/rule", "internal/egress/upstream",
		"internal/engine", "internal/hostfile", "internal/policy", "internal/secret",
	},
	"internal/agent":                    {"", "internal/agent/wire", "internal/await"},
	"internal/agent/wire":               {""},
	"internal/agent/confine":            {},
	"internal/agent/embed":              {},
	"internal/agent/guest":              {"", "internal/agent", "internal/agent/confine", "internal/agent/wire", "internal/archive"},
	"internal/agent/ingvisor":           {},
	"internal/engine":                   {""},
	"internal/engine/enginetest":        {"", "internal/engine", "internal/agent", "internal/poll", "internal/vmtest", "internal/vmtest/plan"},
	"internal/engine/enginetest/inside": {"internal/agent/confine"},
	"internal/engine/fake":              {"", "internal/engine", "internal/agent", "internal/agent/guest"},
	"internal/engine/hostproc":          {"", "internal/engine", "internal/poll"},
	"internal/engine/hostgroup":         {"", "internal/engine", "internal/engine/hostproc"},
	"internal/engine/gvisor":            {"", "internal/engine", "internal/engine/hostgroup", "internal/engine/hostproc", "internal/engine/gvisor/early", "internal/engine/gvisor/guard", "internal/hostfile", "internal/poll"},
	"internal/engine/gvisor/early":      {},
	"internal/engine/gvisor/guard":      {""},
	"internal/engine/gvisor/seccompgen": {},
	"internal/engine/docker":            {"", "internal/engine", "internal/engine/docker/inner", "internal/engine/hostkernel", "internal/engine/hostproc", "internal/engine/tap"},
	"internal/engine/docker/inner":      {},
	"internal/engine/docker/dockertest": {},
	"internal/engine/hostkernel":        {"", "internal/engine", "internal/engine/hostproc", "internal/idmap"},
	"internal/engine/native":            {"", "internal/engine", "internal/engine/hostgroup", "internal/engine/hostkernel", "internal/engine/hostproc", "internal/engine/tap"},
	"internal/engine/oci":               {"", "internal/agent/confine", "internal/engine", "internal/engine/hostgroup", "internal/engine/hostkernel", "internal/engine/hostproc", "internal/engine/tap"},
	"internal/engine/tap":               {"internal/engine"},
	"internal/engine/nsjail":            {"", "internal/engine", "internal/engine/hostkernel", "internal/engine/native"},
	"internal/sandbox":                  {"", "internal/await", "internal/hostfile", "internal/bridge", "internal/bridge/tape", "internal/approval", "internal/egress", "internal/policy", "internal/engine", "internal/image", "internal/workspace", "internal/agent", "internal/spool", "internal/snapshot", "internal/archive", "internal/egress/intercept", "internal/egress/rule", "internal/egress/way", "internal/secret"},
	"internal/core":                     {"", "internal/hostfile", "internal/bridge", "internal/bridge/tape", "internal/approval", "internal/policy", "internal/sandbox", "internal/engine", "internal/image", "internal/workspace", "internal/agent", "internal/audit", "internal/event", "internal/key", "internal/metrics", "internal/skill", "internal/snapshot", "internal/program"},
	"internal/metrics":                  {""},
	"internal/program":                  {"", "internal/hostfile"},
	"internal/httpapi":                  {"", "api", "internal/await", "internal/core", "internal/peercred", "internal/reverse", "internal/secret"},
	"internal/httpapi/httpapitest":      {"", "internal/core", "internal/httpapi"},
	"internal/langbot":                  {"", "internal/await", "internal/core", "internal/hostfile"},
	"internal/programfile":              {""},
	"internal/cli":                      {"", "client", "internal/audit/chain", "internal/programfile"},
	"internal/daemon": {
		"", "internal/bridge/tape", "internal/approval", "internal/agent", "internal/agent/embed", "internal/audit", "internal/config", "internal/core", "internal/egress/holder", "internal/egress/way", "internal/engine", "internal/engine/docker", "internal/engine/gvisor", "internal/engine/hostproc", "internal/engine/native", "internal/engine/nsjail", "internal/engine/oci", "internal/event",
		"internal/hostfile", "internal/httpapi", "internal/image", "internal/key", "internal/langbot", "internal/policy", "internal/program", "internal/rulefile", "internal/sandbox", "internal/secret", "internal/skill", "internal/snapshot", "internal/workspace",
	},
	"test/crash":     {"", "client"},
	"bench":          {"", "client", "internal/hostfile"},
	"bench/goclient": {"", "client"},
	"bench/imagerun": {"", "internal/agent", "internal/agent/embed", "internal/engine", "internal/engine/gvisor", "internal/engine/native", "internal/image"},
}

// stdOnly are packages whose non-test files import nothing but the standard
// library and what the table grants.
var stdOnly = []string{"", "internal/agent/embed", "internal/engine/gvisor/early", "internal/audit", "internal/audit/chain", "internal/egress/rule", "internal/egress/hop", "internal/egress/inspect", "internal/egress/upstream", "internal/bridge/filter"}

// initAllowed is the one early re-exec dispatch.
var initAllowed = []string{"internal/engine/gvisor/early"}

const (
	maxFileLines = 600
	maxFuncLines = 80
	maxMethods   = 8
)

// longFuncs are functions over maxFuncLines, each with its reason.
var longFuncs = map[string]string{
	"internal/policy.limits":  "one row for each limit: it is the table",
	"internal/httpapi.routes": "one row for each route: it is the table",
}

// wideInterfaces are interfaces over maxMethods, each with its reason.
var wideInterfaces = map[string]string{
	"internal/httpapi.Core": "one method for each verb: it is the list of verbs",
}

type sourceFile struct {
	path string // relative to the module
	pkg  string // directory relative to the module, "" for the root
	test bool
	gen  bool
	ast  *ast.File
	size int
}

func sources(t *testing.T) (*token.FileSet, []sourceFile) {
	t.Helper()
	fset := token.NewFileSet()
	var files []sourceFile
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(p))
		files = append(files, sourceFile{
			path: p, pkg: strings.TrimPrefix(strings.TrimPrefix(dir, "."), "/"), test: strings.HasSuffix(p, "_test.go"),
			gen: ast.IsGenerated(f), ast: f, size: strings.Count(string(src), "\n"),
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fset, files
}

func TestImportTable(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		allowed, ok := rooms[f.pkg]
		if !ok {
			t.Errorf("%s: package %q is not in the import table", f.path, f.pkg)
			continue
		}
		if f.test {
			continue
		}
		for _, im := range f.ast.Imports {
			path := strings.Trim(im.Path.Value, `"`)
			rel, ours := strings.CutPrefix(path, module)
			if !ours {
				if first, _, _ := strings.Cut(path, "/"); slices.Contains(stdOnly, f.pkg) && strings.Contains(first, ".") && first != "golang.org" {
					t.Errorf("%s imports %s: this package has the standard library only", f.path, path)
				}
				continue
			}
			if rel = strings.TrimPrefix(rel, "/"); !slices.Contains(allowed, rel) {
				t.Errorf("%s imports %q: the import table does not allow it", f.path, rel)
			}
		}
	}
	for pkg := range rooms {
		if !slices.ContainsFunc(files, func(f sourceFile) bool { return f.pkg == pkg }) {
			t.Errorf("the import table names %q, which does not exist", pkg)
		}
	}
}

func TestOnePackageComment(t *testing.T) {
	_, files := sources(t)
	comments := map[string][]string{}
	for _, f := range files {
		if f.test {
			continue
		}
		if _, ok := comments[f.pkg]; !ok {
			comments[f.pkg] = nil
		}
		if f.ast.Doc != nil {
			comments[f.pkg] = append(comments[f.pkg], f.path)
		}
	}
	for pkg, in := range comments {
		if len(in) != 1 {
			t.Errorf("package %q has %d package comments %v, want exactly 1", pkg, len(in), in)
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		if f.test || f.gen || f.ast.Name.Name == "main" {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
					t.Errorf("%s: %s has no comment", fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: %s has no comment", fset.Position(ts.Pos()), ts.Name.Name)
					}
				}
			}
		}
	}
}

// exportedReceiver is true for functions and for methods of exported types.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if ix, ok := typ.(*ast.IndexExpr); ok {
		typ = ix.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

func TestNoInit(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		if f.test || slices.Contains(initAllowed, f.pkg) {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init", fset.Position(fn.Pos()))
			}
		}
	}
}

func TestSizeAlarms(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		if f.gen {
			continue
		}
		if f.size > maxFileLines {
			t.Errorf("%s has %d lines: a file over %d is two files", f.path, f.size, maxFileLines)
		}
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				lines := fset.Position(n.End()).Line - fset.Position(n.Pos()).Line
				if name := f.pkg + "." + n.Name.Name; lines > maxFuncLines && longFuncs[name] == "" {
					t.Errorf("%s: %s has %d lines, want at most %d or a reason", fset.Position(n.Pos()), name, lines, maxFuncLines)
				}
			case *ast.TypeSpec:
				it, ok := n.Type.(*ast.InterfaceType)
				if name := f.pkg + "." + n.Name.Name; ok && it.Methods.NumFields() > maxMethods && wideInterfaces[name] == "" {
					t.Errorf("%s: interface %s has %d methods, want at most %d or a reason", fset.Position(n.Pos()), name, it.Methods.NumFields(), maxMethods)
				}
			}
			return true
		})
	}
}
