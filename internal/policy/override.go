package policy

import (
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// KnownKey reports whether a key with this path exists.
func KnownKey(path []string) bool {
	_, ok := rules.TypeAt(path)
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
func KeysSet(data []byte, over []rules.Override) ([]KeyValue, error) {
	if _, err := rules.ParseRulesOver(data, over); err != nil {
		return nil, err
	}
	merged, err := rules.Merge(data, over)
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
