package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cloche-dev/cloche/api"
)

// document is a parsed policy file with all its errors.
type document struct {
	rules Rules
	// where has the position of every key and element, by its path.
	where  map[string]place
	errors []problem
}

// place is a position in a file. Both numbers count from 1, and 0 is unknown.
type place struct{ line, column int }

// problem is an error and its position.
type problem struct {
	place
	err *api.Error
}

// first returns the first error in the file.
func (d *document) first() *api.Error {
	p := slices.MinFunc(d.errors, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	if p.line == 0 {
		return p.err
	}
	e := *p.err
	e.Message = fmt.Sprintf("line %d, column %d: %s", p.line, p.column, e.Message)
	return &e
}

// find returns the position of a key, or of the closest existing parent.
func (d *document) find(path string) place {
	for path != "" {
		if p, ok := d.where[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return place{}
}

func (d *document) report(at place, err *api.Error) { d.errors = append(d.errors, problem{at, err}) }

// readDocument parses the one document of a file. A panic of the YAML decoder is converted to an
// error, so that it does not end the daemon.
func readDocument(data []byte) (d *document) {
	d = &document{where: map[string]place{}}
	defer func() {
		if p := recover(); p != nil {
			d = &document{}
			d.report(place{}, api.Invalid("", "the policy file cannot be read: the YAML decoder gave up: %v", p).
				WithHint("write plain keys, lists and values; see which line it is by leaving out half of them"))
		}
	}()
	if len(data) > maxRules {
		d.report(place{}, tooLarge("", "the policy file has %d bytes", len(data)).WithHint("at most %d", maxRules))
		return d
	}
	// Duplicate keys are found below, with their positions.
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.report(syntaxError(err))
		return d
	}
	if len(file.Docs) > 1 {
		d.report(placeOf(file.Docs[1].Body), api.Invalid("", "the policy file holds more than one document").WithHint("leave out the lines of `---`"))
		return d
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return d
	}
	d.read(file.Docs[0].Body)
	return d
}

// read examines the document in three passes: its syntax, its structure, and its values.
func (d *document) read(body ast.Node) {
	ast.Walk(&plainYAML{d}, body)
	if len(d.errors) > 0 {
		return
	}
	d.shape("", body)
	var r Rules
	if len(d.errors) == 0 {
		if err := yaml.NodeToValue(body, &r, yaml.Strict()); err != nil {
			d.report(syntaxError(err))
			return
		}
	} else if yaml.NodeToValue(body, &r, yaml.AllowDuplicateMapKey()) != nil {
		return // the values cannot be read
	}
	d.rules = r
	for _, check := range ruleChecks() {
		check(r, func(err *api.Error) { d.report(d.find(err.Field), err) })
	}
}

// plainYAML refuses features of YAML that make a file mean something other than what it appears to
// say. A policy does not need them.
type plainYAML struct{ d *document }

// Visit implements ast.Visitor.
func (v *plainYAML) Visit(n ast.Node) ast.Visitor {
	odd := map[ast.NodeType]string{
		ast.TagType: "a tag (!)", ast.AnchorType: "an anchor (&)", ast.AliasType: "an alias (*)",
		ast.MergeKeyType: "a merge key (<<)", ast.DirectiveType: "a directive (%)", ast.MappingKeyType: "an explicit key (?)",
	}[n.Type()]
	if odd != "" {
		v.d.report(placeOf(n), api.Invalid("", "the policy file has %s", odd).WithHint("write every value out where it belongs"))
	}
	return v
}

func placeOf(n ast.Node) place {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return place{}
	}
	p := n.GetToken().Position
	return place{max(p.Line, 0), max(p.Column, 0)}
}

// syntaxError converts an error of the YAML library, with its position if it has one.
func syntaxError(err error) (place, *api.Error) {
	var at place
	text := strings.TrimSpace(yaml.FormatError(err, false, false))
	if e, ok := errors.AsType[yaml.Error](err); ok {
		if t := e.GetToken(); t != nil && t.Position != nil {
			at = place{max(t.Position.Line, 0), max(t.Position.Column, 0)}
			text = e.GetMessage()
		}
	}
	return at, api.Invalid("", "the policy file cannot be read: %s", oneLine(text)).
		WithCause(err).WithHint("the keys are %s", strings.Join(keysOf[Rules](), ", "))
}

// oneLine returns text on one line, for a message.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
