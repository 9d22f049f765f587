package policy

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/cloche-dev/cloche/api"
)

// shape finds every key that is unknown, is a duplicate or has a value of the wrong type, and
// records the position of each key. The decoder alone would stop at the first error.
func (d *document) shape(path string, n ast.Node) { d.value(path, n, reflect.TypeFor[Rules]()) }

// value compares one value with the type that it is read into.
func (d *document) value(path string, n ast.Node, t reflect.Type) {
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
		if _, err := scalar(n, parseSize); err != nil {
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
			d.where[at(path, i)] = placeOf(v)
			d.value(at(path, i), v, t.Elem())
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
func (d *document) mapping(path string, n ast.Node, t reflect.Type) {
	m, ok := n.(ast.MapNode)
	if !ok {
		d.wrong(path, n, "keys with values are expected here")
		return
	}
	seen := map[string]place{}
	for iter := m.MapRange(); iter.Next(); {
		key := iter.Key()
		name, at := key.GetToken().Value, placeOf(key)
		one := bounded(name)
		if path != "" {
			one = path + "." + one
		}
		if first, twice := seen[name]; twice {
			d.report(at, api.Invalid(one, "duplicate key %s, first in line %d", show(name), first.line).WithHint("keep one of them"))
			continue
		}
		seen[name] = at
		elem, known := elemOf(t, name)
		if !known {
			d.report(at, api.Invalid(one, "there is no key %s here", show(name)).WithHint("the keys here are %s", strings.Join(keysOfType(t), ", ")))
			continue
		}
		if v := iter.Value(); v != nil && v.Type() != ast.NullType {
			at = placeOf(v)
			// The position of a block of keys is its first key.
			if _, block := v.(ast.MapNode); block {
				at = placeOf(key)
			}
		}
		d.where[one], d.where[keyed(path, name)] = at, at
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
func (d *document) scalarOf(path string, n ast.Node, t reflect.Type) {
	if _, ok := n.(ast.ScalarNode); !ok {
		d.wrong(path, n, "one value is expected here")
		return
	}
	kind := n.Type()
	switch t.Kind() {
	case reflect.Bool:
		if kind != ast.BoolType {
			d.wrong(path, n, "true or false is expected here, and this is %s", show(n.GetToken().Value))
		}
	case reflect.Int, reflect.Int64:
		if kind != ast.IntegerType {
			d.wrong(path, n, "a whole number is expected here, and this is %s", show(n.GetToken().Value))
		}
	case reflect.Float64:
		if kind != ast.IntegerType && kind != ast.FloatType && kind != ast.InfinityType && kind != ast.NanType {
			d.wrong(path, n, "a number is expected here, and this is %s", show(n.GetToken().Value))
		}
	case reflect.String:
	default:
		d.wrong(path, n, "a %s cannot be checked", strconv.Quote(t.String()))
	}
}

func (d *document) badRule(path string, n ast.Node, err error) {
	if err != nil {
		d.report(placeOf(n), ruleError(path, err))
	}
}

func (d *document) wrong(path string, n ast.Node, format string, args ...any) {
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
