package sandbox

import "context"

// openEndpoints is the step of a create that opens endpoints, before any program runs.
func (c *creation) openEndpoints(ctx context.Context) error {
	grants := c.permit.Endpoints()
	if len(grants) == 0 {
		return nil
	}
	c.s.undo.Push("endpoints", func(ctx context.Context) error {
		c.s.endpoints.Close(ctx)
		return nil
	})
	if err := c.s.endpoints.Open(ctx, grants, c.client); err != nil {
		return err
	}
	specs := c.s.endpoints.Specs()
	c.s.mu.Lock()
	c.s.info.Endpoints = specs
	c.s.mu.Unlock()
	return nil
}

// HasSecrets reports whether endpoints can be given the values of secrets.
func (m *Manager) HasSecrets() bool { return m.opts.Secrets != nil }
