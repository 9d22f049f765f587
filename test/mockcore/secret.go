package mockcore

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Secrets is one of each kind.
func (c *Core) Secrets(context.Context, core.Caller) (api.SecretList, error) {
	return api.SecretList{Secrets: []api.Secret{
		{Name: "model", Hosts: []string{"api.example.com", "*.example.org:8443"}, Modes: []api.SecretMode{api.SecretPlaceholder, api.SecretEnv}, Headers: []string{"Authorization"}, Query: true, From: "file"},
		{Name: "plain", Modes: []api.SecretMode{api.SecretEnv}},
	}}, nil
}
