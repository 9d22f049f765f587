package template_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/template"
)

// What forks would share that only one sandbox can have, and values of secrets, are refused; empty is no refusal.
func TestRefusal(t *testing.T) {
	for what, c := range map[string]struct {
		workspace api.Workspace
		mounts    []api.Mount
		secrets   []record.Secret
		refused   string
	}{
		"private":            {},
		"named":              {workspace: api.Workspace{Name: "shared"}, refused: `the named workspace "shared"`},
		"named, read-only":   {workspace: api.Workspace{Name: "shared", ReadOnly: true}, refused: `the named workspace "shared"`},
		"volume":             {workspace: api.Workspace{Volume: true}, refused: "a volume of the engine's"},
		"layered":            {workspace: api.Workspace{Layered: true}, refused: "is layered"},
		"layered directory":  {workspace: api.Workspace{Dir: "/src", Layered: true}, refused: "is layered"},
		"directory":          {workspace: api.Workspace{Dir: "/src"}, refused: "the directory /src of the host"},
		"directory, to read": {workspace: api.Workspace{Dir: "/src", ReadOnly: true}},
		"mount":              {mounts: []api.Mount{{Source: "/a", ReadOnly: true}, {Source: "/b"}}, refused: "the directory /b of the host"},
		"mount, to read":     {mounts: []api.Mount{{Source: "/a", ReadOnly: true}}},
		"placeholder":        {secrets: []record.Secret{{Name: "key", Mode: api.SecretPlaceholder}}},
		"value":              {secrets: []record.Secret{{Name: "key", Mode: api.SecretEnv}}, refused: `the value of the secret "key"`},
	} {
		err := template.Refusal(api.Sandbox{Name: "box", Workspace: c.workspace, Mounts: c.mounts}, c.secrets)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", what, err)
		case c.refused != "" && (api.CodeOf(err) != api.CodeUnsupported || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v, want %s", what, err, c.refused)
		}
	}
}
