package rules

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cloche-dev/cloche/api"
)

// Document is a parsed policy file with all its errors.
type Document struct {
	Rules Rules
	// where has the position of every key and element, by its path.
	where  map[string]place
	Errors []Problem
}

// place is a position in a file. Both numbers count from 1, and 0 is unknown.
type place struct{ Line, Column int }

// Problem is an error and its position.
type Problem struct {
	place
	Err *api.Error
}

// first returns the first error in the file.
func (d *Document) first() *api.Error {
	p := slices.MinFunc(d.Errors, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if p.Line == 0 {
		return p.Err
	}
	e := *p.Err
	e.Message = fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, e.Message)
	return &e
}

// ProblemOf is an error with the position of its field.
func (d *Document) ProblemOf(err *api.Error) Problem { return Problem{d.find(err.Field), err} }

// find returns the position of a key, or of the closest existing parent.
func (d *Document) find(path string) place {
	for path != "" {
		if p, ok := d.where[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return place{}
}

func (d *Document) report(at place, err *api.Error) { d.Errors = append(d.Errors, Problem{at, err}) }

// ReadDocument parses the one document of a file. A panic of the YAML decoder is converted to an
// error, so that it does not end the daemon.
func ReadDocument(data []byte) (d *Document) {
	d = &Document{where: map[string]place{}}
	defer func() {
		if p := recover(); p != nil {
			d = &Document{}
			d.report(place{}, api.Invalid("", "the policy file cannot be read: the YAML decoder gave up: %v", p).
				WithHint("write plain keys, lists and values; see which line it is by leaving out half of them"))
		}
	}()
	if len(data) > maxRules {
		d.report(place{}, TooLarge("", "the policy file has %d bytes", len(data)).WithHint("at most %d", maxRules))
		return d
	}
	// Duplicate keys are found below, with their positions.
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.report(syntaxError(err))
		return d
	}
	if len(file.Docs) > 1 {
		d.report(placeOf(file.Docs[1].Body), api.Invalid("", "the policy file holds more than one Document").WithHint("leave out the lines of `---`"))
		return d
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return d
	}
	d.read(file.Docs[0].Body)
	return d
}

// read examines the document in three passes: its syntax, its structure, and its values.
func (d *Document) read(body ast.Node) {
	ast.Walk(&plainYAML{d}, body)
	if len(d.Errors) > 0 {
		return
	}
	d.shape("", body)
	var r Rules
	if len(d.Errors) == 0 {
		if err := yaml.NodeToValue(body, &r, yaml.Strict()); err != nil {
			d.report(syntaxError(err))
			return
		}
	} else if yaml.NodeToValue(body, &r, yaml.AllowDuplicateMapKey()) != nil {
		return // the values cannot be read
	}
	d.Rules = r
	for _, check := range ruleChecks() {
		check(r, func(err *api.Error) { d.report(d.find(err.Field), err) })
	}
}

// plainYAML refuses features of YAML that make a file mean something other than what it appears to
// say. A policy does not need them.
type plainYAML struct{ d *Document }

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

// shape finds every key that is unknown, is a duplicate or has a value of the wrong type, and
// records the position of each key. The decoder alone would stop at the first error.
func (d *Document) shape(path string, n ast.Node) { d.value(path, n, reflect.TypeFor[Rules]()) }

// value compares one value with the type that it is read into.
func (d *Document) value(path string, n ast.Node, t reflect.Type) {
	optional := t.Kind() == reflect.Pointer
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n == nil || n.Type() == ast.NullType {
		// A list or map without content is empty. If empty and absent differ, or for a single
		// value, the meaning is ambiguous.
		holds := t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t.Kind() == reflect.Slice && !optional
		if !holds && !unsetByNull(path) {
			d.wrong(path, n, "the key has no value, which is not the same as leaving it out")
		}
		return
	}
	if n.Type() == ast.CommentGroupType {
		return
	}
	switch {
	case t == reflect.TypeFor[Size]():
		if _, err := scalar(n, ParseSize); err != nil {
			d.wrong(path, n, "%w", err)
		}
	case t == reflect.TypeFor[Duration]():
		if _, err := scalar(n, parseDuration); err != nil {
			d.wrong(path, n, "%w", err)
		}
	case t == reflect.TypeFor[EgressItem]():
		_, err := scalar(n, parseEgressItem)
		d.badRule(path, n, err)
	case t == reflect.TypeFor[RequestLine]():
		_, err := scalar(n, parseRequestLine)
		d.badRule(path, n, err)
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		d.mapping(path, n, t)
	case t.Kind() == reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			d.wrong(path, n, "a list is expected here")
			return
		}
		for i, v := range list.Values {
			d.where[ElementAt(path, i)] = placeOf(v)
			d.value(ElementAt(path, i), v, t.Elem())
		}
	default:
		d.scalarOf(path, n, t)
	}
}

