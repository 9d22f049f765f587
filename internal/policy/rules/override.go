package rules

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/cloche-dev/cloche/api"
)

// Override sets one key and takes precedence over the policy file.
type Override struct {
	// Name is the name of the setting at its source, for messages.
	Name string
	// Path is the list of keys, outermost first.
	Path []string
	// Text is the value. For a list it is comma-separated values or a YAML list, for a map it is
	// YAML, and for other types it is the value itself.
	Text string
}

// TypeAt is the type of the key with this path.
func TypeAt(path []string) (reflect.Type, bool) {
	t := reflect.TypeFor[Rules]()
	for _, key := range path {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct && t.Kind() != reflect.Map || key == "" {
			return nil, false
		}
		var ok bool
		if t, ok = elemOf(t, key); !ok {
			return nil, false
		}
	}
	return t, len(path) > 0
}

// ParseRulesOver parses a policy file as ParseRules does, and then applies overrides. Errors in the
// file are reported as in ParseRules. Other errors name the setting and the key. Overrides of
// unknown keys are ignored.
func ParseRulesOver(data []byte, over []Override) (Rules, error) {
	set, err := ParseRules(data)
	if err != nil || len(over) == 0 {
		return set, err
	}
	merged, err := Merge(data, over)
	if err != nil {
		return Rules{}, err
	}
	// JSON is YAML in which every text is quoted, so no text changes its type.
	text, err := json.Marshal(merged)
	if err != nil {
		return Rules{}, api.Invalid("", "the settings over the policy file cannot be read: %w", err)
	}
	d := ReadDocument(text)
	if len(d.Errors) == 0 {
		return d.Rules, nil
	}
	e := *d.Errors[0].Err // it has no position in a file
	for _, o := range over {
		if key := strings.Join(o.Path, "."); e.Field == key || strings.HasPrefix(e.Field, key+".") || strings.HasPrefix(e.Field, key+"[") {
			e.Message = o.Name + ": " + e.Message
			break
		}
	}
	return Rules{}, &e
}

// Merge returns the document with the overrides applied. As in readDocument, a panic of the decoder
// becomes an error.
func Merge(data []byte, over []Override) (out map[string]any, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, api.Invalid("", "the settings over the policy file cannot be read: the YAML decoder gave up: %v", p).
				WithHint("write plain keys, lists and values")
		}
	}()
	if err := yaml.Unmarshal(data, &out); err != nil {
		return nil, api.Invalid("", "the policy file cannot be read: %w", err)
	}
	if out == nil {
		out = map[string]any{}
	}
	over = slices.Clone(over)
	slices.SortStableFunc(over, func(a, b Override) int { return cmp.Compare(len(a.Path), len(b.Path)) })
	for _, o := range over {
		t, ok := TypeAt(o.Path)
		if !ok {
			continue
		}
		value, set, err := o.value(t)
		if err != nil {
			return nil, err
		}
		at := out
		for _, key := range o.Path[:len(o.Path)-1] {
			inner, ok := at[key].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[key] = inner
			}
			at = inner
		}
		if last := o.Path[len(o.Path)-1]; set {
			at[last] = value
		} else {
			delete(at, last)
		}
	}
	return out, nil
}

// value parses the text as a value of a type. It is not set if the text is empty and the key is a
// quota or a map.
func (o Override) value(t reflect.Type) (v any, set bool, err error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	text := strings.TrimSpace(o.Text)
	switch {
	case t.Kind() == reflect.Map, t.Kind() == reflect.Struct, t.Kind() == reflect.Slice && (strings.HasPrefix(text, "[") || strings.HasPrefix(text, "- ")):
		if text == "" {
			return nil, false, nil
		}
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			return nil, false, api.Invalid(strings.Join(o.Path, "."), "%s is not YAML", o.Name).WithHint("write it as in the policy file, on one line: {key: value} or [a, b]")
		}
		return v, true, nil
	case t.Kind() == reflect.Slice:
		list := []any{}
		for one := range strings.SplitSeq(text, ",") {
			if one = strings.TrimSpace(one); one != "" {
				list = append(list, scalarText(t.Elem(), one))
			}
		}
		return list, true, nil
	case text == "" && unsetByNull(o.Path[len(o.Path)-1]):
		return nil, false, nil
	}
	return scalarText(t, text), true, nil
}

// scalarText parses text as a value of a type. If that fails it returns the text, which the key
// then refuses.
func scalarText(t reflect.Type, text string) any {
	switch t.Kind() {
	case reflect.Bool:
		if text == "true" || text == "false" {
			return text == "true"
		}
	case reflect.Int, reflect.Int64:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	case reflect.Float64:
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return f
		}
	default:
	}
	return text
}

// KnownKey reports whether a key with this path exists.
func KnownKey(path []string) bool {
	_, ok := TypeAt(path)
	return ok
}

// KeyValue is one key that is set, for display.
type KeyValue struct {
	// Key is its path.
	Key   string
	Value any
	// Over is the Name of the Override that set it. Empty is the file.
	Over string
}

// KeysSet returns the keys that a file and its overrides set, in order. It returns none if
// ParseRulesOver refuses the input. Credentials in values are hidden.
func KeysSet(data []byte, over []Override) ([]KeyValue, error) {
	if _, err := ParseRulesOver(data, over); err != nil {
		return nil, err
	}
	merged, err := Merge(data, over)
	if err != nil {
		return nil, err
	}
	var out []KeyValue
	var walk func(path []string, v any)
	walk = func(path []string, v any) {
		if m, ok := v.(map[string]any); ok && len(m) > 0 {
			for _, k := range slices.Sorted(maps.Keys(m)) {
				walk(append(slices.Clone(path), k), m[k])
			}
			return
		}
		kv := KeyValue{Key: strings.Join(path, "."), Value: shown(v)}
		for _, o := range over {
			if len(o.Path) <= len(path) && slices.Equal(o.Path, path[:len(o.Path)]) {
				kv.Over = o.Name
			}
		}
		out = append(out, kv)
	}
	walk(nil, merged)
	if len(out) == 1 && out[0].Key == "" {
		return nil, nil
	}
	return out, nil
}

// shown returns a value without possible credentials.
func shown(v any) any {
	switch v := v.(type) {
	case string:
		if u, err := url.Parse(v); err == nil && u.User != nil {
			return u.Redacted()
		}
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = shown(e)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = shown(e)
			if argv, ok := e.([]any); ok && k == "exec" && len(argv) > 1 {
				out[k] = []any{argv[0], "…"} // the arguments of a command may contain credentials
			}
		}
		return out
	}
	return v
}
