//go:build linux || darwin

package skill

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cloche-dev/cloche/api"
)

// The keys of front matter that Cloche reads and writes.
const (
	keyName        = "name"
	keyDisplayName = "display_name"
	keyDescription = "description"
)

const (
	// maxFront bounds the front matter of a package, in bytes, maxNodes its parts and
	// maxNesting how deep they are in each other.
	maxFront   = 64 << 10
	maxNodes   = 10_000
	maxNesting = 32
)

// document is a SKILL.md: front matter between two lines of ---, and Markdown.
type document struct {
	name, displayName, description string
	// meta are the other keys.
	meta map[string]any
	// yaml is the text between the lines, body what follows, without white space
	// around it.
	yaml, body string
}

// readDocument reads a SKILL.md from any source.
func readDocument(data []byte) (document, error) {
	front, body := splitDocument(data)
	d := document{yaml: front, body: strings.TrimSpace(body)}
	if len(front) > maxFront {
		return d, api.Errorf(api.CodeTooLarge, "the front matter has %d bytes, more than %d", len(front), maxFront)
	}
	values, err := readFront(front)
	if err != nil {
		return d, err
	}
	for key, into := range map[string]*string{keyName: &d.name, keyDisplayName: &d.displayName, keyDescription: &d.description} {
		v, ok := values[key]
		delete(values, key)
		if !ok || v == nil {
			continue
		}
		switch v.(type) {
		case string, bool, int, int64, uint64, float64:
			*into = strings.TrimSpace(fmt.Sprint(v))
		default:
			return d, badFront("%s is no text", key)
		}
	}
	if len(values) > 0 {
		d.meta = values
	}
	return d, nil
}

func badFront(format string, args ...any) *api.Error {
	return api.Invalid("SKILL.md", "the front matter cannot be read: "+format, args...).
		WithHint("write name: and description: between two lines of ---, each with its value")
}

// splitDocument finds the front matter. A text without a line that ends it has
// none.
func splitDocument(data []byte) (front, body string) {
	s := string(bytes.TrimPrefix(data, []byte("\ufeff")))
	first, rest, _ := strings.Cut(s, "\n")
	if strings.TrimRight(first, " \t\r") != "---" {
		return "", s
	}
	for at := 0; at < len(rest); {
		line, _, more := strings.Cut(rest[at:], "\n")
		if strings.TrimRight(line, " \t\r") == "---" {
			return rest[:at], strings.TrimPrefix(rest[at+len(line):], "\n")
		}
		if !more {
			break
		}
		at += len(line) + 1
	}
	return "", s
}

// readFront reads a mapping of YAML. A decoder of foreign bytes that panics is a
// refusal of these bytes.
func readFront(front string) (values map[string]any, err error) {
	defer func() {
		if p := recover(); p != nil {
			values, err = nil, badFront("the YAML decoder gave up")
		}
	}()
	node, err := parseFront(front)
	if err != nil || node == nil {
		return map[string]any{}, err
	}
	values = map[string]any{}
	if err := yaml.NodeToValue(node, &values); err != nil {
		return nil, badFront("%s", firstLine(err.Error()))
	}
	return values, plain(values, 0)
}

// plain refuses what JSON cannot say.
func plain(v any, depth int) error {
	if depth > maxNesting {
		return badFront("it is too deep")
	}
	switch v := v.(type) {
	case nil, string, bool, int, int64, uint64:
	case float64:
		if v != v || v-v != 0 {
			return badFront("it has an invalid number")
		}
	case map[string]any:
		for _, e := range v {
			if err := plain(e, depth+1); err != nil {
				return err
			}
		}
	case []any:
		for _, e := range v {
			if err := plain(e, depth+1); err != nil {
				return err
			}
		}
	default:
		return badFront("it has a value of a kind that is not used here")
	}
	return nil
}

// mapping is what both kinds of node are that YAML has for one.
type mapping interface {
	ast.Node
	ast.MapNode
}

// parseFront is the mapping of the front matter; nil is an empty one.
func parseFront(front string) (mapping, error) {
	if strings.TrimSpace(front) == "" {
		return nil, nil
	}
	if nested(front) > maxNesting {
		return nil, badFront("it is too deep")
	}
	file, err := parser.ParseBytes([]byte(front), 0)
	if err != nil {
		return nil, badFront("%s", firstLine(yaml.FormatError(err, false, false)))
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		if len(file.Docs) > 1 {
			return nil, badFront("it is more than one document")
		}
		return nil, nil
	}
	body := file.Docs[0].Body
	if _, only := body.(*ast.CommentGroupNode); only {
		return nil, nil
	}
	w := &counter{}
	ast.Walk(w, body)
	switch {
	case w.odd != "":
		return nil, badFront("it has %s", w.odd)
	case w.nodes > maxNodes:
		return nil, badFront("it has more than %d parts", maxNodes)
	}
	m, ok := body.(mapping)
	if !ok {
		return nil, badFront("it is no list of keys with values")
	}
	return m, nil
}

// nested is how deep brackets and indented lists go at most, so that no parser has
// to find out.
func nested(s string) int {
	deepest, now, dashes := 0, 0, 0
	for _, c := range s {
		switch c {
		case '[', '{':
			now++
		case ']', '}':
			now = max(now-1, 0)
		case '-', '?', ':':
			dashes++
		case '\n':
			dashes = 0
		case ' ', '\t':
		default:
			dashes = 0
		}
		deepest = max(deepest, now, dashes)
	}
	return deepest
}

