package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Limits of an endpoint.
const (
	maxEndpointEnv     = 64
	maxEndpointList    = 64
	maxEndpointConns   = 1024
	maxEndpointMS      = 24 * 60 * 60 * 1000
	maxEndpointBytes   = 1 << 40
	maxEndpointHeaders = 32
	minKeepAliveMS     = 100
	minEndpointRate    = 0.001
	maxEndpointRate    = 1_000_000
	maxHeaderValue     = 4096
	// agentPort is the agent's own port at 127.0.0.1 inside the sandbox.
	agentPort = 1
)

// EndpointGrant is a granted endpoint. It is plain data, so that the serving component can keep it
// over a restart.
type EndpointGrant struct {
	Spec api.Endpoint `json:"spec"`
	// Ranges are the non-public address ranges in which the target can be.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// Rule is the rule that grants it.
	Rule string `json:"rule"`
	// Auto means that the port is chosen when the listener is created, and is then stored in
	// Spec.
	Auto bool `json:"auto,omitempty"`
}

// Endpoints returns the granted endpoints, in the order of Spec.Endpoints.
func (p Permit) Endpoints() []EndpointGrant { return slices.Clone(p.endpoints) }

// EndpointPermit grants one endpoint of an existing sandbox. Only DecideEndpoint returns a valid
// one.
type EndpointPermit struct {
	valid bool
	grant EndpointGrant
}

// Valid reports whether DecideEndpoint returned p.
func (p EndpointPermit) Valid() bool { return p.valid }

// Grant returns what was granted.
func (p EndpointPermit) Grant() EndpointGrant { return p.grant }

// DecideEndpoint grants an endpoint in a sandbox with these settings and other endpoints, or
// returns why not. The error is always a *api.Error. secrets says that the values of secrets are
// available.
func DecideEndpoint(e api.Endpoint, others []api.Endpoint, in Settings, caller Caller, set rules.Rules, secrets bool) (EndpointPermit, error) {
	if err := Authorize(caller, VerbAddEndpoint, in.Ref, in.Tenant, in.Profile); err != nil {
		return EndpointPermit{}, err
	}
	e = cloneEndpoint(e)
	if err := cleanEndpoint("", &e); err != nil {
		return EndpointPermit{}, err
	}
	if err := distinct("", e, others); err != nil {
		return EndpointPermit{}, err
	}
	if len(others) >= api.MaxEndpoints {
		return EndpointPermit{}, rules.TooLarge("", "the sandbox has %d endpoints", len(others)).WithHint("at most %d", api.MaxEndpoints)
	}
	if err := checkSecretHeaders("", e, in.Profile, caller, set, secrets); err != nil {
		return EndpointPermit{}, err
	}
	grant, err := grantEndpoint("", e, caller, set)
	if err != nil {
		if err.Rule == "" {
			err.Rule = "endpoints"
		}
		return EndpointPermit{}, err
	}
	return EndpointPermit{valid: true, grant: grant}, nil
}

func cloneEndpoint(e api.Endpoint) api.Endpoint {
	e.Phases, e.Presets, e.Env = slices.Clone(e.Phases), slices.Clone(e.Presets), maps.Clone(e.Env)
	if e.Replay != nil {
		e.Replay = new(*e.Replay)
	}
	if e.Audit != nil {
		e.Audit = new(*e.Audit)
		e.Audit.RedactHeaders = slices.Clone(e.Audit.RedactHeaders)
	}
	if e.HTTP != nil {
		h := *e.HTTP
		h.Methods, h.Paths, h.PassHeaders = slices.Clone(h.Methods), slices.Clone(h.Paths), slices.Clone(h.PassHeaders)
		h.SetHeaders, h.SecretHeaders = maps.Clone(h.SetHeaders), maps.Clone(h.SecretHeaders)
		e.HTTP = &h
	}
	return e
}

// checkEndpoints is a step of Decide.
func checkEndpoints(d *decision) *api.Error {
	if n := len(d.spec.Endpoints); n > api.MaxEndpoints {
		return rules.TooLarge("endpoints", "there are %d endpoints", n).WithHint("at most %d", api.MaxEndpoints)
	}
	for i := range d.spec.Endpoints {
		e, field := &d.spec.Endpoints[i], rules.ElementAt("endpoints", i)
		if err := cleanEndpoint(field, e); err != nil {
			return err
		}
		if err := distinct(field, *e, d.spec.Endpoints[:i]); err != nil {
			return err
		}
		if err := checkSecretHeaders(field, *e, d.profile.Name, d.caller, d.rules, d.facts.Secrets); err != nil {
			return err
		}
		grant, err := grantEndpoint(field, *e, d.caller, d.rules)
		if err != nil {
			return err
		}
		*e = grant.Spec
		d.because(field+".target", grant.Rule)
		d.endpoints = append(d.endpoints, grant)
	}
	return nil
}

