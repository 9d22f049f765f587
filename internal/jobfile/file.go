// Package jobfile reads a job from YAML: the fields of
// api.JobSpec, with files and directories that may be of the writer's machine, and
// commands that may be written as a script or a list.
package jobfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxFile is the largest file, in bytes.
	maxFile  = 1 << 20
	maxDepth = 32
)

// Job is what a file says.
type Job struct {
	// Spec has neither files nor state nor directories; they are beside it.
	Spec         api.JobSpec
	Files, State []File
	Dirs         []Dir
}

// File is one file, whose content is in Content or in the file From of this machine.
type File struct {
	api.File
	From string `json:"from"`
}

// Dir is one directory of this machine.
type Dir struct {
	Path string `json:"path"`
	From string `json:"from"`
	// Exclude are paths below From that are left out.
	Exclude []string `json:"exclude"`
}

// document is the form of a file.
type document struct {
	api.JobSpec
	Files []File `json:"files"`
	State []File `json:"state"`
	Dirs  []Dir  `json:"dirs"`
}

// place is a place in a file; both count from 1.
type place struct{ line, column int }

// Parse reads a file. An unknown or repeated key, and a value of another kind than it
// must be, is an error with its place. The error is always a *api.Error.
func Parse(data []byte) (out Job, err error) {
	defer func() {
		if p := recover(); p != nil { // of the decoder: a refusal of these bytes, and no more
			out, err = Job{}, api.Invalid("", "the job file cannot be read: the YAML decoder gave up: %v", p).WithHint("write plain keys, values and lists")
		}
	}()
	if len(data) > maxFile {
		return Job{}, api.Errorf(api.CodeTooLarge, "the job file has %d bytes", len(data)).WithHint("at most %d; put content into files and name them with from", maxFile)
	}
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return Job{}, api.Invalid("", "the job file cannot be read: %s", strings.Join(strings.Fields(yaml.FormatError(err, false, false)), " ")).
			WithHint("docs/jobs.md has the form of the file")
	}
	if n := len(f.Docs); n != 1 || f.Docs[0].Body == nil {
		if n == 1 {
			n = 0
		}
		return Job{}, api.Invalid("", "the job file holds %d documents, want one", n).WithHint("docs/jobs.md has the form of the file")
	}
	r := reader{where: map[string]place{}}
	value, err := r.node("", f.Docs[0].Body, 0)
	if err != nil {
		return Job{}, err
	}
	top, ok := value.(map[string]any)
	if !ok {
		return Job{}, r.wrong("", "keys with values are expected here")
	}
	r.short(top)
	if err := r.document(top); err != nil {
		return Job{}, err
	}
	text, err := json.Marshal(top)
	if err != nil {
		return Job{}, api.Invalid("", "the job file cannot be read: %w", err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return Job{}, api.Invalid("", "the job file cannot be read: %w", err)
	}
	return Job{Spec: d.JobSpec, Files: d.Files, State: d.State, Dirs: d.Dirs}, nil
}

// reader turns YAML into what JSON would be, and keeps the place of each value.
type reader struct{ where map[string]place }

// text is a scalar with its text as it stands in the file.
type text struct {
	value any
	raw   string
}

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) { return json.Marshal(t.value) }

func (r *reader) note(path string, n ast.Node) {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return
	}
	if _, there := r.where[path]; !there {
		p := n.GetToken().Position
		r.where[path] = place{p.Line, p.Column}
	}
}

func (r *reader) node(path string, n ast.Node, depth int) (any, error) {
	r.note(path, n)
	if depth > maxDepth {
		return nil, r.wrong(path, "it nests deeper than %d", maxDepth)
	}
	switch n := n.(type) {
	case ast.MapNode:
		return r.mapping(path, n, depth)
	case *ast.SequenceNode:
		list := []any{}
		for i, e := range n.Values {
			v, err := r.node(fmt.Sprintf("%s[%d]", path, i), e, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case *ast.StringNode:
		return text{n.Value, n.Value}, nil
	case *ast.LiteralNode:
		return text{n.Value.Value, n.Value.Value}, nil
	case *ast.IntegerNode:
		return text{n.Value, n.GetToken().Value}, nil
	case *ast.FloatNode:
		return text{n.Value, n.GetToken().Value}, nil
	case *ast.BoolNode:
		return text{n.Value, n.GetToken().Value}, nil
	case nil, *ast.NullNode:
		return nil, r.wrong(path, "there is no value, which is not the same as leaving it out")
	}
	return nil, r.wrong(path, "this is no plain value, list or mapping")
}

func (r *reader) mapping(path string, n ast.MapNode, depth int) (any, error) {
	out := map[string]any{}
	for iter := n.MapRange(); iter.Next(); {
		name := iter.Key().GetToken().Value
		at := name
		if path != "" {
			at = path + "." + name
		}
		if _, twice := out[name]; twice {
			p := iter.Key().GetToken().Position
			r.where[at] = place{p.Line, p.Column}
			return nil, r.wrong(at, "duplicate key")
		}
		r.note(at, iter.Key())
		v, err := r.node(at, iter.Value(), depth+1)
		if err != nil {
			return nil, err
		}
		out[name] = v
	}
	return out, nil
}

// short writes out what may be written shortly: a phase that is a script or a list of
// commands, and a command that is a script or a list of arguments.
func (r *reader) short(top map[string]any) {
	for _, name := range []string{api.PhaseSetup, api.PhasePostSetup, api.PhaseRun, api.PhaseScore} {
		switch v := top[name].(type) {
		case text:
			top[name] = map[string]any{"commands": []any{r.command(v)}}
			r.where[name+".commands"] = r.where[name]
		case []any:
			top[name] = map[string]any{"commands": v}
			r.where[name+".commands"] = r.where[name]
			r.moved(name+"[", name+".commands[")
		}
		if m, ok := top[name].(map[string]any); ok {
			r.list(m)
		}
	}
	if list, ok := top["handlers"].([]any); ok {
		for _, h := range list {
			if m, ok := h.(map[string]any); ok {
				r.list(m)
			}
		}
	}
}

// moved keeps the places of values that are below another path by now.
func (r *reader) moved(from, to string) {
	for _, path := range slices.Collect(maps.Keys(r.where)) {
		if rest, ok := strings.CutPrefix(path, from); ok {
			r.where[to+rest] = r.where[path]
		}
	}
}

func (r *reader) list(phase map[string]any) {
	list, ok := phase["commands"].([]any)
	if !ok {
		return
	}
	for i, c := range list {
		list[i] = r.command(c)
	}
}

func (r *reader) command(c any) any {
	switch c := c.(type) {
	case text:
		return map[string]any{"shell": c}
	case []any:
		return map[string]any{"argv": c}
	}
	return c
}

// wrong is an error at the place of a value, or of what holds it.
func (r *reader) wrong(path, format string, args ...any) *api.Error {
	var at place
	var ok bool
	for p := path; ; p = p[:max(strings.LastIndexAny(p, ".["), 0)] {
		if at, ok = r.where[p]; ok || p == "" {
			break
		}
	}
	msg := fmt.Sprintf(format, args...)
	if path != "" {
		msg = path + ": " + msg
	}
	if ok {
		msg = fmt.Sprintf("line %d, column %d: %s", at.line, at.column, msg)
	}
	return api.Invalid(path, "%s", msg).WithHint("docs/jobs.md has the form of the file")
}
