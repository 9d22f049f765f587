package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
)

// secretGrant is a secret that a sandbox has, as its record keeps it: never with the
// value, which is read when it is used.
type secretGrant struct {
	Name, Env string
	Mode      api.SecretMode
	// Placeholder stands for the value in the sandbox, and Hosts may get it.
	Placeholder string      `json:",omitempty"`
	Hosts       []rule.Host `json:",omitempty"`
	Headers     []string    `json:",omitempty"`
	Query       bool        `json:",omitempty"`
}

// The files by which programs inside know whom to trust, where TLS is opened.
const (
	trustTarget = "/.cloche-trust"
	trustOwn    = trustTarget + "/own.pem"
	trustBundle = trustTarget + "/bundle.pem"
	trustJava   = trustTarget + "/java.jks"
	trustBytes  = 4 << 20
	// maxBundle is how much of an image's own bundle is read.
	maxBundle = 1 << 20
)

// bundles are where images keep the certificates that their programs trust.
func bundles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}
}

// trustEnv are the variables by which programs find the files.
func trustEnv(image map[string]string) map[string]string {
	env := map[string]string{}
	for _, name := range policy.TrustVariables() {
		env[name] = trustBundle
	}
	env["NODE_EXTRA_CA_CERTS"] = trustOwn
	env["JAVA_TOOL_OPTIONS"] = strings.TrimSpace(image["JAVA_TOOL_OPTIONS"] +
		" -Djavax.net.ssl.trustStore=" + trustJava + " -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword=" + intercept.JavaPassword)
	return env
}

// holdSecrets makes the placeholders of the secrets that the permit grants. A secret
// that cannot be read now is told now, and not to the first program.
func (c *creation) holdSecrets(ctx context.Context) error {
	grants := c.permit.Secrets()
	if len(grants) == 0 {
		return nil
	}
	if c.m.opts.Secrets == nil {
		return api.Errorf(api.CodeUnsupported, "a secret was asked for, and there are none here")
	}
	var held []secretGrant
	for _, g := range grants {
		if _, err := c.m.opts.Secrets(ctx, g.Name); err != nil {
			return err
		}
		h := secretGrant{Name: g.Name, Env: g.Env, Mode: g.Mode}
		if g.Mode == api.SecretPlaceholder {
			h.Placeholder, h.Headers, h.Query = intercept.NewPlaceholder(), g.Headers, g.Query
			for _, host := range g.Hosts {
				parsed, err := rule.ParseHost(host)
				if err != nil {
					return err
				}
				h.Hosts = append(h.Hosts, parsed)
			}
		}
		held = append(held, h)
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.secrets = held
	return nil
}

// placeholders are the secrets that are put in on the network. The caller holds s.mu.
func (s *live) placeholders() []intercept.Secret {
	var out []intercept.Secret
	for _, h := range s.secrets {
		if h.Mode == api.SecretPlaceholder {
			out = append(out, intercept.Secret{Name: h.Name, Placeholder: h.Placeholder, Hosts: h.Hosts, Headers: h.Headers, Query: h.Query})
		}
	}
	return out
}

// planTrust reserves the files for trusted certificates, if the network intercepts TLS.
func (c *creation) planTrust() {
	if c.s.network.Authority() != nil {
		c.plan.Tmpfs = append(c.plan.Tmpfs, engine.Tmpfs{Target: trustTarget, SizeBytes: trustBytes, Mode: 0o755})
	}
}

// writeTrust writes the files into the sandbox, in which nothing has run yet.
func (c *creation) writeTrust(ctx context.Context) error {
	c.s.mu.Lock()
	w := c.s.network
	c.s.mu.Unlock()
	if w == nil || w.Authority() == nil {
		return nil
	}
	trust := intercept.NewTrust(w.Authority(), c.systemRoots(ctx))
	for _, f := range []struct {
		path string
		data []byte
	}{{trustOwn, trust.Own}, {trustBundle, trust.Bundle}, {trustJava, trust.Java}} {
		if _, err := c.client.WriteFile(ctx, f.path, agent.WriteOptions{Mode: 0o644, User: "0:0"}, bytes.NewReader(f.data)); err != nil {
			return err
		}
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.trusts = true
	return nil
}

// systemRoots are the roots that the image's programs trust, or this machine's for
// an image that has none.
func (c *creation) systemRoots(ctx context.Context) []byte {
	for _, path := range bundles() {
		r, _, err := c.client.ReadFile(ctx, path, 0, maxBundle)
		if err != nil {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(r, maxBundle))
		if cerr := r.Close(); cmp.Or(err, cerr) == nil && len(data) > 0 {
			return data
		}
	}
	for _, path := range bundles() {
		if data, err := os.ReadFile(path); err == nil && len(data) <= maxBundle {
			return data
		}
	}
	return nil
}

// given returns the environment that a process gets from its sandbox in addition to the request's:
// trusted certificates and secrets. Values are read now and not kept.
func (m *Manager) given(ctx context.Context, s *live) (map[string]string, error) {
	s.mu.Lock()
	secrets, trusts, image := slices.Clone(s.secrets), s.trusts, s.image.Env
	s.mu.Unlock()
	env := map[string]string{}
	if trusts {
		env = trustEnv(image)
	}
	if len(secrets) == 0 {
		return env, nil
	}
	if m.opts.Secrets == nil {
		return nil, api.Errorf(api.CodeUnsupported, "the sandbox has secrets, and there are none here")
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for _, h := range secrets {
		env[h.Env] = h.Placeholder
		if h.Mode != api.SecretEnv {
			continue
		}
		value, err := m.opts.Secrets(ctx, h.Name)
		if err != nil {
			return nil, err
		}
		env[h.Env] = value
	}
	return env, nil
}
