package sandbox

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/approval"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/sandbox/trust"
	"github.com/cloche-dev/cloche/internal/secret"
)

// networkDir is where a sandbox's network keeps what outlives the daemon.
const networkDir = "network"

// networks opens, adopts and ends the networks of sandboxes.
type networks struct{ m *Manager }

// place says which sandbox a network is of, and what it needs from it.
func (n networks) place(s *live) network.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return network.Place{
		ID: s.id, Name: s.name, Hostname: record.Hostname(s.name), Dir: filepath.Join(s.dir, networkDir), Grant: *s.grant, Opens: s.trusts, Secrets: trust.Placeholders(s.secrets), Value: n.m.opts.Secrets,
		Tell: func(rec api.EgressRecord) { n.tellEgress(s, rec) },
		Ask:  n.asker(s),
	}
}

// asker asks for what no rule of a sandbox speaks of.
func (n networks) asker(s *live) func(context.Context, egress.Asked) bool {
	if n.m.opts.Ask == nil {
		return nil
	}
	return func(ctx context.Context, a egress.Asked) bool {
		if secret.In(n.m.opts.Redact, a) != a {
			return false // a rule with the value of a secret in it is not shown, so not approved
		}
		return n.m.opts.Ask(ctx, approval.Question{
			Tenant: s.tenant, Sandbox: s.id, SandboxName: s.name, Name: a.Name, Port: int(a.Port), Rule: a.Rule,
		})
	}
}

// openNetwork makes the network, if the permit has one.
func (c *creation) openNetwork(ctx context.Context) error {
	grant, ok := c.permit.Egress()
	if !ok {
		return nil
	}
	if c.m.opts.Networks == nil {
		return api.Errorf(api.CodeUnsupported, "network %q was asked for, and no sandbox has one here", api.NetworkOn)
	}
	c.s.mu.Lock()
	if c.s.grant != nil { // a start, a resume or a fork
		grant = *c.s.grant
	}
	c.s.grant = &grant
	if c.memory == nil {
		c.s.trusts = c.permit.Opens() || len(grant.Requests)+len(grant.Demanded) > 0
	}
	c.s.info.Network = grant.Network()
	c.s.mu.Unlock()
	w, err := c.m.opts.Networks.Open(ctx, c.m.networks.place(c.s))
	if err != nil {
		return err
	}
	c.s.mu.Lock()
	c.s.network = w
	c.s.mu.Unlock()
	c.s.undo.Push("network", func(ctx context.Context) error {
		c.m.networks.end(ctx, c.s)
		return nil
	})
	c.plan.Link = w.Link()
	for _, m := range w.Mounts() {
		// An image may have a link there, to a file of a service that does not run here.
		if m.Target, err = (image.Rootfs{Image: c.plan.Root.Image}).Follow(m.Target); err != nil {
			return err
		}
		c.plan.Mounts = append(c.plan.Mounts, m)
	}
	c.planTrust()
	return nil
}

// handNetwork ends what the engine needed of the way.
func (c *creation) handNetwork(ctx context.Context) error {
	if c.plan.Link == nil {
		return nil
	}
	defer await.For(ctx, "the holder of network links")()
	return c.s.network.Handed(ctx)
}

