package sandbox

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// TestImageMeant checks the hint for a program that looks like the name of an image.
func TestImageMeant(t *testing.T) {
	missing := api.Errorf(api.CodeNotFound, "there is no such program").WithHint("install it")
	for _, tc := range []struct {
		image, program string
		err            error
		told           bool
	}{
		{"", "python:3.11", missing, true}, {"", "ghcr.io/a/b:1", missing, true}, {"host", "python:3.11", missing, false},
		{"", "ubuntu", missing, true}, {"", "team/tool", missing, true}, {"", "./tool", missing, false}, {"", "/opt/tool:1", missing, false},
		{"", "python3", missing, false}, {"", "a b:c", missing, false}, {"", "python:3.11", api.Invalid("x", "y"), false}, {"", "python:3.11", nil, false},
	} {
		err := imageMeant(tc.err, api.RunRequest{Spec: api.SandboxSpec{Image: tc.image}, Exec: api.ExecRequest{Argv: []string{tc.program}}})
		if told := err != nil && strings.Contains(command.AsError(err).Hint, "--image "+tc.program); told != tc.told || (err == nil) != (tc.err == nil) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	if missing.Hint != "install it" {
		t.Error("the error of somebody else was changed")
	}
}
