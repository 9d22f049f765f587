package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cloche-dev/cloche/api"
)

// maxFile is the largest settings file, in bytes.
const maxFile = 64 << 10

// readFile reads the settings file: keys with values and keys below keys. An unknown
// or repeated key, and one without a value, is an error with its place.
func readFile(data []byte, keys []Key) (out map[string][]string, err error) {
	out = map[string][]string{}
	if len(data) > maxFile {
		return nil, api.Errorf(api.CodeTooLarge, "the settings file has %d bytes", len(data)).WithHint("at most %d", maxFile)
	}
	defer func() {
		if p := recover(); p != nil { // of the decoder: a refusal of these bytes, and no more
			out, err = nil, api.Invalid("", "the settings file cannot be read: the YAML decoder gave up: %v", p).WithHint("write plain keys, values and lists")
		}
	}()
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, api.Invalid("", "the settings file cannot be read: %w", oneLine(err)).WithHint("write keys with their values, such as listen: [unix:///run/cloche.sock]")
	}
	if len(f.Docs) == 0 || f.Docs[0].Body == nil || f.Docs[0].Body.Type() == ast.CommentGroupType {
		return out, nil
	}
	if len(f.Docs) > 1 {
		return nil, api.Invalid("", "the settings file holds more than one document").WithHint("leave out the lines of `---`")
	}
	return out, (&reader{keys: keys, out: out}).mapping("", f.Docs[0].Body)
}

type reader struct {
	keys []Key
	out  map[string][]string
}

func (r *reader) mapping(path string, n ast.Node) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		return wrong(path, n, "keys with values are expected here")
	}
	seen := map[string]bool{}
	for iter := m.MapRange(); iter.Next(); {
		name := iter.Key().GetToken().Value
		if path != "" {
			name = path + "." + name
		}
		if seen[name] {
			return wrong(name, iter.Key(), "duplicate key")
		}
		seen[name] = true
		if err := r.value(name, iter.Key(), iter.Value()); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) value(name string, key, v ast.Node) error {
	i := slices.IndexFunc(r.keys, func(k Key) bool { return k.Name == name && !k.Unsaid })
	if i < 0 {
		if slices.ContainsFunc(r.keys, func(k Key) bool { return strings.HasPrefix(k.Name, name+".") && !k.Unsaid }) {
			return r.mapping(name, v)
		}
		err := wrong(name, key, "there is no such key here")
		return err.WithHint("the keys are %s; rules are in the policy file, and a token is in the environment or in the home", strings.Join(r.said(), ", "))
	}
	k := r.keys[i]
	switch {
	case v == nil || v.Type() == ast.NullType:
		if !k.Path {
			return wrong(name, key, "the key has no value, which is not the same as leaving it out")
		}
	case k.List:
		list, ok := v.(*ast.SequenceNode)
		if !ok {
			return wrong(name, v, "a list is expected here")
		}
		r.out[name] = []string{}
		for _, e := range list.Values {
			text, ok := scalar(e)
			if !ok {
				return wrong(name, e, "a list of single values is expected here")
			}
			r.out[name] = append(r.out[name], strings.TrimSpace(text))
		}
	default:
		text, ok := scalar(v)
		if !ok {
			return wrong(name, v, "one value is expected here")
		}
		if text != "" || !k.Path {
			r.out[name] = []string{text}
		}
	}
	return nil
}

// scalar is the text of a single value on one line.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// said are the keys that a file may have.
func (r *reader) said() []string {
	var out []string
	for _, k := range r.keys {
		if !k.Unsaid {
			out = append(out, k.Name)
		}
	}
	return out
}

func wrong(path string, n ast.Node, why string) *api.Error {
	at := ""
	if n != nil && n.GetToken() != nil && n.GetToken().Position != nil {
		p := n.GetToken().Position
		at = fmt.Sprintf("line %d, column %d: ", p.Line, p.Column)
	}
	name := path
	if name == "" {
		name = "the settings file"
	}
	return api.Invalid(path, "%s%s: %s", at, name, why).WithHint("docs/operating.md has the form of the file")
}

// oneLine is what the YAML library says, without its drawing of the place.
func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(yaml.FormatError(err, false, false)), " "))
}