// counter counts nodes and finds what makes a document larger than it looks, or
// something else than it reads.
type counter struct {
	nodes int
	odd   string
}

// Visit implements ast.Visitor.
func (c *counter) Visit(n ast.Node) ast.Visitor {
	if c.nodes++; c.nodes > maxNodes || c.odd != "" {
		return nil
	}
	c.odd = map[ast.NodeType]string{
		ast.TagType: "a tag (!)", ast.AnchorType: "an anchor (&)", ast.AliasType: "an alias (*)", ast.MergeKeyType: "a merge key (<<)",
	}[n.Type()]
	return c
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return clip(s)
}

// write is the text of a document with new values. What else its front matter says
// stays as it is written, comments with it; only where the keys do not each begin
// a line is all of it written anew.
func (d document) write(name, displayName, description, body string) ([]byte, error) {
	set := []struct{ key, value string }{{keyName, name}, {keyDisplayName, displayName}, {keyDescription, description}}
	front := d.yaml
	for _, kv := range set {
		var err error
		if front, err = setKey(front, kv.key, kv.value); err != nil {
			return nil, err
		}
	}
	var b strings.Builder
	b.WriteString("---\n" + front)
	if front != "" && !strings.HasSuffix(front, "\n") {
		b.WriteString("\n")
	}
	b.WriteString("---\n")
	if body = strings.TrimSpace(body); body != "" {
		b.WriteString("\n" + body + "\n")
	}
	out := []byte(b.String())
	if len(out) > MaxText {
		return nil, api.Errorf(api.CodeTooLarge, "SKILL.md would have %d bytes, more than %d", len(out), MaxText)
	}
	if !utf8.Valid(out) {
		return nil, api.Invalid("instructions", "the text is not UTF-8")
	}
	// What was written must be read as it was meant.
	again, err := readDocument(out)
	if err != nil {
		return nil, err
	}
	if again.name != name || again.displayName != displayName || again.description != description || again.body != body || !reflect.DeepEqual(again.meta, d.meta) {
		return nil, api.Errorf(api.CodeInvalid, "the front matter cannot hold these values")
	}
	return out, nil
}

// setKey replaces or adds one key of a mapping of text; an empty value removes it.
func setKey(front, key, value string) (string, error) {
	lines := strings.SplitAfter(front, "\n")
	begins, err := keyLines(front)
	if err != nil {
		return "", err
	}
	written := ""
	if value != "" {
		data, err := yaml.MarshalWithOptions(map[string]string{key: value}, yaml.UseLiteralStyleIfMultiline(false))
		if err != nil {
			return "", fmt.Errorf("write front matter: %w", err)
		}
		written = string(data)
	}
	if begins == nil {
		return rewrite(front, key, value)
	}
	at, has := begins[key]
	if !has {
		if front != "" && !strings.HasSuffix(front, "\n") && written != "" {
			front += "\n"
		}
		return front + written, nil
	}
	end := len(lines)
	for _, other := range begins {
		if other > at {
			end = min(end, other)
		}
	}
	// Comments and blank lines before the next key are about that.
	for end > at+1 {
		line := strings.TrimSpace(lines[end-1])
		if line != "" && !strings.HasPrefix(lines[end-1], "#") {
			break
		}
		end--
	}
	return strings.Join(lines[:at], "") + written + strings.Join(lines[end:], ""), nil
}

// keyLines says on which line each key of a mapping stands, from 0; nil where they
// do not each begin one.
func keyLines(front string) (map[string]int, error) {
	m, err := parseFront(front)
	if err != nil {
		return nil, err
	}
	begins := map[string]int{}
	if m == nil {
		return begins, nil
	}
	if strings.Contains(front, "\r") {
		return nil, nil
	}
	lines := strings.Split(front, "\n")
	for it := m.MapRange(); it.Next(); {
		t := it.Key().GetToken()
		if t == nil || t.Position == nil || t.Position.Column != 1 || t.Position.Line < 1 || t.Position.Line > len(lines) {
			return nil, nil
		}
		at := t.Position.Line - 1
		if line := lines[at]; line == "" || strings.ContainsAny(line[:1], "{[?") || !strings.HasPrefix(line, t.Value) {
			return nil, nil
		}
		begins[t.Value] = at
	}
	return begins, nil
}

// rewrite writes a whole mapping anew, with keys in their order by name after the
// ones that Cloche reads.
func rewrite(front, key, value string) (string, error) {
	values, err := readFront(front)
	if err != nil {
		return "", err
	}
	delete(values, key)
	if value != "" {
		values[key] = value
	}
	var list yaml.MapSlice
	add := func(k string) {
		if v, ok := values[k]; ok {
			list = append(list, yaml.MapItem{Key: k, Value: v})
			delete(values, k)
		}
	}
	for _, k := range []string{keyName, keyDisplayName, keyDescription} {
		add(k)
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		add(k)
	}
	if len(list) == 0 {
		return "", nil
	}
	data, err := yaml.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("write front matter: %w", err)
	}
	return string(data), nil
}