// unsetByNull reports whether a key is a quota, for which null means no limit.
func unsetByNull(path string) bool {
	switch key := path[strings.LastIndexByte(path, '.')+1:]; key {
	case "workspace", "workspace_inodes", "disk", "max":
		return true
	default:
		return strings.HasPrefix(key, "max_") && key != "max_output"
	}
}

// mapping compares keys and values with a struct or a map.
func (d *Document) mapping(path string, n ast.Node, t reflect.Type) {
	m, ok := n.(ast.MapNode)
	if !ok {
		d.wrong(path, n, "keys with values are expected here")
		return
	}
	seen := map[string]place{}
	for iter := m.MapRange(); iter.Next(); {
		key := iter.Key()
		name, at := key.GetToken().Value, placeOf(key)
		one := Shorten(name)
		if path != "" {
			one = path + "." + one
		}
		if first, twice := seen[name]; twice {
			d.report(at, api.Invalid(one, "duplicate key %s, first in line %d", Quote(name), first.Line).WithHint("keep one of them"))
			continue
		}
		seen[name] = at
		elem, known := elemOf(t, name)
		if !known {
			d.report(at, api.Invalid(one, "there is no key %s here", Quote(name)).WithHint("the keys here are %s", strings.Join(keysOfType(t), ", ")))
			continue
		}
		if v := iter.Value(); v != nil && v.Type() != ast.NullType {
			at = placeOf(v)
			// The position of a block of keys is its first key.
			if _, block := v.(ast.MapNode); block {
				at = placeOf(key)
			}
		}
		d.where[one], d.where[KeyAt(path, name)] = at, at
		d.value(one, iter.Value(), elem)
	}
}

// elemOf returns the type of a key's value.
func elemOf(t reflect.Type, name string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for f := range t.Fields() {
		if f.Tag.Get("yaml") == name {
			return f.Type, true
		}
	}
	return nil, false
}

// keysOf returns the keys of a part of the file.
func keysOf[T any]() []string { return keysOfType(reflect.TypeFor[T]()) }

func keysOfType(t reflect.Type) []string {
	var out []string
	if t.Kind() == reflect.Struct {
		for f := range t.Fields() {
			out = append(out, f.Tag.Get("yaml"))
		}
	}
	return out
}

// scalarOf compares one value with a scalar type.
func (d *Document) scalarOf(path string, n ast.Node, t reflect.Type) {
	if _, ok := n.(ast.ScalarNode); !ok {
		d.wrong(path, n, "one value is expected here")
		return
	}
	kind := n.Type()
	switch t.Kind() {
	case reflect.Bool:
		if kind != ast.BoolType {
			d.wrong(path, n, "true or false is expected here, and this is %s", Quote(n.GetToken().Value))
		}
	case reflect.Int, reflect.Int64:
		if kind != ast.IntegerType {
			d.wrong(path, n, "a whole number is expected here, and this is %s", Quote(n.GetToken().Value))
		}
	case reflect.Float64:
		if kind != ast.IntegerType && kind != ast.FloatType && kind != ast.InfinityType && kind != ast.NanType {
			d.wrong(path, n, "a number is expected here, and this is %s", Quote(n.GetToken().Value))
		}
	case reflect.String:
	default:
		d.wrong(path, n, "a %s cannot be checked", strconv.Quote(t.String()))
	}
}

func (d *Document) badRule(path string, n ast.Node, err error) {
	if err != nil {
		d.report(placeOf(n), RuleError(path, err))
	}
}

func (d *Document) wrong(path string, n ast.Node, format string, args ...any) {
	err := api.Invalid(path, format, args...)
	if path != "" {
		err.Message = path + ": " + err.Message
	}
	if strings.Contains(format, "%w") {
		err.WithHint("write it as a value with its unit")
	} else {
		err.WithHint("docs/policy.schema.json has the form of the whole file")
	}
	d.report(placeOf(n), err)
}
