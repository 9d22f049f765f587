package core

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
)

// OpenPort opens a port of a sandbox as a URL. A port that is open already gets a new token and a
// new time, and the earlier token ends.
func (s *Service) OpenPort(ctx context.Context, caller Caller, ref string, spec api.PortSpec) (api.OpenedPort, error) {
	const verb = policy.VerbOpenPort
	d := details{"port": strconv.Itoa(spec.Port), "public": strconv.FormatBool(spec.Public), "ttl_ms": strconv.FormatInt(spec.TTLMS, 10)}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.OpenedPort{}, s.refused(ctx, caller, verb, "", d, err)
	}
	others, err := s.opts.Sandboxes.Ports.OpenPorts(caller, verb, sb.ID)
	var permit policy.PortPermit
	if err == nil {
		permit, err = policy.DecidePort(spec, others, caller, s.rules())
	}
	if err == nil && s.opts.PortOrigin == nil {
		err = noPortURLs()
	}
	if err != nil {
		return api.OpenedPort{}, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	var out api.OpenedPort
	err = s.recorded(ctx, caller, verb, sb.ID, d, func() error {
		origin, err := s.opts.PortOrigin(ctx, sb.ID, spec.Port)
		if err != nil {
			return err
		}
		opened, err := s.opts.Sandboxes.Ports.OpenPort(caller, sb.ID, permit)
		if err != nil {
			return err
		}
		out = api.OpenedPort{OpenPort: openPort(opened.Grant, origin), Token: opened.Token}
		out.AccessURL = out.URL
		if out.Token != "" {
			out.AccessURL += "?" + url.Values{api.PortTokenParameter: {out.Token}}.Encode()
		}
		return nil
	})
	return out, err
}

func noPortURLs() *api.Error {
	return api.Errorf(api.CodeUnsupported, "ports have a URL only while a daemon runs").WithHint("start one with `cloche serve`")
}

// openPort describes an open port.
func openPort(g policy.PortGrant, origin string) api.OpenPort {
	p := api.OpenPort{Port: g.Port, Public: g.Public, KeepHost: g.KeepHost, URL: origin + "/", CreatedAt: g.CreatedAt}
	if !g.ExpiresAt.IsZero() {
		p.ExpiresAt = new(g.ExpiresAt)
	}
	return p
}

// OpenPorts returns the open ports of a sandbox.
func (s *Service) OpenPorts(ctx context.Context, caller Caller, ref string) (api.PortList, error) {
	const verb = policy.VerbPorts
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.PortList{}, s.refused(ctx, caller, verb, "", nil, err)
	}
	list := api.PortList{Ports: []api.OpenPort{}}
	grants, err := s.opts.Sandboxes.Ports.OpenPorts(caller, verb, sb.ID)
	for _, g := range grants {
		var origin string
		if origin, err = s.opts.PortOrigin(ctx, sb.ID, g.Port); err != nil {
			break
		}
		list.Ports = append(list.Ports, openPort(g, origin))
	}
	return list, s.done(ctx, caller, verb, sb.ID, nil, err)
}

// ClosePort closes an open port of a sandbox, and ends the connections to it.
func (s *Service) ClosePort(ctx context.Context, caller Caller, ref string, port int) error {
	const verb = policy.VerbClosePort
	d := details{"port": strconv.Itoa(port)}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return s.refused(ctx, caller, verb, "", d, err)
	}
	return s.done(ctx, caller, verb, sb.ID, d, s.opts.Sandboxes.Ports.ClosePort(caller, sb.ID, port))
}

// AuthorizePublish checks whether ports of sandboxes can be served at an address of this machine.
func (s *Service) AuthorizePublish(at netip.Addr) error {
	return policy.AuthorizePublish(at, s.rules())
}