// under returns the field name of a part of an endpoint. field is empty if the endpoint is the
// request.
func under(field, part string) string {
	return strings.TrimPrefix(field+"."+part, ".")
}

// cleanEndpoint validates an endpoint and converts it to its canonical form.
func cleanEndpoint(field string, e *api.Endpoint) *api.Error {
	if !api.ValidEndpointName(e.Name) {
		return api.Invalid(under(field, "name"), "endpoint name %s is not valid", rules.Quote(e.Name)).
			WithHint("use 1 to 63 of a-z, 0-9 and '-', beginning with a letter")
	}
	for _, check := range []func(string, *api.Endpoint) *api.Error{
		cleanListen, cleanTargetURL, cleanRecording, cleanPhases, cleanEndpointEnv, checkSocketEnv, cleanEndpointHTTP, cleanEndpointAudit, checkEndpointLimits,
	} {
		if err := check(field, e); err != nil {
			return err
		}
	}
	return nil
}

func cleanListen(field string, e *api.Endpoint) *api.Error {
	field = under(field, "listen")
	e.Listen = cmp.Or(e.Listen, api.DefaultEndpointListen)
	if socket, ok := strings.CutPrefix(e.Listen, "unix:"); ok {
		return cleanListenSocket(field, strings.TrimPrefix(socket, "//"), e)
	}
	if e.ListenUser != "" {
		field := field + "_user"
		return api.Invalid(field, "%s is for a socket, and endpoint %s has a port", field, rules.Quote(e.Name)).WithHint("leave it out, or let it listen at unix:///SOCKET")
	}
	if e.Listen == api.EndpointListenAuto {
		return nil
	}
	if port, ok := strings.CutPrefix(e.Listen, "localhost:"); ok {
		e.Listen = "127.0.0.1:" + port
	}
	port, ok := strings.CutPrefix(e.Listen, "127.0.0.1:")
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return api.Invalid(field, "%s %s is not an address of an endpoint", field, rules.Quote(e.Listen)).
			WithHint("write 127.0.0.1:PORT, such as %s; localhost and [::1] reach it too; or %s, or unix:///SOCKET", api.DefaultEndpointListen, api.EndpointListenAuto)
	}
	if n == agentPort {
		return api.Invalid(field, "port %d inside is taken by the sandbox itself", agentPort).WithHint("choose another")
	}
	return nil
}

// distinct refuses what another endpoint of the sandbox already uses.
func distinct(field string, e api.Endpoint, others []api.Endpoint) *api.Error {
	for _, o := range others {
		if o.Name == e.Name {
			err := api.Errorf(api.CodeExists, "there are two endpoints named %s", rules.Quote(e.Name)).WithHint("give each a name of its own")
			err.Field = under(field, "name")
			return err
		}
		if o.Port() == e.Port() && e.Port() != 0 || o.Socket() == e.Socket() && e.Socket() != "" {
			err := api.Errorf(api.CodeExists, "endpoint %s listens on %s too", rules.Quote(o.Name), o.Listen).WithHint("give each an address of its own")
			err.Field = under(field, "listen")
			return err
		}
	}
	return nil
}

func cleanTargetURL(field string, e *api.Endpoint) *api.Error {
	field = under(field, "target")
	t, err := rules.ParseTarget(e.Target)
	if t.Scheme == rules.SchemeReplay && t.Base == "" {
		err = "names no recording"
	}
	if err != "" {
		return api.Invalid(field, "%s %s is no target: it %s", field, rules.Quote(e.Target), err).WithHint(rules.TargetHint)
	}
	e.Target = t.String()
	return nil
}

