package layout_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMain runs the tests at the root of the module, whose files they read.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

const module = "github.com/cloche-dev/cloche"

// imports is the import table of the fixture: which of our packages each package
// may import. A package that is not in it may not exist. ARCHITECTURE.md tells
// why it is cut this way.
var imports = map[string][]string{
	"api":                               {},
	"client":                            {"api", "internal/reverse"},
	"internal/reverse":                  {},
	"internal/peercred":                 {},
	"internal/await":                    {},
	"test/longtest":                     {},
	"internal/poll":                     {},
	"internal/ctxio":                    {},
	"test/freeport":                     {},
	"api/openapi":                       {},
	"cmd/cloche":                        {"client", "internal/agent", "internal/agent/guest", "internal/agent/guest/sudo", "internal/cli", "internal/cli/command", "internal/daemon", "internal/egress/fdstore", "internal/engine/docker", "internal/engine/inner", "internal/engine/gvisor/early", "internal/engine/gvisor/role", "internal/engine/oci"},
	"cmd/cloche-sandbox":                {"internal/engine/gvisor/early", "internal/engine/gvisor/role"},
	"cmd/cloche-agent":                  {"internal/agent", "internal/agent/guest", "internal/agent/guest/fsop", "internal/agent/guest/sudo", "internal/engine/inner"},
	"internal/agent/guest/pty":          {},
	"internal/agent/guest/sudo":         {"api", "internal/agent/guest/identity", "internal/agent/guest/pty", "internal/agent/wire"},
	"internal/policy":                   {"api", "internal/egress/rule", "internal/policy/egress", "internal/policy/rules"},
	"internal/secret":                   {"api", "internal/hostfile"},
	"internal/skill":                    {"api"},
	"internal/spool":                    {"api", "internal/hostfile"},
	"internal/approval":                 {"api"},
	"internal/event":                    {"api", "internal/hostfile"},
	"internal/audit":                    {"api", "internal/audit/chain", "internal/hostfile"},
	"internal/hostfile":                 {},
	"internal/audit/chain":              {"api"},
	"internal/kernel":                   {"api"},
	"internal/key":                      {"api", "internal/hostfile"},
	"internal/config":                   {"api"},
	"internal/rulefile":                 {"api", "internal/policy/rules"},
	"internal/image":                    {"api", "internal/archive", "internal/archive/erofstar", "internal/ctxio", "internal/hostfile"},
	"internal/archive/erofstar":         {},
	"internal/archive/pack":             {"api", "internal/archive", "internal/dirent"},
	"internal/dirent":                   {},
	"internal/image/build":              {"api", "internal/agent", "internal/archive", "internal/archive/erofstar", "internal/hostfile", "internal/image", "internal/image/capture"},
	"internal/image/capture":            {"api", "internal/agent", "internal/archive", "internal/archive/erofstar", "internal/image"},
	"internal/image/ingvisor":           {},
	"internal/archive":                  {"api"},
	"internal/archive/localdir":         {"api", "internal/terminal"},
	"internal/idmap":                    {},
	"internal/workspace":                {"api", "internal/hostfile", "internal/idmap", "internal/workspace/ext4"},
	"internal/workspace/ext4":           {},
	"test/vm":                           {"test/vm/plan"},
	"test/vm/guest":                     {"test/vm/plan"},
	"test/vm/plan":                      {},
	"internal/snapshot":                 {"api", "internal/hostfile", "internal/sandbox/stage"},
	"internal/egress":                   {"api", "internal/egress/inspect", "internal/egress/intercept", "internal/egress/resolver", "internal/egress/rule", "internal/egress/upstream"},
	"internal/egress/hop":               {},
	"internal/egress/inspect":           {"internal/egress/hop", "internal/egress/rule"},
	"internal/egress/intercept":         {"internal/egress/hop", "internal/egress/inspect", "internal/egress/redact", "internal/egress/rule"},
	"internal/egress/redact":            {},
	"internal/egress/netstack":          {"internal/egress", "internal/egress/rule", "internal/poll"},
	"internal/egress/fdstore":           {"api", "internal/peercred", "internal/poll"},
	"internal/egress/resolver":          {"internal/egress/rule", "internal/hostfile"},
	"internal/egress/rule":              {},
	"internal/egress/upstream":          {"internal/egress/rule"},
	"internal/endpoint":                 {"api", "internal/endpoint/filter", "internal/endpoint/recording", "internal/egress/hop", "internal/egress/redact", "internal/egress/rule"},
	"internal/endpoint/recording":       {"api"},
	"internal/endpoint/filter":          {},
	"test/caller":                       {},
	"internal/egress/network":           {"api", "internal/egress", "internal/egress/fdstore", "internal/egress/intercept", "internal/egress/netstack", "internal/egress/resolver", "internal/egress/rule", "internal/egress/upstream", "internal/engine", "internal/hostfile", "internal/policy", "internal/secret"},
	"internal/agent":                    {"api", "internal/agent/wire", "internal/await"},
	"internal/agent/wire":               {"api"},
	"internal/agent/confine":            {},
	"internal/agent/embed":              {},
	"internal/agent/guest":              {"api", "internal/agent", "internal/agent/guest/fsop", "internal/agent/guest/identity", "internal/agent/guest/launcher", "internal/agent/guest/pathwalk", "internal/agent/guest/ports", "internal/agent/guest/process", "internal/agent/guest/session", "internal/agent/guest/sudo", "internal/agent/guest/tools", "internal/agent/wire"},
	"internal/agent/guest/tools":        {"api", "internal/agent/guest/identity", "internal/agent/guest/pathwalk", "internal/agent/guest/session", "internal/agent/wire", "internal/dirent"},
	"internal/agent/guest/session":      {"api", "internal/agent", "internal/agent/wire"},
	"internal/agent/guest/process":      {"api", "internal/agent", "internal/agent/confine", "internal/agent/guest/identity", "internal/agent/guest/launcher", "internal/agent/guest/output", "internal/agent/guest/pathwalk", "internal/agent/guest/pty", "internal/agent/guest/session", "internal/agent/wire"},
	"internal/agent/guest/ports":        {"api", "internal/agent", "internal/agent/guest/identity", "internal/agent/guest/pathwalk", "internal/agent/guest/session", "internal/agent/wire"},
	"internal/agent/guest/pathwalk":     {"api", "internal/agent/guest/identity", "internal/agent/wire"},
	"internal/agent/guest/output":       {"api", "internal/agent/guest/pathwalk", "internal/agent/wire"},
	"internal/agent/guest/fsop":         {"api", "internal/agent/confine", "internal/agent/guest/identity", "internal/agent/guest/pathwalk", "internal/agent/guest/session", "internal/agent/wire", "internal/archive", "internal/archive/pack", "internal/dirent", "internal/filewatch"},
	"internal/agent/guest/identity":     {"api", "internal/agent", "internal/agent/guest/launcher"},
	"internal/agent/guest/launcher":     {"internal/clone"},
	"internal/filewatch":                {"api"},
	"internal/clone":                    {},
	"internal/agent/ingvisor":           {},
	"internal/engine":                   {"api"},
	"internal/engine/enginetest":        {"api", "internal/engine", "internal/agent", "test/longtest", "internal/poll", "test/vm", "test/vm/plan"},
	"internal/engine/enginetest/inside": {"internal/agent/confine"},
	"internal/engine/fake":              {"api", "internal/engine", "internal/agent", "internal/agent/guest", "internal/hostfile"},
	"internal/engine/lifecycle":         {"api", "internal/engine", "internal/engine/cgroup", "internal/engine/pidfd"},
	"internal/engine/pidfd":             {"api", "internal/engine", "internal/poll"},
	"internal/engine/cgroup":            {"api", "internal/engine", "internal/engine/pidfd"},
	"internal/engine/pool":              {"api"},
	"internal/engine/checkpoint":        {"api", "internal/ctxio", "internal/hostfile"},
	"internal/engine/gvisor":            {"api", "internal/ctxio", "internal/engine", "internal/engine/cgroup", "internal/engine/checkpoint", "internal/engine/lifecycle", "internal/engine/pidfd", "internal/engine/gvisor/claim", "internal/engine/gvisor/early", "internal/engine/gvisor/embed", "internal/engine/gvisor/refusal", "internal/engine/hostrootfs", "internal/engine/pool", "internal/hostfile", "internal/poll"},
	"internal/engine/gvisor/claim":      {"internal/engine/gvisor/early", "internal/engine/gvisor/refusal"},
	"internal/engine/gvisor/early":      {},
	"internal/engine/gvisor/embed":      {},
	"internal/engine/gvisor/embed/pack": {},
	"internal/engine/gvisor/refusal":    {"api"},
	// The sentry and the gofer: what they import each sandbox pays for.
	"internal/engine/gvisor/role":            {"api", "internal/engine/gvisor/claim", "internal/engine/gvisor/early", "internal/engine/gvisor/refusal", "internal/engine/pidfd", "internal/poll"},
	"internal/engine/gvisor/role/seccompgen": {},
	"internal/engine/docker":                 {"api", "internal/archive/erofstar", "internal/engine", "internal/engine/agentline", "internal/engine/hostrootfs", "internal/engine/inner", "internal/engine/pidfd", "internal/engine/tap"},
	"internal/engine/agentline":              {"internal/engine/inner"},
	"internal/engine/e2b":                    {"api", "internal/engine", "internal/engine/agentline", "internal/engine/inner", "internal/envdpb"},
	"internal/engine/inner":                  {},
	"internal/engine/docker/dockertest":      {},
	"internal/engine/hostrootfs":             {"api", "internal/engine", "internal/engine/pidfd", "internal/idmap"},
	"internal/engine/native":                 {"api", "internal/clone", "internal/engine", "internal/engine/cgroup", "internal/engine/hostrootfs", "internal/engine/lifecycle", "internal/engine/pidfd", "internal/engine/pool", "internal/engine/tap"},
	"internal/engine/oci":                    {"api", "internal/agent/confine", "internal/engine", "internal/engine/cgroup", "internal/engine/hostrootfs", "internal/engine/lifecycle", "internal/engine/pidfd", "internal/engine/tap"},
	"internal/engine/tap":                    {"internal/engine"},
	"internal/engine/nsjail":                 {"api", "internal/engine", "internal/engine/hostrootfs", "internal/engine/native"},
	"internal/sandbox":                       {"api", "internal/agent", "internal/approval", "internal/archive", "internal/await", "internal/egress", "internal/egress/intercept", "internal/egress/network", "internal/egress/rule", "internal/endpoint/recording", "internal/engine", "internal/hostfile", "internal/image", "internal/policy", "internal/sandbox/admission", "internal/sandbox/agentconn", "internal/sandbox/changes", "internal/sandbox/deadline", "internal/sandbox/directory", "internal/sandbox/endpoints", "internal/sandbox/files", "internal/sandbox/fault", "internal/sandbox/filesync", "internal/sandbox/idempotency", "internal/sandbox/lease", "internal/sandbox/listing", "internal/sandbox/mountorder", "internal/sandbox/pathrule", "internal/sandbox/ports", "internal/sandbox/pressure", "internal/sandbox/process", "internal/sandbox/quota", "internal/sandbox/record", "internal/sandbox/remains", "internal/sandbox/retention", "internal/sandbox/retry", "internal/sandbox/rootwrite", "internal/sandbox/savedroot", "internal/sandbox/stage", "internal/sandbox/template", "internal/sandbox/tombstone", "internal/sandbox/trust", "internal/sandbox/undo", "internal/sandbox/usage", "internal/secret", "internal/snapshot", "internal/workspace"},
	"internal/sandbox/agentconn":             {"api", "internal/agent", "internal/await", "internal/engine", "internal/sandbox/process"},
	"internal/sandbox/fault":                 {"api", "internal/hostfile", "internal/sandbox/idempotency"},
	"internal/sandbox/mountorder":            {"api", "internal/engine", "internal/policy", "internal/workspace"},
	"internal/sandbox/listing":               {"api"},
	"internal/sandbox/template":              {"api", "internal/engine", "internal/hostfile", "internal/sandbox/directory", "internal/sandbox/record", "internal/workspace"},
	"internal/sandbox/usage":                 {"api", "internal/engine"},
	"internal/sandbox/idempotency":           {"api", "internal/sandbox/tombstone"},
	"internal/sandbox/quota":                 {"api", "internal/workspace"},
	"internal/sandbox/retry":                 {},
	"internal/sandbox/undo":                  {},
	"internal/sandbox/pathrule":              {"api", "internal/agent", "internal/engine"},
	"internal/sandbox/pressure":              {},
	"internal/sandbox/rootwrite":             {"internal/engine"},
	"internal/sandbox/remains":               {"api", "internal/engine", "internal/sandbox/directory"},
	"internal/sandbox/stage":                 {"api"},
	"internal/sandbox/lease":                 {"api"},
	"internal/sandbox/admission":             {"api", "internal/policy"},
	"internal/sandbox/deadline":              {"api", "internal/hostfile"},
	"internal/sandbox/retention":             {},
	"internal/sandbox/process":               {"api", "internal/agent", "internal/hostfile", "internal/policy", "internal/sandbox/retention", "internal/spool", "internal/workspace"},
	"internal/sandbox/files":                 {"api", "internal/agent", "internal/archive", "internal/archive/pack", "internal/filewatch", "internal/policy", "internal/workspace"},
	"internal/sandbox/filesync":              {"api", "internal/agent", "internal/archive/localdir", "internal/hostfile", "internal/workspace"},
	"internal/sandbox/changes":               {"api", "internal/archive", "internal/image", "internal/workspace"},
	"internal/sandbox/ports":                 {"api", "internal/agent", "internal/policy"},
	"internal/sandbox/endpoints":             {"api", "internal/agent", "internal/await", "internal/endpoint", "internal/endpoint/recording", "internal/policy", "internal/secret"},
	"internal/core":                          {"api", "internal/agent", "internal/approval", "internal/archive", "internal/audit", "internal/core/hostfacts", "internal/endpoint", "internal/endpoint/recording", "internal/engine", "internal/event", "internal/hostfile", "internal/image", "internal/image/build", "internal/job", "internal/kernel", "internal/key", "internal/metrics", "internal/policy", "internal/policy/rules", "internal/sandbox", "internal/sandbox/pathrule", "internal/sandbox/process", "internal/sandbox/template", "internal/skill", "internal/snapshot", "internal/workspace"},
	"internal/core/hostfacts":                {"api", "internal/policy", "internal/workspace"},
	"internal/sandbox/directory":             {"api", "internal/engine/checkpoint", "internal/hostfile", "internal/workspace"},
	"internal/sandbox/record":                {"api", "internal/egress/rule", "internal/hostfile", "internal/policy", "internal/sandbox/directory", "internal/sandbox/tombstone", "internal/workspace"},
	"internal/sandbox/savedroot":             {"api", "internal/agent", "internal/hostfile", "internal/image", "internal/image/capture", "internal/sandbox/directory", "internal/workspace"},
	"internal/sandbox/trust":                 {"api", "internal/agent", "internal/egress/intercept", "internal/egress/rule", "internal/policy", "internal/sandbox/record"},
	"internal/sandbox/tombstone":             {"api", "internal/hostfile", "internal/policy"},
	"internal/metrics":                       {"api"},
	"internal/job":                           {"api", "internal/hostfile"},
	"internal/httpapi":                       {"api", "api/openapi", "internal/await", "internal/core", "internal/peercred", "internal/reverse", "internal/secret"},
	"test/mockcore":                          {"api", "internal/core", "internal/httpapi"},
	"internal/e2bapi":                        {"api", "internal/core", "internal/e2bapi/codeinterpreter", "internal/e2bapi/envd", "internal/hostfile", "internal/image/build"},
	"internal/e2bapi/codeinterpreter":        {"api", "internal/core", "internal/e2bapi/envd"},
	"internal/e2bapi/envd":                   {"api", "internal/core", "internal/envdpb"},
	"internal/envdpb":                        {},
	"internal/ingress":                       {"api", "internal/core", "internal/egress/hop"},
	"internal/langbot":                       {"api", "internal/await", "internal/core", "internal/hostfile"},
	"internal/jobfile":                       {"api"},
	"internal/cli":                           {"api", "internal/cli/command", "internal/cli/daemon", "internal/cli/image", "internal/cli/job", "internal/cli/network", "internal/cli/policy", "internal/cli/process", "internal/cli/sandbox", "internal/cli/skill", "internal/cli/workspace", "internal/terminal"},
	"internal/cli/command":                   {"api", "client", "internal/terminal"},
	"internal/cli/daemon":                    {"api", "internal/audit/chain", "internal/cli/command", "internal/terminal"},
	"internal/cli/image":                     {"api", "client", "internal/archive/localdir", "internal/cli/command", "internal/cli/network", "internal/terminal"},
	"internal/cli/network":                   {"api", "internal/cli/command", "internal/terminal"},
	"internal/cli/policy":                    {"api", "internal/cli/command", "internal/cli/sandbox", "internal/terminal"},
	"internal/cli/process":                   {"api", "internal/archive/localdir", "internal/cli/command", "internal/cli/network", "internal/terminal"},
	"internal/cli/sandbox":                   {"api", "client", "internal/archive/localdir", "internal/cli/command", "internal/cli/image", "internal/cli/network", "internal/cli/process", "internal/cli/skill", "internal/cli/workspace", "internal/terminal"},
	"internal/cli/skill":                     {"api", "client", "internal/archive/localdir", "internal/cli/command", "internal/terminal"},
	"internal/cli/workspace":                 {"api", "internal/cli/command", "internal/terminal"},
	"internal/terminal":                      {},
	"internal/daemon":                        {"api", "internal/agent/embed", "internal/approval", "internal/audit", "internal/config", "internal/core", "internal/e2bapi", "internal/e2bapi/envd", "internal/egress/fdstore", "internal/egress/network", "internal/endpoint/recording", "internal/engine", "internal/engine/checkpoint", "internal/engine/docker", "internal/engine/e2b", "internal/engine/gvisor", "internal/engine/lifecycle", "internal/engine/native", "internal/engine/nsjail", "internal/engine/oci", "internal/engine/pidfd", "internal/event", "internal/hostfile", "internal/httpapi", "internal/image", "internal/ingress", "internal/job", "internal/key", "internal/langbot", "internal/policy", "internal/policy/rules", "internal/rulefile", "internal/sandbox", "internal/sandbox/pathrule", "internal/sandbox/pressure", "internal/sandbox/agentconn", "internal/sandbox/directory", "internal/sandbox/record", "internal/sandbox/retention", "internal/secret", "internal/skill", "internal/snapshot", "internal/workspace"},
	"test/crash":                             {"api", "client"},
	"test/attack":                            {},
	"test/e2e":                               {},
	"test/fixture":                           {"api", "internal/engine/docker/dockertest", "test/longtest"},
	"test/testnet":                           {"test/fixture", "test/longtest"},
	"test/layout":                            {},
	"test/words":                             {},
	"bench":                                  {"api", "bench/sleepers", "client", "internal/hostfile"},
	"bench/sleepers":                         {"api", "client"},
	"bench/goclient":                         {"api", "client"},
	"bench/imagerun":                         {"api", "internal/agent", "internal/agent/embed", "internal/engine", "internal/engine/gvisor", "internal/engine/native", "internal/image"},
	"bench/webapp":                           {},
	"internal/policy/rules":                  {"api", "internal/egress/rule"},
	"test/tarfile":                           {},
	"internal/policy/egress":                 {"api", "internal/egress/rule", "internal/policy/rules"},
	"internal/cli/job":                       {"api", "internal/archive/localdir", "internal/cli/command", "internal/cli/policy", "internal/jobfile", "internal/terminal"},
}

