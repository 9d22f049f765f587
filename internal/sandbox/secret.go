package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/trust"
)

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
	var held []record.Secret
	for _, g := range grants {
		if _, err := c.m.opts.Secrets(ctx, g.Name); err != nil {
			return err
		}
		h, err := trust.Hold(g, c.s.secrets)
		if err != nil {
			return err
		}
		held = append(held, h)
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.secrets = held
	return nil
}

// planTrust reserves the files for trusted certificates, if the network intercepts TLS.
func (c *creation) planTrust() {
	if c.s.network.Authority() != nil {
		c.plan.Tmpfs = append(c.plan.Tmpfs, engine.Tmpfs{Target: trust.Dir, SizeBytes: trust.MaxBytes, Mode: 0o755})
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
	if err := trust.Write(ctx, c.client, w.Authority()); err != nil {
		return err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.trusts = true
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
		env = trust.Env(image)
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
