package core

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Secrets lists the secrets that caller may use: names, hosts and modes.
func (s *Service) Secrets(_ context.Context, caller Caller) (api.SecretList, error) {
	return api.SecretList{Secrets: policy.SecretsOf(caller, s.rules())}, nil
}