func cleanPhases(field string, e *api.Endpoint) *api.Error {
	all := []string{api.PhaseSetup, api.PhasePostSetup, api.PhaseRun}
	if len(e.Phases) == 0 {
		e.Phases = all[1:]
		return nil
	}
	for i, p := range e.Phases {
		if !slices.Contains(all, p) || slices.Contains(e.Phases[:i], p) {
			one := rules.ElementAt(under(field, "phases"), i)
			return api.Invalid(one, "%s %s is not a phase, or is a duplicate", one, rules.Quote(p)).WithHint("write some of %s", strings.Join(all, ", "))
		}
	}
	return nil
}

func cleanEndpointEnv(field string, e *api.Endpoint) *api.Error {
	presets := api.EndpointPresets()
	for i, p := range e.Presets {
		if _, ok := presets[p]; !ok || slices.Contains(e.Presets[:i], p) {
			one := rules.ElementAt(under(field, "presets"), i)
			return api.Invalid(one, "%s %s is not a preset, or is a duplicate", one, rules.Quote(p)).
				WithHint("write some of %s", strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
		}
	}
	field = under(field, "env")
	if n := len(e.Env); n > maxEndpointEnv {
		return rules.TooLarge(field, "%s has %d variables", field, n).WithHint("at most %d", maxEndpointEnv)
	}
	return validEnv(field, e.Env)
}

func checkEndpointLimits(field string, e *api.Endpoint) *api.Error {
	l := e.Limits
	for _, b := range []struct {
		key       string
		n, most   int64
		otherwise string
	}{
		{"connections", int64(l.Connections), maxEndpointConns, "256"},
		{"active", int64(l.Active), maxEndpointConns, "64"},
		{"request_bytes", l.RequestBytes, maxEndpointBytes, "64 MiB"},
		{"response_bytes", l.ResponseBytes, maxEndpointBytes, "no bound"},
		{"bytes_per_second", l.BytesPerSecond, maxEndpointBytes, "no bound"},
		{"connect_ms", l.ConnectMS, maxEndpointMS, "5 s"},
		{"header_ms", l.HeaderMS, maxEndpointMS, "5 min"},
		{"idle_ms", l.IdleMS, maxEndpointMS, "5 min"},
	} {
		if one := under(field, "limits."+b.key); b.n < 0 || b.n > b.most {
			return api.Invalid(one, "%s is %d", one, b.n).WithHint("1 to %d; 0 is %s", b.most, b.otherwise)
		}
	}
	// In this form, the comparison also refuses NaN.
	if n := l.RequestsPerSecond; n != 0 && !(n >= minEndpointRate && n <= maxEndpointRate) {
		one := under(field, "limits.requests_per_second")
		return api.Invalid(one, "%s is %g", one, n).WithHint("%g to %d; 0 is no bound", minEndpointRate, maxEndpointRate)
	}
	return nil
}

// checkSecretHeaders judges the secrets that an endpoint adds: whether the caller can use them, and
// whether they can be sent to the target.
func checkSecretHeaders(field string, e api.Endpoint, profile string, caller Caller, set rules.Rules, available bool) *api.Error {
	if e.HTTP == nil || len(e.HTTP.SecretHeaders) == 0 {
		return nil
	}
	field = under(field, "http.secret_headers")
	if !available {
		return unsupported(field, "secrets are not available here, and the endpoint needs some").
			WithHint("leave secret_headers out, and let the service behind the endpoint add them")
	}
	for _, header := range slices.Sorted(maps.Keys(e.HTTP.SecretHeaders)) {
		name := e.HTTP.SecretHeaders[header]
		i := slices.IndexFunc(set.Secrets, func(r rules.SecretRule) bool { return r.Name == name && secretIsFor(r, caller) })
		if i < 0 || len(set.Secrets[i].Profiles) > 0 && !slices.Contains(set.Secrets[i].Profiles, profile) {
			return rules.Denied("secrets", field, "there is no secret %s that this caller may use in such a sandbox", rules.Quote(name)).
				WithHint("`cloche secret ls` lists those that there are")
		}
		r := set.Secrets[i]
		if len(r.Headers) > 0 && !slices.ContainsFunc(r.Headers, func(h string) bool { return strings.EqualFold(h, header) }) {
			return rules.Denied(rules.KeyAt("secrets", name)+".headers", field, "secret %s is not for the header %s", rules.Quote(name), rules.Quote(header)).
				WithHint("it is for %s", strings.Join(r.Headers, ", "))
		}
		if !secretGoesTo(r, e.Target, caller) {
			return rules.Denied(rules.KeyAt("secrets", name)+".hosts", field, "secret %s may not go to %s", rules.Quote(name), rules.Quote(e.Target)).
				WithHint("it may go to %s; one for a service of this machine is the operator's to use", strings.Join(r.CanonicalHosts(), ", "))
		}
	}
	return nil
}

// goesTo reports whether a secret can be sent to a target. Only the operator can send it to a
// target without a name of its own, such as an address of this machine. A target that a client
// serves gets none.
func secretGoesTo(r rules.SecretRule, target string, caller Caller) bool {
	t, wrong := rules.ParseTarget(target)
	if wrong == "" && t.IsSocket() {
		return caller.Operator
	}
	if wrong != "" || t.Host == "" {
		return false
	}
	if _, err := netip.ParseAddr(t.Host); err == nil || t.Host == "localhost" {
		return caller.Operator
	}
	for _, h := range r.CanonicalHosts() {
		name, port, said := strings.Cut(h, ":")
		if !said {
			port = "443"
		}
		below, wide := strings.CutPrefix(name, "*")
		if port == strconv.Itoa(int(t.Port)) && (name == t.Host || wide && strings.HasSuffix(t.Host, below)) {
			return true
		}
	}
	return false
}

// grantEndpoint finds the rule that allows a target, and where the target can be.
func grantEndpoint(field string, e api.Endpoint, caller Caller, set rules.Rules) (EndpointGrant, *api.Error) {
	t, _ := rules.ParseTarget(e.Target)
	g := EndpointGrant{Spec: e, Ranges: ownRanges(t), Auto: e.Listen == api.EndpointListenAuto}
	record, capture := caller.Operator, 0
	floor := 0 // the weakest filter of the rules that allow the target
	for i, r := range set.Endpoints {
		allowed, wrong := rules.ParseTarget(r.Target)
		if wrong != "" || !allowed.Holds(t) || len(r.Tenants) > 0 && !slices.Contains(r.Tenants, caller.Tenant) {
			continue
		}
		for _, s := range r.At {
			if p, err := netip.ParsePrefix(s); err == nil {
				g.Ranges = append(g.Ranges, p.Masked())
			}
		}
		if strength := rules.FilterStrength(r.BodyFilter); g.Rule == "" || strength < floor {
			floor = strength
		}
		g.Rule = cmp.Or(g.Rule, rules.ElementAt("endpoints", i))
		record, capture = record || r.Record, max(capture, rules.CaptureRank(r.Audit))
	}
	if caller.Operator {
		g.Rule = cmp.Or(g.Rule, rules.ByOperator)
		if t.Host != "" && len(g.Ranges) == 0 {
			g.Ranges = privateRanges()
		}
	}
	if g.Rule != "" {
		if caller.Operator {
			return g, nil
		}
		if e.Record != "" && !record {
			return g, rules.Denied(g.Rule+".record", under(field, "record"), "what goes to %s may not be recorded", rules.Quote(e.Target)).
				WithHint("the operator allows it with `record: true` in the rule of the target")
		}
		if e.Audit != nil && rules.CaptureRank(e.Audit.Capture) > capture {
			return g, rules.Denied(g.Rule+".audit", under(field, "audit.capture"), "%s of what goes to %s may not go on record", e.Audit.Capture, rules.Quote(e.Target)).
				WithHint("the operator allows it with `audit: %s` in the rule of the target", e.Audit.Capture)
		}
		err := holdFilter(field, &g, floor)
		return g, err
	}
	return g, rules.Denied("", under(field, "target"), "target %s is not one that the operator allows", rules.Quote(e.Target)).
		WithHint("the operator allows it with `endpoints: [{target: %s, tenants: [%s]}]` in the policy file", rules.Quote(e.Target), rules.YamlString(caller.Tenant))
}

// ownRanges returns where a target can be according to its own text.
func ownRanges(t rules.EndpointTarget) []netip.Prefix {
	if t.Host == "localhost" {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8), netip.PrefixFrom(netip.IPv6Loopback(), 128)}
	}
	if a, err := netip.ParseAddr(t.Host); err == nil && rule.Class(a) != "" {
		return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	}
	return nil
}

// privateRanges returns where the operator's own names can be. The loopback is only for targets
// that name it.
func privateRanges() []netip.Prefix {
	v4 := func(a, b byte, bits int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b}), bits) }
	return []netip.Prefix{v4(10, 0, 8), v4(172, 16, 12), v4(192, 168, 16), v4(100, 64, 10), netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfc}), 7)}
}
