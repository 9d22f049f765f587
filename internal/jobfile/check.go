package jobfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// document compares all of a file with its form.
func (r *reader) document(top map[string]any) error {
	v, err := r.check(reflect.TypeFor[document](), "", top)
	if err != nil {
		return err
	}
	if m, ok := v.(map[string]any); ok {
		maps.Copy(top, m)
	}
	return nil
}

// check compares one value with its type, and returns it as JSON has it.
func (r *reader) check(t reflect.Type, path string, v any) (any, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return r.bytes(path, v)
	}
	switch t.Kind() {
	case reflect.Struct:
		return r.object(t, path, v)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return nil, r.wrong(path, "keys with values are expected here")
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			one, err := r.check(t.Elem(), path+"."+k, m[k])
			if err != nil {
				return nil, err
			}
			m[k] = one
		}
		return m, nil
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			return nil, r.wrong(path, "a list is expected here")
		}
		for i := range list {
			one, err := r.check(t.Elem(), fmt.Sprintf("%s[%d]", path, i), list[i])
			if err != nil {
				return nil, err
			}
			list[i] = one
		}
		return list, nil
	}
	return r.scalar(t, path, v)
}

func (r *reader) object(t reflect.Type, path string, v any) (any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, r.wrong(path, "keys with values are expected here")
	}
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		at := k
		if path != "" {
			at = path + "." + k
		}
		ft, known := fields[k]
		if !known {
			err := r.wrong(at, "there is no such key here")
			return nil, err.WithHint("the keys are %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		one, err := r.check(ft, at, m[k])
		if err != nil {
			return nil, err
		}
		m[k] = one
	}
	return m, nil
}

// bytes are text, or base64 where they are no text.
func (r *reader) bytes(path string, v any) (any, error) {
	switch v := v.(type) {
	case text:
		return v.raw, nil
	case map[string]any:
		if s, ok := v["base64"].(text); ok && len(v) == 1 {
			var b api.Bytes
			data, err := json.Marshal(map[string]string{"base64": s.raw})
			if err == nil {
				err = json.Unmarshal(data, &b)
			}
			if err == nil {
				return b, nil
			}
		}
	}
	return nil, r.wrong(path, `text is expected here, or {base64: "…"}`)
}

// scalar is one value of a kind. Where text is wanted a number is its text.
func (r *reader) scalar(t reflect.Type, path string, v any) (any, error) {
	s, ok := v.(text)
	if !ok {
		return nil, r.wrong(path, "one value is expected here")
	}
	if t.Kind() == reflect.String {
		return s.raw, nil
	}
	data, err := json.Marshal(s.value)
	if err == nil {
		err = json.Unmarshal(data, reflect.New(t).Interface())
	}
	if err != nil {
		return nil, r.wrong(path, "%.80q is no %s", s.raw, kind(t))
	}
	return s.value, nil
}

func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "number"
	}
	return "whole number that fits"
}
