package recording

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// digest stands for all that a request is.
func (r Request) digest() [32]byte {
	h := sha256.New()
	for _, s := range []string{r.Method, r.Path, r.Query} {
		fmt.Fprintf(h, "%d %s\n", len(s), s)
	}
	h.Write(canonical(r.Body.Bytes()))
	return [32]byte(h.Sum(nil))
}

// canonical is a body by what it says: JSON in one form, everything else as it is.
func canonical(body []byte) []byte {
	if v, ok := decode(body); ok {
		if out, err := json.Marshal(v); err == nil {
			return out
		}
	}
	return body
}

func decode(body []byte) (v any, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	return v, dec.Decode(&v) == nil && !dec.More()
}

// maxShown bounds a value in a difference.
const maxShown = 60

// difference says where two requests first differ; empty is nowhere.
func difference(recorded, asked Request) string {
	if recorded.Method != asked.Method || recorded.Path != asked.Path {
		return fmt.Sprintf("%s %s was recorded, %s %s is asked", recorded.Method, show(recorded.Path), asked.Method, show(asked.Path))
	}
	if recorded.Query != asked.Query {
		return fmt.Sprintf("query: %s was recorded, %s is asked", show(recorded.Query), show(asked.Query))
	}
	a, b := recorded.Body.Bytes(), asked.Body.Bytes()
	va, oka := decode(a)
	vb, okb := decode(b)
	if oka && okb {
		return differ("body", va, vb)
	}
	if bytes.Equal(a, b) {
		return ""
	}
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	return fmt.Sprintf("body: byte %d of %d that were recorded and %d that are asked", i, len(a), len(b))
}

// differ finds the first place in the order in which a reader meets it: lists by place,
// objects by name.
func differ(at string, a, b any) string {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			names := map[string]bool{}
			for _, m := range []map[string]any{x, y} {
				for k := range m {
					names[k] = true
				}
			}
			for _, k := range slices.Sorted(maps.Keys(names)) {
				va, ina := x[k]
				vb, inb := y[k]
				within := at + "." + k
				switch {
				case !ina:
					return fmt.Sprintf("%s: %s is asked, and was not recorded", within, showJSON(vb))
				case !inb:
					return fmt.Sprintf("%s: %s was recorded, and is not asked", within, showJSON(va))
				}
				if d := differ(within, va, vb); d != "" {
					return d
				}
			}
			return ""
		}
	case []any:
		if y, ok := b.([]any); ok {
			for i := range min(len(x), len(y)) {
				if d := differ(fmt.Sprintf("%s[%d]", at, i), x[i], y[i]); d != "" {
					return d
				}
			}
			if len(x) != len(y) {
				return fmt.Sprintf("%s: %d were recorded, %d are asked", at, len(x), len(y))
			}
			return ""
		}
	default:
		if a == b {
			return ""
		}
	}
	return fmt.Sprintf("%s: %s was recorded, %s is asked", at, showJSON(a), showJSON(b))
}

func show(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "…"
	}
	return fmt.Sprintf("%q", s)
}

func showJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return "something"
	}
	if len(data) > maxShown {
		return string(bytes.ToValidUTF8(data[:maxShown], nil)) + "…"
	}
	return string(data)
}
