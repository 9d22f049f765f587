package filter_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/endpoint/filter"
)

// What is put in a part's place is of the type that its place has, and an unchanged part
// stays as it was written.
func TestStyles(t *testing.T) {
	const image = `{"type":"input_image","image_url":"http://evil.example/x"}`
	for name, c := range map[string]struct{ body, want, not string }{
		"of a user":                {`{"input":[{"role":"user","content":[` + image + `]}]}`, `"type":"input_text"`, "output_text"},
		"of the model":             {`{"input":[{"role":"assistant","content":[` + image + `]}]}`, `"type":"output_text"`, "input_text"},
		"of a tool":                {`{"input":[{"type":"function_call_output","output":[` + image + `]}]}`, `"type":"input_text"`, "output_text"},
		"of a tool of the model":   {`{"input":[{"role":"assistant","output":[` + image + `]}]}`, `"type":"input_text"`, "output_text"},
		"a message beside":         {`{"input":[{"role":"user",  "content" : "x"},{"role":"user","content":[` + image + `]}]}`, `{"role":"user",  "content" : "x"}`, "evil"},
		"a part beside":            {`{"input":[{"role":"user","content":[{"type" :  "input_text","text":"x"},` + image + `]}]}`, `{"type" :  "input_text","text":"x"}`, "evil"},
		"brackets beside brackets": {`{"input":[` + strings.Repeat(`{"role":"user","content":[]},`, 200) + `{"role":"user","content":[` + image + `]}]}`, `"type":"input_text"`, "evil"},
	} {
		out, removed, err := filter.Strip([]byte(c.body))
		if err != nil || len(removed) != 1 || !strings.Contains(string(out), c.want) || strings.Contains(string(out), c.not) {
			t.Errorf("%s: %.300s, %q, %v; want %q and no %q", name, out, removed, err, c.want, c.not)
		}
	}
}

// How deep a body is in itself is bounded, in parts that are not parsed too; brackets in texts
// and beside each other count for nothing.
func TestNesting(t *testing.T) {
	deep := func(n int) string { return `{"metadata":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}` }
	for name, c := range map[string]struct {
		body string
		fits bool
	}{
		"as deep as it may be": {deep(256), true}, "deeper": {deep(257), false}, "much deeper": {deep(9000), false},
		"beside each other": {`{"metadata":[` + strings.Repeat("[],", 500) + `{}]}`, true},
		"in a text":         {`{"metadata":"` + strings.Repeat(`[{\"`, 500) + `"}`, true},
	} {
		if _, _, err := filter.Strip([]byte(c.body)); (err == nil) != c.fits {
			t.Errorf("%s: %v", name, err)
		}
	}
}
