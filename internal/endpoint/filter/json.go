package filter

import (
	"bytes"
	"encoding/json"
)

// member is one of an object: its key as it was written and folded, and its value as it
// was written.
type member struct {
	key   string
	name  string
	value json.RawMessage
}

// members reads an object, one level of it. Two names that some reader takes for one
// are refused, because it is not known which of them counts.
func members(raw []byte) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, ErrUnreadable
	}
	var out []member
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return nil, ErrUnreadable
		}
		m := member{key: key, name: fold(key)}
		if seen[m.name] || len(out) == maxMembers || dec.Decode(&m.value) != nil {
			return nil, ErrUnreadable
		}
		seen[m.name] = true
		out = append(out, m)
	}
	return out, nil
}

// elements reads an array, one level of it.
func elements(raw []byte) ([][]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, ErrUnreadable
	}
	var out [][]byte
	for dec.More() {
		var v json.RawMessage
		if len(out) == maxElements || dec.Decode(&v) != nil {
			return nil, ErrUnreadable
		}
		out = append(out, v)
	}
	return out, nil
}

func object(all []member) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.key)
		if err != nil { // a string always encodes
			continue
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func array(all [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(all, []byte(","))...), ']')
}

// kindOf is the first character of a value: all of one kind begin alike.
func kindOf(raw []byte) byte {
	if raw = bytes.TrimLeft(raw, " \t\r\n"); len(raw) > 0 {
		return raw[0]
	}
	return 0
}

// nothing is true for null and false, with which nothing is asked for.
func nothing(raw []byte) bool {
	s := string(bytes.TrimSpace(raw))
	return s == "null" || s == "false"
}

// typeOf is the type that an object says it has; empty if it cannot be read.
func typeOf(all []member) string {
	for _, m := range all {
		var s string
		if m.name == "type" && json.Unmarshal(m.value, &s) == nil {
			return s
		}
	}
	return ""
}

// nesting is how deep arrays and objects are in each other, whatever else the text is.
func nesting(raw []byte) int {
	depth, most := 0, 0
	quoted, escaped := false, false
	for _, c := range raw {
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}
