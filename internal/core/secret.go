package core

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Secrets returns the secrets that the caller can use: names, hosts and modes.
func (s *Service) Secrets(_ context.Context, caller Caller) (api.SecretList, error) {
	return api.SecretList{Secrets: policy.SecretsOf(caller, s.rules())}, nil
}
