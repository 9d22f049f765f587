package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"text/tabwriter"
	"text/template"

	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// viewFlags choose how a result is written.
type viewFlags struct {
	json           bool
	output, format string
}

func (f *viewFlags) Register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.json, "json", false, "write the result as JSON")
	flags.StringVarP(&f.output, "output", "o", "", "write the result as `json|yaml|name`")
	flags.StringVar(&f.format, "format", "", "write each result by a Go `TEMPLATE` such as '{{.Name}}', or as json")
}

// view writes one document of a result; nil writes JSON.
type view func(doc any) ([]byte, error)

// ErrorsAsJSON is whether errors are written as JSON too.
func (f *viewFlags) ErrorsAsJSON() bool {
	return f.json || f.output == "json" || f.output == "yaml" || f.format == "json"
}

// Apply checks the flags and has results written by them.
func (f *viewFlags) Apply(a *CLI) error {
	given := 0
	for _, set := range []bool{f.json, f.output != "", f.format != ""} {
		if set {
			given++
		}
	}
	if given > 1 {
		return api.Invalid("output", "more than one of --json, --output and --format is given").WithHint("give one of them")
	}
	a.JSON = given == 1
	switch f.output {
	case "", "json":
	case "yaml":
		a.View = yamlView
	case "name":
		a.View = nameView
	default:
		return api.Invalid("output", "--output %q is not json, yaml or name", terminal.Clip(f.output)).WithHint("--format takes a template")
	}
	if f.format == "" || f.format == "json" {
		return nil
	}
	var err error
	a.View, err = templateView(f.format)
	return err
}

// yamlView writes one YAML document; several form a stream. Every string is quoted as in
// JSON, so that it holds no control characters and is no other type.
func yamlView(doc any) ([]byte, error) {
	data, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("write output: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	out, err := yamlValue([]byte("---"), d, 0)
	if err != nil {
		return nil, fmt.Errorf("write output: %w", err)
	}
	return escapeControls(append(out, '\n')), nil
}

// yamlValue appends the next value behind a key, a dash or the document's beginning.
func yamlValue(out []byte, d *json.Decoder, depth int) ([]byte, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, nested := token.(json.Delim)
	if !nested {
		b, err := json.Marshal(token)
		return append(append(out, ' '), b...), err
	}
	if !d.More() {
		_, err = d.Token()
		return append(out, map[json.Delim]string{'{': " {}", '[': " []"}[delim]...), err
	}
	for d.More() {
		out = append(append(out, '\n'), strings.Repeat("  ", depth)...)
		if delim == '[' {
			out = append(out, '-')
		} else {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string)
			if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" || name == "" {
				b, _ := json.Marshal(name) // a string
				name = string(b)
			}
			out = append(append(out, name...), ':')
		}
		if out, err = yamlValue(out, d, depth+1); err != nil {
			return nil, err
		}
	}
	_, err = d.Token()
	return out, err
}

// nameView writes the name of each element on a line, or where it has none its id.
func nameView(doc any) ([]byte, error) {
	var out bytes.Buffer
	for _, e := range elements(doc) {
		data, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("write output: %w", err)
		}
		var fields map[string]any
		_ = json.Unmarshal(data, &fields) // what is no object has no fields
		name := ""
		for _, key := range []string{"name", "exec_id", "id", "removed"} {
			if s, _ := fields[key].(string); s != "" {
				name = s
				break
			}
		}
		if name == "" {
			return nil, api.Invalid("output", "this result has no name").WithHint("--output json shows all of it")
		}
		fmt.Fprintln(&out, terminal.Printable(name))
	}
	return out.Bytes(), nil
}

// elements are those of a list of the API, or doc itself.
func elements(doc any) []any {
	v := reflect.Indirect(reflect.ValueOf(doc))
	if v.Kind() == reflect.Struct && strings.HasSuffix(v.Type().Name(), "List") {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Slice {
				out := make([]any, 0, f.Len())
				for j := range f.Len() {
					out = append(out, f.Index(j).Interface())
				}
				return out
			}
		}
	}
	if !v.IsValid() {
		return nil
	}
	return []any{v.Interface()}
}

