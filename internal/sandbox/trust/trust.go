// Package trust writes the trusted certificates of a sandbox whose TLS is intercepted.
package trust

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
)

// Files of the directory, which is a memory filesystem of its own.
const (
	// Dir is the directory, and MaxBytes the size of its filesystem.
	Dir      = "/.cloche-trust"
	own      = Dir + "/own.pem"
	bundle   = Dir + "/bundle.pem"
	java     = Dir + "/java.jks"
	MaxBytes = 4 << 20
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

// Env returns the variables by which programs find the files. image are those of the image.
func Env(image map[string]string) map[string]string {
	env := map[string]string{}
	for _, name := range policy.TrustVariables() {
		env[name] = bundle
	}
	env["NODE_EXTRA_CA_CERTS"] = own
	env["JAVA_TOOL_OPTIONS"] = strings.TrimSpace(image["JAVA_TOOL_OPTIONS"] +
		" -Djavax.net.ssl.trustStore=" + java + " -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword=" + intercept.JavaPassword)
	return env
}

// Write writes the files into a sandbox in which nothing has run yet.
func Write(ctx context.Context, sandbox *agent.Client, authority *intercept.Authority) error {
	trust := intercept.NewTrust(authority, systemRoots(ctx, sandbox))
	for _, f := range []struct {
		path string
		data []byte
	}{{own, trust.Own}, {bundle, trust.Bundle}, {java, trust.Java}} {
		if _, err := sandbox.WriteFile(ctx, f.path, agent.WriteOptions{Mode: 0o644, User: "0:0"}, bytes.NewReader(f.data)); err != nil {
			return err
		}
	}
	return nil
}

// systemRoots are the roots that the image's programs trust, or this machine's for
// an image that has none.
func systemRoots(ctx context.Context, sandbox *agent.Client) []byte {
	for _, path := range bundles() {
		r, _, err := sandbox.ReadFile(ctx, path, 0, maxBundle)
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

// Placeholders are the secrets of a sandbox that are put in on the network.
func Placeholders(secrets []record.Secret) []intercept.Secret {
	var out []intercept.Secret
	for _, h := range secrets {
		if h.Mode == api.SecretPlaceholder {
			out = append(out, intercept.Secret{Name: h.Name, Placeholder: h.Placeholder, Hosts: h.Hosts, Headers: h.Headers, Query: h.Query})
		}
	}
	return out
}

// Hold is what a sandbox has of a secret that is granted to it. A sandbox that is started again keeps the placeholder that it
// had, because it may have it in its files: before are the secrets that it had.
func Hold(g policy.SecretGrant, before []record.Secret) (record.Secret, error) {
	h := record.Secret{Name: g.Name, Env: g.Env, Mode: g.Mode}
	if g.Mode != api.SecretPlaceholder {
		return h, nil
	}
	h.Placeholder, h.Headers, h.Query = intercept.NewPlaceholder(), g.Headers, g.Query
	for _, b := range before {
		if b.Name == g.Name && b.Env == g.Env && b.Placeholder != "" {
			h.Placeholder = b.Placeholder
		}
	}
	for _, host := range g.Hosts {
		parsed, err := rule.ParseHost(host)
		if err != nil {
			return h, err
		}
		h.Hosts = append(h.Hosts, parsed)
	}
	return h, nil
}