// adopt takes back the network of a sandbox that lives. One that cannot be taken
// back is lost: the sandbox goes on without a network, and says so.
func (n networks) adopt(ctx context.Context, s *live) {
	s.mu.Lock()
	lost := s.grant == nil || s.info.Degraded != "" || s.info.State == api.StateStopping || s.info.State == api.StateDeleting
	s.mu.Unlock()
	if lost {
		return
	}
	why := "this build has no network"
	if n.m.opts.Networks != nil {
		w, err := n.m.opts.Networks.Adopt(ctx, n.place(s))
		if err == nil {
			s.mu.Lock()
			s.network = w
			s.mu.Unlock()
			return
		}
		n.m.log.Error("recover the network of a sandbox; it goes on without", "sandbox", s.id, "error", err)
		why = "what it had stored could not be read"
		if errors.Is(err, network.ErrLost) {
			why = "what held its link while no daemon ran has ended"
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.Degraded = "its network is closed: " + why
	if err := s.save(); err != nil {
		n.m.log.Error("save record", "sandbox", s.id, "error", err)
	}
	n.m.tell(s, api.EventDegraded, s.info.Degraded)
}

// sweep lets go of the links of sandboxes that are no more.
func (n networks) sweep(ctx context.Context) error {
	if n.m.opts.Networks == nil {
		return nil
	}
	var keep []string
	for _, s := range n.m.all() {
		s.mu.Lock()
		if s.network != nil {
			keep = append(keep, s.id)
		}
		s.mu.Unlock()
	}
	return n.m.opts.Networks.Sweep(ctx, keep)
}

// end ends the network of a sandbox whose instance is no more, and returns what
// went through it. The log stays. The caller holds s.ops, or has a creation.
func (n networks) end(ctx context.Context, s *live) api.EgressLimits {
	s.mu.Lock()
	w := s.network
	s.network = nil
	s.mu.Unlock()
	if w == nil {
		return api.EgressLimits{}
	}
	defer await.For(ctx, "the sandbox's network or the holder of its link")()
	if err := w.Close(); err != nil {
		n.m.log.Warn("close network", "sandbox", s.id, "error", err)
	}
	return w.Used()
}

// networkOf is the network of a running sandbox.
func (s *live) networkOf() (*network.Network, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.info.State != api.StateRunning && s.info.State != api.StatePaused:
		return nil, stage.NotRunning(s.info)
	case s.grant == nil:
		return nil, api.Errorf(api.CodeState, "sandbox %s has no network", s.name).
			WithHint("a sandbox gets one when it is created: network %q", api.NetworkOn)
	case s.network == nil:
		return nil, api.Errorf(api.CodeState, "sandbox %s is degraded: %s", s.name, s.info.Degraded).WithHint("make another")
	}
	return s.network, nil
}

// SetEgress replaces what may leave a sandbox. Connections in progress are judged
// again, and a later daemon finds the same rules. change, which may be nil, is what
// the log and the event say of it.
func (m *Manager) SetEgress(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string, change func(policy.EgressGrant) (policy.EgressGrant, error)) (policy.EgressGrant, error) {
	s, err := m.waker.find(ctx, caller, verb, ref)
	if err != nil {
		return policy.EgressGrant{}, err
	}
	s.lockOps(ctx)
	defer s.ops.Unlock()
	w, err := s.networkOf()
	if err != nil {
		return policy.EgressGrant{}, err
	}
	if err := ctx.Err(); err != nil {
		return policy.EgressGrant{}, err
	}
	grant, err := change(w.Grant())
	if err != nil {
		return policy.EgressGrant{}, err
	}
	s.mu.Lock()
	before, shown, nw := s.grant, s.info.Egress, s.info.Network
	grant.Generation = before.Generation + 1
	s.grant, s.info.Egress, s.info.Network = &grant, grant.OnRecord(now()), grant.Network()
	// On record first: a daemon that dies now must not come back with rules that were
	// taken away.
	if err := s.save(); err != nil {
		s.grant, s.info.Egress, s.info.Network = before, shown, nw
		s.mu.Unlock()
		return policy.EgressGrant{}, api.Errorf(api.CodeInternal, "the rules of sandbox %s could not be put on record", s.name).WithCause(err)
	}
	s.mu.Unlock()
	if err := w.SetGrant(grant); err != nil {
		return policy.EgressGrant{}, err
	}
	s.mu.Lock()
	m.tell(s, api.EventEgressChanged, "")
	s.mu.Unlock()
	w.Record(api.EgressRecord{Kind: api.EgressChanged})
	return grant, nil
}

// SettleEgress returns when nothing is left in a sandbox of the connections that other
// rules had reset, with the generation of the rules that are enforced.
func (m *Manager) SettleEgress(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string) (int64, error) {
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// No other call changes the rules meanwhile.
	s.lockOps(ctx)
	defer s.ops.Unlock()
	w, err := s.networkOf()
	if err != nil {
		return 0, err
	}
	if err := w.Settle(ctx); err != nil {
		return 0, api.Errorf(api.CodeTimeout, "the rules of sandbox %s are in force, and connections of before have not ended", s.name).WithCause(err)
	}
	return w.Grant().Generation, nil
}

// Egress is what may leave a sandbox, and what it has used of its limits.
func (m *Manager) Egress(caller policy.Caller, verb policy.Verb, ref string) (policy.EgressGrant, api.EgressLimits, error) {
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return policy.EgressGrant{}, api.EgressLimits{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.network != nil:
		return s.network.Grant(), s.network.Used(), nil
	case s.grant != nil:
		return *s.grant, api.EgressLimits{}, nil
	}
	return policy.EgressGrant{}, api.EgressLimits{}, nil
}

// EgressLog calls fn with what left a sandbox and what did not, also of one that has
// ended. With Follow it ends with ctx, with the sandbox, or with an error of fn.
func (m *Manager) EgressLog(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string, o api.EgressLogOptions, fn func(api.EgressRecord) error) error {
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return err
	}
	s.mu.Lock()
	w, granted, dir := s.network, s.grant != nil, filepath.Join(s.dir, networkDir)
	s.mu.Unlock()
	switch {
	case w != nil:
		return w.ReadLog(ctx, o, fn)
	case !granted:
		return nil
	}
	log, err := network.OpenLog(dir)
	if err != nil {
		return api.Errorf(api.CodeInternal, "the egress log of sandbox %s cannot be read", s.name).WithCause(err)
	}
	log.Close()
	return log.Read(ctx, o, fn)
}

// tellEgress reports what left a sandbox or did not. It is called by one goroutine.
func (n networks) tellEgress(s *live, rec api.EgressRecord) {
	info := s.snapshot()
	n.m.opts.Egress(info, rec)
	if rec.Kind != api.EgressRefused {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.m.opts.Events(api.Event{
		Time: now(), Kind: api.EventEgressRefused, Tenant: s.tenant, Sandbox: s.id, Name: s.name, Reason: rec.Reason, Rule: rec.Rule,
		Egress: rec.Refusal(),
	})
}

// refusals are what was not let out from now on until they are asked for.
func (s *live) refusals() func() []api.EgressRefusal {
	s.mu.Lock()
	w := s.network
	s.mu.Unlock()
	if w == nil {
		return func() []api.EgressRefusal { return nil }
	}
	mark := w.Mark()
	return func() []api.EgressRefusal { return w.Since(mark) }
}