// stdOnly are packages whose non-test files import only the standard
// library and what the table grants.
var stdOnly = []string{"api", "internal/agent/embed", "internal/engine/gvisor/early", "internal/audit", "internal/audit/chain", "internal/egress/rule", "internal/egress/hop", "internal/egress/inspect", "internal/egress/upstream", "internal/endpoint/filter"}

// initAllowed is the one early re-exec dispatch.
var initAllowed = []string{"internal/engine/gvisor/early"}

const (
	maxFileLines = 600
	maxFuncLines = 80
	maxMethods   = 8
)

// longFuncs are functions over maxFuncLines, each with its reason.
var longFuncs = map[string]string{
	"internal/policy/rules.Limits": "one row for each limit: it is the table",
	"internal/httpapi.routes":      "one row for each route: it is the table",
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
		allowed, ok := imports[f.pkg]
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
	for pkg := range imports {
		if !slices.ContainsFunc(files, func(f sourceFile) bool { return f.pkg == pkg }) {
			t.Errorf("the import table names %q, which does not exist", pkg)
		}
	}
}

// TestExecutables: the executable of sandboxes has next to nothing beside gVisor, and the one that carries it
// has no sentry.
func TestExecutables(t *testing.T) {
	deps := func(args ...string) []string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		return strings.Fields(string(out))
	}
	own := []string{"api", "cmd/cloche-sandbox", "internal/poll", "internal/engine/pidfd"}
	for _, name := range deps("./cmd/cloche-sandbox") {
		name, ours := strings.CutPrefix(name, module+"/")
		if ours && !slices.Contains(own, name) && !strings.HasPrefix(name, "internal/engine/gvisor/") {
			t.Errorf("the executable of sandboxes has %s", name)
		}
		for _, client := range []string{"net/http/httputil", "connectrpc.com/", "github.com/moby/buildkit/", "github.com/docker/", "k8s.io/", "go.opentelemetry.io/", "github.com/klauspost/"} {
			if strings.HasPrefix(name, client) {
				t.Errorf("the executable of sandboxes has %s", name)
			}
		}
	}
	for _, name := range deps("-tags", "cloche_embed", "./cmd/cloche") {
		if strings.HasPrefix(name, "gvisor.dev/gvisor/pkg/sentry") || strings.HasPrefix(name, "gvisor.dev/gvisor/runsc") {
			t.Errorf("the executable that carries the one of sandboxes has %s", name)
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
		if f.test || f.gen || slices.Contains(initAllowed, f.pkg) { // what protoc-gen-go generates registers itself
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
