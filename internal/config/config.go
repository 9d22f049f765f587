// Package config finds the value of each setting of a daemon and says where it comes
// from: a flag, the environment, the settings file or the default, in this order.
package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/cloche-dev/cloche/api"
)

// Source is where a value comes from.
type Source string

// The sources; each goes before those that follow it.
const (
	FromFlag        Source = "flag"
	FromEnvironment Source = "environment"
	FromFile        Source = "file"
	FromDefault     Source = "default"
)

// Prefix begins the variables of the environment that are settings: what follows is
// the key in capitals, with two underscores for each dot.
const Prefix = "CLOCHE__"

// Key is one setting.
type Key struct {
	// Name is its path, such as "log.format".
	Name string
	// List takes any number of values, all else one.
	List bool
	// Env is an older variable of the environment, after the one that Name makes.
	Env string
	// Unsaid keeps it out of the file: the file is found by it, or it is a secret.
	Unsaid bool
	// Path is a path of the host; an empty one means no path.
	Path bool
	// Default is the value if no source sets one.
	Default []string
	// Check says what is wrong with a value; nil takes all. It returns what would be
	// right.
	Check func(value string) (hint string, ok bool)
}

// Setting is the value of one key.
type Setting struct {
	Key
	// Values has one element for each value of a list, and else at most one.
	Values []string
	Source Source
}

// Text is the one value of a setting, or "".
func (s Setting) Text() string { return strings.Join(s.Values, ",") }

// Input is what settings are found in.
type Input struct {
	// Flags are those that were given, by key.
	Flags map[string][]string
	// Environ is the whole environment, as os.Environ has it.
	Environ []string
	// File is the text of the settings file; nil means no file.
	File []byte
}

// Variable is one variable of the environment below a key that is not ours.
type Variable struct {
	// Name is the variable's, Path the key that it names, and Text its value.
	Name string
	Path []string
	Text string
}

// Resolve finds every setting, in the order of keys. Variables that name no key are
// returned: what they mean, if anything, is for others to say. An unknown key of the
// file is an error, and so is a value that a key does not take; the error is a
// *api.Error whose Field is the key.
func Resolve(keys []Key, in Input) (out []Setting, others []Variable, err error) {
	file, err := readFile(in.File, keys)
	if err != nil {
		return nil, nil, err
	}
	environ, older := variables(in.Environ)
	for _, k := range keys {
		s, err := k.resolve(in.Flags, environ, older, file)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, s)
	}
	for _, v := range environ {
		if !slices.ContainsFunc(keys, func(k Key) bool { return k.Name == strings.Join(v.Path, ".") }) {
			others = append(others, v)
		}
	}
	return out, others, nil
}

// variables are those with the prefix, sorted, and all, for the older names.
func variables(environ []string) (ours []Variable, all map[string]string) {
	all = map[string]string{}
	for _, line := range environ {
		name, text, _ := strings.Cut(line, "=")
		all[name] = text
		if rest, ok := strings.CutPrefix(name, Prefix); ok {
			ours = append(ours, Variable{Name: name, Path: strings.Split(strings.ToLower(rest), "__"), Text: text})
		}
	}
	slices.SortFunc(ours, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	return ours, all
}

func (k Key) resolve(flags map[string][]string, environ []Variable, older map[string]string, file map[string][]string) (Setting, error) {
	s := Setting{Key: k, Values: k.Default, Source: FromDefault}
	if v, ok := file[k.Name]; ok {
		s.Values, s.Source = v, FromFile
	}
	text, said := older[k.Env]
	said = said && k.Env != "" && text != ""
	name := k.Env
	for _, v := range environ {
		if strings.Join(v.Path, ".") == k.Name {
			text, said, name = v.Text, true, v.Name
		}
	}
	if said && (text != "" || !k.Path) {
		s.Values, s.Source = []string{text}, FromEnvironment
		if k.List {
			var err error
			if s.Values, err = List(text); err != nil {
				return s, api.Invalid(k.Name, "%s in %s is no list: %w", k.Name, name, err).WithHint("write values with commas between them, or a YAML list such as [a, b]")
			}
		}
	}
	if v, ok := flags[k.Name]; ok {
		s.Values, s.Source = v, FromFlag
	}
	for _, v := range s.Values {
		if k.Check == nil || s.Source == FromDefault {
			break
		}
		if hint, ok := k.Check(v); !ok {
			return s, api.Invalid(k.Name, "%s, from the %s, is %q", k.Name, s.Source, clip(v)).WithHint("%s", hint)
		}
	}
	return s, nil
}

// List reads a list: values with commas between them, or a list of YAML.
func List(text string) ([]string, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "- ") {
		var out []string
		if err := yaml.UnmarshalWithOptions([]byte(text), &out, yaml.Strict()); err != nil {
			return nil, oneLine(err)
		}
		for i := range out {
			out[i] = strings.TrimSpace(out[i])
		}
		return out, nil
	}
	var out []string
	for v := range strings.SplitSeq(text, ",") {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out, nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
