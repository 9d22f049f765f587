//go:build linux || darwin || windows

package daemon

import (
	"context"
	"crypto/x509"
	"os"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/secret"
)

// useSecrets puts the sources of a policy file in force, and reads those that cost
// little, so that what is written down from now on is without their values.
func (h *app) useSecrets(ctx context.Context, rules rules.Rules) {
	sources := make(map[string]secret.Source, len(rules.Secrets))
	for _, s := range rules.Secrets {
		sources[s.Name] = secret.Source{Env: s.From.Env, File: s.From.File, Exec: slices.Clone(s.From.Exec)}
	}
	h.secrets.Use(sources)
	h.secrets.Learn(ctx)
}

// roots are those by which hosts are verified whose TLS is opened; nil is the
// machine's alone.
func roots(rules rules.Rules) (*x509.CertPool, error) {
	if rules.TLS.Roots == "" {
		return nil, nil
	}
	wrong := func(err error) error {
		return api.Invalid("tls.roots", "the certificates of tls.roots cannot be read: %w", err).
			WithHint("name a file of certificates in PEM, or leave it out for the machine's own")
	}
	data, err := os.ReadFile(rules.TLS.Roots)
	if err != nil {
		return nil, wrong(err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, wrong(err)
	}
	if !pool.AppendCertsFromPEM(data) {
		return nil, api.Invalid("tls.roots", "%s has no certificate in it", rules.TLS.Roots).WithHint("name a file of certificates in PEM")
	}
	return pool, nil
}