// PortRequest is a request to the URL of a port.
type PortRequest struct {
	// Sandbox is the ID in the URL, and empty for a request that names no sandbox.
	Sandbox string
	Port    int
	// Tokens are the tokens that the request shows.
	Tokens []string
	// Exchange means that the request exchanges its token for a cookie.
	Exchange bool
	// Local and Remote are the addresses of its connection.
	Local, Remote netip.AddrPort
}

// PortUse is a granted use of an open port.
type PortUse struct {
	Public, KeepHost bool
	// ExpiresAt is zero if the port stays open until it is closed or the sandbox ends.
	ExpiresAt time.Time
	// Live ends when the port is closed, opened again or expires.
	Live context.Context //nolint:containedctx // it is the life of the port
	// Dial connects to the port. The end of its context ends only the call.
	Dial func(ctx context.Context) (net.Conn, error)
}

// UsePort decides whether a request can use an open port. The error is the same for a port that is
// not open and for one that the request may not use; the audit log has the reason.
func (s *Service) UsePort(ctx context.Context, r PortRequest) (*PortUse, error) {
	grant, sb := s.opts.Sandboxes.Ports.PortGrant(r.Sandbox, r.Port)
	permit, err := policy.DecidePortUse(grant, sb.Tenant, policy.PortUse{Tokens: r.Tokens, Local: r.Local.Addr(), At: time.Now()}, s.rules())
	if err != nil {
		s.refusedPort(ctx, r, sb, err)
		return nil, api.Errorf(api.CodeNotFound, "no open port has this address, or the request has no access to it")
	}
	use, err := s.opts.Sandboxes.Ports.UsePort(sb.ID, permit)
	if err != nil {
		return nil, err
	}
	if r.Exchange {
		e := portEvent(ctx, r, sb)
		e.Outcome = audit.Done
		if err := s.record(ctx, e); err != nil {
			return nil, err
		}
	}
	g := use.Grant()
	return &PortUse{Public: g.Public, KeepHost: g.KeepHost, ExpiresAt: g.ExpiresAt, Live: use.Live(), Dial: use.Dial}, nil
}

func portEvent(ctx context.Context, r PortRequest, sb api.Sandbox) audit.Event {
	e := eventOf(ctx, Caller{}, audit.VerbUsePort, sb.ID, details{"port": strconv.Itoa(r.Port), "remote": r.Remote.String()})
	e.Tenant, e.Caller = sb.Tenant, "url"
	return e
}

// refusedPort records a refused request. A flood of them gives one record a second for sandboxes that
// exist, and one for others.
func (s *Service) refusedPort(ctx context.Context, r PortRequest, sb api.Sandbox, why error) {
	notTold, ok := s.ports.tell(sb.ID != "", time.Now())
	if !ok {
		return
	}
	e := portEvent(ctx, r, sb)
	e.Outcome, e.Code = audit.Refused, string(api.CodeOf(why))
	if err, ok := errors.AsType[*api.Error](why); ok {
		e.Details["reason"], e.Rule = err.Message, err.Rule
	}
	if notTold > 0 {
		e.Details["not_told"] = strconv.FormatInt(notTold, 10)
	}
	if err := s.record(context.WithoutCancel(ctx), e); err != nil {
		s.log.Error("the audit log cannot be written", "verb", e.Verb, "error", err)
	}
}

// portRefusals bound the records of refused requests. They are safe for concurrent use.
type portRefusals struct {
	mu             sync.Mutex
	known, unknown refusalCount
}

type refusalCount struct {
	last time.Time
	more int64
}

// refusalEvery is the time from one record to the next.
const refusalEvery = time.Second

// tell reports whether a refusal is recorded, and how many before it were not.
func (p *portRefusals) tell(known bool, now time.Time) (notTold int64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.unknown
	if known {
		c = &p.known
	}
	if !c.last.IsZero() && now.Sub(c.last) < refusalEvery {
		c.more++
		return 0, false
	}
	notTold, c.last, c.more = c.more, now, 0
	return notTold, true
}