// sandboxView, processView and imageView add the names that fields have in Docker.
type (
	sandboxView struct{ api.Sandbox }
	processView struct{ api.Process }
	imageView   struct{ api.Image }
)

// Names is the sandbox's name.
func (v sandboxView) Names() string { return v.Name }

// Status is the sandbox's state.
func (v sandboxView) Status() string { return string(v.State) }

// ID is the id of the process.
func (v processView) ID() string { return v.ExecID }

// Status is the state of the process.
func (v processView) Status() string { return string(v.State) }

// ID is the image's digest.
func (v imageView) ID() string { return v.Digest }

// Repository is the image's name without its tag.
func (v imageView) Repository() string {
	name, _ := splitTag(v.Name)
	return name
}

// Tag is the tag in the image's name; empty if it has none.
func (v imageView) Tag() string {
	_, tag := splitTag(v.Name)
	return tag
}

// Size returns the disk space of the image, for display.
func (v imageView) Size() string { return FormatSize(v.SizeBytes) }

// splitTag cuts a reference at its tag. A colon before a slash is of a port.
func splitTag(ref string) (name, tag string) {
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i], ref[i+1:]
	}
	return ref, ""
}

func dockerNames(e any) any {
	switch v := e.(type) {
	case api.Sandbox:
		return sandboxView{v}
	case api.Process:
		return processView{v}
	case api.Image:
		return imageView{v}
	}
	return e
}

// templateView executes a template for each element. One that begins with "table " aligns
// what tabs separate, below a line with the names of the fields.
func templateView(text string) (view, error) {
	body, table := strings.CutPrefix(text, "table ")
	body = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(body)
	t, err := template.New("--format").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
		"join": func(list []string, sep string) string { return strings.Join(list, sep) }, "split": strings.Split,
		"lower": strings.ToLower, "upper": strings.ToUpper,
		"truncate": func(s string, n int) string { return Shorten(s, n) },
	}).Parse(body)
	if err != nil {
		return nil, api.Invalid("format", "--format is not a Go template: %w", err).WithHint("write '{{.Name}}', '{{json .}}', or json")
	}
	header := false
	return func(doc any) ([]byte, error) {
		var out bytes.Buffer
		if table && !header {
			header = true
			fmt.Fprintln(&out, fieldNames().ReplaceAllStringFunc(body, func(action string) string {
				return strings.ToUpper(fieldNames().FindStringSubmatch(action)[1])
			}))
		}
		for _, e := range elements(doc) {
			e = dockerNames(e)
			var line bytes.Buffer
			if err := t.Execute(&line, e); err != nil {
				return nil, api.Invalid("format", "--format: %w", err).WithHint("the fields are %s", strings.Join(fieldsOf(e), ", "))
			}
			for part := range strings.Lines(line.String() + "\n") {
				cells := strings.Split(strings.TrimSuffix(part, "\n"), "\t")
				for i := range cells {
					cells[i] = terminal.Printable(cells[i])
				}
				fmt.Fprintln(&out, strings.Join(cells, "\t"))
			}
		}
		if !table {
			return out.Bytes(), nil
		}
		var aligned bytes.Buffer
		w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
		_, _ = w.Write(out.Bytes()) // into memory
		_ = w.Flush()
		return aligned.Bytes(), nil
	}, nil
}

// fieldNames matches the actions of a template that show a field.
func fieldNames() *regexp.Regexp { return regexp.MustCompile(`\{\{[^}]*?\.(\w+)[^}]*\}\}`) }

// fieldsOf are the fields and methods that a template can name.
func fieldsOf(e any) []string {
	t := reflect.TypeOf(e)
	var names []string
	if t.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(t) {
			if f.IsExported() && !f.Anonymous {
				names = append(names, "."+f.Name)
			}
		}
	}
	for i := range t.NumMethod() {
		if m := t.Method(i); m.Type.NumIn() == 1 && m.Type.NumOut() == 1 {
			names = append(names, "."+m.Name)
		}
	}
	return names
}
