package policy

import (
	"crypto/sha256"
	"crypto/subtle"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// PortPermit is a granted open port. Only DecidePort returns a valid one.
type PortPermit struct {
	valid bool
	grant PortGrant
	ttl   time.Duration
}

// Valid reports whether DecidePort returned p.
func (p PortPermit) Valid() bool { return p.valid }

// Grant returns what goes on record for a port that is opened at a time. The caller adds the token
// of a port that is not public.
func (p PortPermit) Grant(at time.Time) PortGrant {
	g := p.grant
	g.CreatedAt = at
	if p.ttl > 0 {
		g.ExpiresAt = at.Add(p.ttl)
	}
	return g
}

// PortGrant is an open port, as it is recorded.
type PortGrant struct {
	Port             int
	Public, KeepHost bool `json:",omitempty"`
	// Operator means that the operator opened it.
	Operator bool `json:",omitempty"`
	// Token is the SHA-256 of the token. It is nil for a public port.
	Token     []byte `json:",omitempty"`
	CreatedAt time.Time
	// ExpiresAt is zero for a port that is open until it is closed or its sandbox ends.
	ExpiresAt time.Time `json:",omitzero"`
}

// PortToken returns what a grant has of a token. One round of SHA-256 is enough because tokens are
// random.
func PortToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// Expired reports whether the time of the port is over.
func (g PortGrant) Expired(at time.Time) bool {
	return !g.ExpiresAt.IsZero() && !at.Before(g.ExpiresAt)
}

// DecidePort grants an open port in a sandbox that has others, or returns why not. The error is
// always a *api.Error.
func DecidePort(spec api.PortSpec, others []PortGrant, caller Caller, set rules.Rules) (PortPermit, error) {
	if !set.Ports.IsEnabled() {
		return PortPermit{}, rules.Denied(rules.RulePorts, "port", "the operator's rules allow no ports with a URL").
			WithHint("`cloche port-forward` connects to a port without a URL; the rule is `%s`", rules.RulePorts)
	}
	if spec.Port < 1 || spec.Port > math.MaxUint16 {
		return PortPermit{}, api.Invalid("port", "port %d does not exist", spec.Port).WithHint("1 to 65535")
	}
	if spec.Public && !publicPorts(caller.Tenant, caller.Operator, set) {
		return PortPermit{}, rules.Denied(rules.RulePortsPublic, "public", "port %d cannot be public: requests need its token", spec.Port).
			WithHint("leave public out; the smallest rule that would allow it is `ports: {public: [%s]}`", rules.Shorten(caller.Tenant))
	}
	others = slices.DeleteFunc(slices.Clone(others), func(g PortGrant) bool { return g.Port == spec.Port })
	if len(others) >= api.MaxOpenPorts {
		return PortPermit{}, rules.TooLarge("port", "%d ports of the sandbox are open, which is the maximum", len(others)).
			WithHint("close one with `cloche port close`")
	}
	ttl, err := portTTL(spec.TTLMS, set)
	if err != nil {
		return PortPermit{}, err
	}
	return PortPermit{valid: true, ttl: ttl, grant: PortGrant{
		Port: spec.Port, Public: spec.Public, KeepHost: spec.KeepHost, Operator: caller.Operator,
	}}, nil
}

func portTTL(ms int64, set rules.Rules) (time.Duration, *api.Error) {
	most := time.Duration(set.Ports.MaxTTL)
	switch {
	case ms < 0 || ms > 10*rules.MaxTimeoutMS:
		return 0, api.Invalid("ttl_ms", "a port that is open for %d ms was asked for", ms).
			WithHint("0 is as long as the sandbox; at most %d, which is ten years", int64(10*rules.MaxTimeoutMS))
	case ms == 0:
		return most, nil
	case most > 0 && time.Duration(ms)*time.Millisecond > most:
		return 0, rules.Denied(rules.RulePortsMaxTTL, "ttl_ms", "a port can be open for %v, and %v was asked for", most, time.Duration(ms)*time.Millisecond).
			WithHint("ask for less, or leave ttl_ms out for the maximum; the rule is `%s`", rules.RulePortsMaxTTL)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// publicPorts reports whether ports of a tenant can be public.
func publicPorts(tenant string, operator bool, set rules.Rules) bool {
	return operator || tenant != "" && slices.Contains(set.Ports.Public, tenant) || slices.Contains(set.Ports.Public, "*")
}

// PortUse is a request to an open port.
type PortUse struct {
	// Tokens are the tokens that the request shows, from its header and its cookies.
	Tokens []string
	// Local is the address of this machine at which it arrived.
	Local netip.Addr
	// At is the present time.
	At time.Time
}

// PortUsePermit is a granted request to an open port. Only DecidePortUse returns a valid one.
type PortUsePermit struct{ grant PortGrant }

// Valid reports whether DecidePortUse returned p.
func (p PortUsePermit) Valid() bool { return p.grant.Port != 0 }

// Grant returns the open port.
func (p PortUsePermit) Grant() PortGrant { return p.grant }

// DecidePortUse grants a request to an open port of a tenant's sandbox, or returns why not. A nil
// grant is a port that is not open. The reasons are for the audit log only: a client gets one answer
// for all of them.
func DecidePortUse(grant *PortGrant, tenant string, use PortUse, set rules.Rules) (PortUsePermit, error) {
	if !set.Ports.IsEnabled() {
		return PortUsePermit{}, rules.Denied(rules.RulePorts, "", "the operator's rules allow no ports with a URL")
	}
	if !use.Local.Unmap().IsLoopback() && !set.Ports.Publish {
		return PortUsePermit{}, rules.Denied(rules.RulePortsPublish, "", "the operator's rules publish no ports beyond this machine")
	}
	// The comparison takes the same time whether or not the port is open.
	want := make([]byte, sha256.Size)
	if grant != nil && len(grant.Token) == sha256.Size {
		want = grant.Token
	}
	shown := 0
	for _, token := range use.Tokens {
		shown |= subtle.ConstantTimeCompare(PortToken(token), want)
	}
	switch {
	case grant == nil:
		return PortUsePermit{}, api.Errorf(api.CodeNotFound, "the port is not open")
	case grant.Expired(use.At):
		return PortUsePermit{}, api.Errorf(api.CodeNotFound, "the time of the port is over")
	case grant.Public && !publicPorts(tenant, grant.Operator, set):
		return PortUsePermit{}, rules.Denied(rules.RulePortsPublic, "", "the operator's rules no longer allow it to be public")
	case grant.Public || grant.Token != nil && shown == 1:
		return PortUsePermit{grant: *grant}, nil
	case len(use.Tokens) == 0:
		return PortUsePermit{}, api.Errorf(api.CodeUnauthenticated, "the request has no token")
	}
	return PortUsePermit{}, api.Errorf(api.CodeUnauthenticated, "the request has another token")
}

// AuthorizePublish checks whether the daemon can serve ports of sandboxes at an address of this
// machine.
func AuthorizePublish(at netip.Addr, set rules.Rules) error {
	if at.Unmap().IsLoopback() || set.Ports.Publish {
		return nil
	}
	return rules.Denied(rules.RulePortsPublish, "ports.listen", "other machines can reach %s, and no rule publishes ports of sandboxes", at).
		WithHint("listen at 127.0.0.1; the smallest rule that would allow it is `ports: {publish: true}`")
}
