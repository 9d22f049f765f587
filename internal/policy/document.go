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

// document is a policy file that was read, with all that is wrong with it.
type document struct {
	rules Rules
	// where has the place of every key and element, by its path.
	where  map[string]place
	errors []problem
}

// place is a place in a file; both count from 1, and 0 is unknown.
type place struct{ line, column int }

// problem is an error and where it stands.
type problem struct {
	place
	err *api.Error
}

// CheckFile finds everything that is wrong with a policy file, and warns of rules
// that do nothing because another goes before them. The problems are in the order
// of the file, errors and warnings mixed. A file without errors is one that
// ParseRules takes, and the other way round.
func CheckFile(data []byte) []api.PolicyProblem {
	d := readDocument(data)
	out := make([]api.PolicyProblem, 0, len(d.errors))
	add := func(p problem, warning bool) {
		out = append(out, api.PolicyProblem{
			Line: p.line, Column: p.column, Warning: warning, Key: p.err.Field, Message: p.err.Message, Hint: p.err.Hint,
		})
	}
	for _, p := range d.errors {
		add(p, false)
	}
	if len(d.errors) == 0 {
		shadowed(d.rules, func(err *api.Error) { add(problem{d.find(err.Field), err}, true) })
	}
	slices.SortStableFunc(out, func(a, b api.PolicyProblem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return out
}

// first is the error of the file that stands first.
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

// find is the place of a key, or of what would hold it.
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

// readDocument reads the one document of a file. A decoder of foreign bytes that
// panics is a refusal of these bytes, not the end of the daemon.
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
	// That a key is repeated is found below, with its place.
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

// read goes through the document three times: what it is made of, what it holds,
// and what it says.
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
		return // what it says cannot be told
	}
	d.rules = r
	for _, check := range ruleChecks() {
		check(r, func(err *api.Error) { d.report(d.find(err.Field), err) })
	}
}

// plainYAML looks for the parts of YAML that make a file say something else
// than what one reads in it. A policy has no use for them.
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

// syntaxError is what the YAML library found, with its place where it says one.
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

// oneLine is text for a message.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
