package command

import (
	"bytes"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestViewsAreSafe: what a sandbox can name does not act on a terminal.
func TestViewsAreSafe(t *testing.T) {
	evil := api.ProcessList{Processes: []api.Process{{ExecID: "x", Name: "a\x1b[2J\u009b", LastStderr: "b\rc"}}}
	byTemplate, err := templateView("{{.Name}}{{.LastStderr}}")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []view{nameView, yamlView, byTemplate} {
		out, err := v(evil)
		if err != nil || bytes.ContainsAny(out, "\x1b\r\u009b") {
			t.Errorf("%q, %v", out, err)
		}
	}
}
