package secret

import "reflect"

// In is v with redact applied to every string in it, in exported fields, elements,
// and keys, to any depth. v is not changed: what has a value is copied. Strings of a
// type with a name of its own are the words of the program and stay as they are.
// Without redact, v stays as it is.
func In[T any](redact func(string) string, v T) T {
	if redact == nil {
		return v
	}
	out, changed := within(redact, reflect.ValueOf(&v).Elem())
	if !changed {
		return v
	}
	return out.Interface().(T)
}

// plainString is the type of texts.
var plainString = reflect.TypeFor[string]()

// within returns v, or a clean copy of it and true.
func within(redact func(string) string, v reflect.Value) (_ reflect.Value, changed bool) {
	switch v.Kind() {
	case reflect.String:
		if v.Type() != plainString {
			return v, false
		}
		clean := redact(v.String())
		return reflect.ValueOf(clean), clean != v.String()
	case reflect.Pointer:
		if v.IsNil() {
			return v, false
		}
		clean, changed := within(redact, v.Elem())
		if !changed {
			return v, false
		}
		out := reflect.New(v.Type().Elem())
		out.Elem().Set(clean)
		return out, true
	case reflect.Slice:
		return withinSlice(redact, v)
	case reflect.Map:
		return withinMap(redact, v)
	case reflect.Struct:
		return withinStruct(redact, v)
	default:
		return v, false
	}
}

func withinSlice(redact func(string) string, v reflect.Value) (reflect.Value, bool) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return v, false
	}
	out, changed := v, false
	for i := range v.Len() {
		clean, differs := within(redact, v.Index(i))
		if !differs {
			continue
		}
		if !changed {
			out, changed = reflect.MakeSlice(v.Type(), v.Len(), v.Len()), true
			reflect.Copy(out, v)
		}
		out.Index(i).Set(clean)
	}
	return out, changed
}

func withinMap(redact func(string) string, v reflect.Value) (reflect.Value, bool) {
	out, any := reflect.MakeMap(v.Type()), false
	for it := v.MapRange(); it.Next(); {
		key, k := within(redact, it.Key())
		value, e := within(redact, it.Value())
		out.SetMapIndex(key, value)
		any = any || k || e
	}
	if !any {
		return v, false
	}
	return out, true
}

func withinStruct(redact func(string) string, v reflect.Value) (reflect.Value, bool) {
	out, changed := v, false
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		clean, differs := within(redact, v.Field(i))
		if !differs {
			continue
		}
		if !changed {
			out, changed = reflect.New(v.Type()).Elem(), true
			out.Set(v)
		}
		out.Field(i).Set(clean)
	}
	return out, changed
}
