package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// bodyTimeout is how long a JSON body may take to arrive.
const bodyTimeout = time.Minute

// jsonHint says what a body should be.
const jsonHint = "send one JSON object, as GET /v1/openapi.yaml describes it"

// readJSON decodes a request's body into v, strictly.
func (s *Server) readJSON(w http.ResponseWriter, r request, v any) error {
	if err := contentType(r, "application/json"); err != nil {
		return err
	}
	data, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	return decodeJSON(data, v)
}

// readOptionalJSON is readJSON for a body that may be missing.
func (s *Server) readOptionalJSON(w http.ResponseWriter, r request, v any) error {
	data, err := s.readBody(w, r)
	if err != nil || len(data) == 0 {
		return err
	}
	if err := contentType(r, "application/json"); err != nil {
		return err
	}
	return decodeJSON(data, v)
}

func (s *Server) readBody(w http.ResponseWriter, r request) ([]byte, error) {
	tooLarge := api.Errorf(api.CodeTooLarge, "the body of the request is over %d bytes", s.maxBody).
		WithHint("upload large files with PUT /%s/sandboxes/{ref}/files, which is streamed", api.APIVersion)
	if r.ContentLength > s.maxBody {
		return nil, tooLarge
	}
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return nil, fmt.Errorf("limit the time for a body: %w", err)
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.maxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, tooLarge
		}
		return nil, bodyError(err, bodyTimeout)
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("limit the time for a body: %w", err)
	}
	return data, nil
}

// contentType requires one media type. Parameters are ignored, except for a charset, which must be
// UTF-8.
func contentType(r request, want string) error {
	got := r.Header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(got)
	if err == nil && kind == want && (params["charset"] == "" || strings.EqualFold(params["charset"], "utf-8")) {
		return nil
	}
	return api.Invalid("content-type", "the request's content type is %q", clip(got, 80)).WithHint("send %s", want)
}

// decodeJSON reads exactly one JSON value into v, which points to a struct. What
// encoding/json lets pass is refused: unknown fields, fields that are named
// twice or in another case, text that is not UTF-8, and anything after the
// value. Each error names the field.
func decodeJSON(data []byte, v any) error {
	if !utf8.Valid(data) {
		return api.Invalid("body", "the body is not UTF-8").WithHint(`other bytes go as {"base64": "…"} where the contract allows them`)
	}
	c := checker{dec: json.NewDecoder(bytes.NewReader(data))}
	c.dec.UseNumber()
	if err := c.value(reflect.TypeOf(v).Elem(), ""); err != nil {
		return jsonError(err)
	}
	if _, err := c.dec.Token(); !errors.Is(err, io.EOF) {
		return api.Invalid("body", "something follows the JSON value of the body").WithHint("send exactly one value")
	}
	if err := json.Unmarshal(data, v); err != nil {
		return jsonError(err)
	}
	return nil
}

// jsonError says in the caller's words what encoding/json found.
func jsonError(err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := e.Field
		if field == "" {
			field = "body"
		}
		return api.Invalid(field, "%s is a JSON %s", field, clip(e.Value, 40)).WithHint("want %s", jsonKind(e.Type))
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return api.Invalid("body", "the body is not JSON: error at byte %d", e.Offset).WithHint(jsonHint)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return api.Invalid("body", "the body is not JSON: it ends too early").WithHint(jsonHint)
	}
	return api.Invalid("body", "the body does not fit: %w", err)
}

// jsonKind is what a Go type looks like in JSON.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number that fits %d bits", t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number from 0 that fits %d bits", t.Bits())
	default:
		return "an object"
	}
}

// checker walks a JSON text beside the type that it is for.
type checker struct {
	dec   *json.Decoder
	depth int
}

// maxDepth is far more than any request nests.
const maxDepth = 32

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value walks one value. t is nil where any shape will do, which json.Unmarshal
// judges later.
func (c *checker) value(t reflect.Type, path string) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && reflect.PointerTo(t).Implements(unmarshaler) {
		t = nil
	}
	tok, err := c.dec.Token()
	if err != nil {
		return err
	}
	if path == "" && tok != json.Delim('{') {
		return api.Invalid("body", "the body is not a JSON object")
	}
	d, ok := tok.(json.Delim)
	if tok == nil && !nullable(path) {
		return api.Invalid(path, "%s is null, which is no value and not the same as leaving it out", path).WithHint("leave it out, or give it a value")
	}
	if !ok {
		return nil
	}
	if c.depth++; c.depth > maxDepth {
		return api.Invalid("body", "the body nests deeper than %d", maxDepth)
	}
	defer func() { c.depth-- }()
	if d == '{' {
		err = c.object(t, path)
	} else {
		err = c.array(t, path)
	}
	if err != nil {
		return err
	}
	_, err = c.dec.Token() // the closing one
	return err
}

// nullable says where null means that nothing is said: where the contract has it, and
// for host paths and quotas, whose callers pass on settings that may be empty.
func nullable(path string) bool {
	switch path[strings.LastIndexByte(path, '.')+1:] {
	case "timeout_ms", "since", "stdin_offset", "dir", "size_bytes", "inodes":
		return true
	}
	return false
}

func (c *checker) array(t reflect.Type, path string) error {
	var elem reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		elem = t.Elem()
	}
	for i := 0; c.dec.More(); i++ {
		if err := c.value(elem, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) object(t reflect.Type, path string) error {
	seen := map[string]bool{}
	for c.dec.More() {
		tok, err := c.dec.Token()
		if err != nil {
			return err
		}
		name, ok := tok.(string)
		if !ok {
			return api.Invalid("body", "the body is not JSON: a field has no name").WithHint(jsonHint)
		}
		at := clip(name, 80)
		if path != "" {
			at = path + "." + at
		}
		if seen[name] {
			return api.Invalid(at, "field %q is there twice", at)
		}
		seen[name] = true
		next, known := fieldType(t, name)
		if !known {
			return api.Invalid(at, "there is no field %q", at).WithHint("%s", fieldHint(t))
		}
		if err := c.value(next, at); err != nil {
			return err
		}
	}
	return nil
}

// fieldType is the type of a field of t, and whether t has it. A map has every
// field, and so has what is left to json.Unmarshal.
func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	if t == nil {
		return nil, true
	}
	switch t.Kind() {
	case reflect.Map:
		return t.Elem(), true
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			if jsonName(f) == name {
				return f.Type, true
			}
		}
		return nil, false
	default:
		return nil, true
	}
}

// fieldHint lists the fields of a struct.
func fieldHint(t reflect.Type) string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if n := jsonName(f); n != "" {
			names = append(names, n)
		}
	}
	if names == nil {
		return "it takes no fields"
	}
	return "it takes " + strings.Join(names, ", ")
}

// jsonName is the name of a field in JSON; "" for one that is not there, and for
// an embedded struct, whose fields stand in its place.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
		return ""
	}
	if name == "" {
		return f.Name
	}
	return name
}
