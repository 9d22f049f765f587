package httpapitest

import (
	"context"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Secrets is one of each kind.
func (c *Core) Secrets(context.Context, core.Caller) (cloche.SecretList, error) {
	return cloche.SecretList{Secrets: []cloche.Secret{
		{Name: "model", Hosts: []string{"api.example.com", "*.example.org:8443"}, Modes: []cloche.SecretMode{cloche.SecretPlaceholder, cloche.SecretEnv}, Headers: []string{"Authorization"}, Query: true, From: "file"},
		{Name: "plain", Modes: []cloche.SecretMode{cloche.SecretEnv}},
	}}, nil
}
