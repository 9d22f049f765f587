package policy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/goccy/go-yaml"

	"github.com/cloche-dev/cloche/internal/policy/rules"
)

var update = flag.Bool("update", false, "write docs/policy.schema.json")

const schemaFile = "../../docs/policy.schema.json"

// closedLists are the values that a key takes, by its path with * for names and
// elements.
var closedLists = map[string][]any{
	"version":                 {0, 1},
	"min_tier":                {"namespace", "gvisor", "microvm"},
	"profiles.*.network":      {"none", "on"},
	"profiles.*.on_expiry":    {"stop", "suspend"},
	"mounts.*.rules.*.access": {"none", "ro", "rw"},
}

// schemer makes the schema of the policy file from the types that it is read into,
// whose comments are its descriptions.
type schemer struct{ docs map[string]string }

func (s schemer) of(path, doc string, t reflect.Type) map[string]any {
	out := map[string]any{}
	if doc != "" {
		out["description"] = doc
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	under := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	switch {
	case t == reflect.TypeFor[rules.Size]():
		out["type"], out["pattern"] = []string{"string", "integer"}, `^[0-9.]+ ?([kKmMgGtT]([iI]?[bB])?|[bB])?$`
		out["examples"] = []string{"512MiB", "2GiB"}
	case t == reflect.TypeFor[rules.Duration]():
		out["type"], out["pattern"], out["examples"] = "string", `^([0-9.]+(ns|us|µs|ms|s|m|h))+$|^0$`, []string{"90s", "1h30m"}
	case t == reflect.TypeFor[rules.EgressItem]():
		out["type"], out["examples"] = "string", []string{"pypi.org", "*.example.com", "smtp.example.com:587", "db.corp:5432 at 10.1.0.0/16", "@npm"}
	case t == reflect.TypeFor[rules.RequestLine]():
		out["type"], out["examples"] = "string", []string{"GET,HEAD api.example.com/v1/*"}
	case t.Kind() == reflect.Struct:
		props := map[string]any{}
		for f := range t.Fields() {
			key := f.Tag.Get("yaml")
			props[key] = s.of(under(key), s.docs[t.Name()+"."+f.Name], f.Type)
		}
		out["type"], out["additionalProperties"], out["properties"] = "object", false, props
	case t.Kind() == reflect.Map:
		out["type"], out["additionalProperties"] = "object", s.of(under("*"), s.docs[t.Elem().Name()], t.Elem())
	case t.Kind() == reflect.Slice:
		out["type"], out["items"] = "array", s.of(under("*"), s.docs[t.Elem().Name()], t.Elem())
	default:
		out["type"] = map[reflect.Kind]string{reflect.Bool: "boolean", reflect.String: "string", reflect.Int: "integer", reflect.Int64: "integer", reflect.Float64: "number"}[t.Kind()]
	}
	if list := closedLists[path]; list != nil {
		out["enum"] = list
	}
	return out
}

// comments are those of the package's types and their fields, on one line each.
func comments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("rules/*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			gen, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}
			for _, spec := range gen.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				out[typ.Name.Name] = strings.Join(strings.Fields(gen.Doc.Text()), " ")
				if st, ok := typ.Type.(*ast.StructType); ok {
					for _, field := range st.Fields.List {
						for _, name := range field.Names {
							out[typ.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
						}
					}
				}
			}
			return true
		})
	}
	return out
}

func schema(t *testing.T) []byte {
	t.Helper()
	s := schemer{comments(t)}.of("", "The operator's rules.", reflect.TypeFor[rules.Rules]())
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "Cloche policy file"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSchemaIsFresh(t *testing.T) {
	want := schema(t)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(schemaFile); err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/policy.schema.json is stale (%v): run go test ./internal/policy -update", err)
	}
}

// TestSchemaAndParserAgree on which files have the right form.
func TestSchemaAndParserAgree(t *testing.T) {
	var s openapi3.Schema
	plain := bytes.ReplaceAll(schema(t), []byte(`"$schema"`), []byte(`"x-schema"`))
	if err := json.Unmarshal(plain, &s); err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{
		wholeFile: true, tenantRules: true, "{}": true, "enabeld: true": false, "enabled: maybe": false, "mounts: [{rot: /a}]": false,
		"mounts: [{root: /a, rules: [{path: x, access: all}]}]": false, "min_tier: best": false, "version: 3": false,
		"profiles: {x: {defaults: {memory: 2XB}}}": false, "profiles: {x: {defaults: {timeout: soon}}}": false,
		"profiles: {x: {defaults: {memory: 134217728, timeout: 1h30m}}}": true, "images: debian": false, "max_sandboxes: 1.5": false,
		"tenants: {red: {max_sandbox: 1}}": false, "registries: {docker.io: {insecure: 'yes'}}": false, "image_store: {max: 1GiB}": true,
	} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		schemaErr := s.VisitJSON(v, openapi3.EnableJSONSchema2020())
		_, parseErr := rules.ParseRules([]byte(text))
		if (schemaErr == nil) != good || (parseErr == nil) != good {
			t.Errorf("%s\nschema: %v\nparser: %v\nwant good: %v", text, schemaErr, parseErr, good)
		}
	}
}
