package policy

import (
	"cmp"
	"errors"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Question is a request about which policy is asked.
type Question struct {
	// Verb is the operation. Empty is VerbCreate.
	Verb Verb
	// Request is for VerbCreate and VerbRun.
	Request Request
	// Exec is the program, for VerbRun, VerbExec and VerbStart. It can be nil.
	Exec *api.ExecRequest
	// Endpoint is for VerbAddEndpoint. Others are the sandbox's other endpoints, and Secrets says
	// that the values of secrets are available.
	Endpoint *api.Endpoint
	Others   []api.Endpoint
	Secrets  bool
	// Sandbox is the sandbox of the question, for operations on one. If it is nil, checks that
	// depend on it are skipped.
	Sandbox *Settings
}

// Explain decides a request with Decide, DecideExec and the Authorize functions, and reports each
// check. It grants nothing.
func Explain(q Question, caller Caller, set rules.Rules) api.PolicyAnswer {
	if q.Verb == "" {
		q.Verb = VerbCreate
	}
	x := &explanation{a: api.PolicyAnswer{
		Verb: string(q.Verb), Tenant: caller.Tenant, Operator: caller.Operator, Steps: []api.PolicyStep{},
	}}
	x.step("verb", AuthorizeVerb(caller, q.Verb))
	x.step("operator_only", AuthorizeHost(caller, q.Verb))
	settings := q.Sandbox
	if q.Verb == VerbCreate || q.Verb == VerbRun {
		settings = x.decide(q.Request, caller, set)
	} else if settings != nil {
		x.step("sandbox", Authorize(caller, q.Verb, settings.Ref, settings.Tenant, settings.Profile))
	}
	if q.Exec != nil && settings != nil && x.a.Refusal == nil {
		p, err := DecideExec(*q.Exec, *settings, caller, set)
		x.step("exec", err)
		x.a.Adjusted = append(x.a.Adjusted, p.Adjusted()...)
	}
	if q.Endpoint != nil && x.a.Refusal == nil {
		x.endpoint(q, settings, caller, set)
	}
	x.a.Allowed = x.a.Refusal == nil
	return x.a
}

type explanation struct{ a api.PolicyAnswer }

// endpoint judges an endpoint for an existing sandbox, or for an arbitrary sandbox of the caller.
func (x *explanation) endpoint(q Question, settings *Settings, caller Caller, set rules.Rules) {
	if settings == nil {
		settings = &Settings{Tenant: caller.Tenant, Profile: api.DefaultProfile}
	}
	p, err := DecideEndpoint(*q.Endpoint, q.Others, *settings, caller, set, q.Secrets)
	x.step("endpoint", err)
	if p.Valid() {
		x.a.Grants = append(x.a.Grants, api.PolicyGrant{Field: "endpoint.target", Rule: p.grant.Rule})
	}
}

// step records one check, unless an earlier one has refused.
func (x *explanation) step(name string, err error) {
	if x.a.Refusal != nil {
		return
	}
	x.a.Steps = append(x.a.Steps, api.PolicyStep{Name: name, Refused: err != nil})
	if e, ok := errors.AsType[*api.Error](err); ok {
		x.a.Refusal = new(*e).WithCause(nil)
	}
}

func (x *explanation) decide(req Request, caller Caller, set rules.Rules) *Settings {
	if x.a.Refusal != nil {
		return nil
	}
	d := begin(req, caller, set)
	permit, err := d.finish(func(name string, err *api.Error) {
		if err != nil {
			x.step(name, err)
			return
		}
		x.step(name, nil) // a nil *Error in an error interface would not be nil
	})
	x.a.Grants = d.grants
	if err != nil {
		return nil
	}
	x.a.Spec = new(permit.Spec())
	x.a.Adjusted, x.a.Unenforced = permit.Adjusted(), permit.Unenforced()
	return new(permit.Settings())
}

// because records the rule that allows a part of a request.
func (d *decision) because(field, rule string) {
	d.grants = append(d.grants, api.PolicyGrant{Field: field, Rule: rule})
}

// AssumedFacts returns facts of a machine on which everything that a request names exists, for an
// answer without a daemon. The second value lists these assumptions.
func AssumedFacts(spec api.SandboxSpec, caller Caller, set rules.Rules) (Facts, []string) {
	all := map[string]api.Enforcement{}
	for _, l := range rules.Limits() {
		if l.Enforced != "" {
			all[l.Enforced] = api.Enforcement{OK: true}
		}
	}
	all["egress"] = api.Enforcement{OK: true}
	f := Facts{
		Dirs: map[string]DirFact{}, HardQuota: api.Enforcement{OK: true},
		Engines: []api.EngineReport{{Name: "gvisor", Tier: api.TierGVisor, Usable: true, Enforces: all, SharesHostFS: true, Suspends: true}},
	}
	said := []string{
		"engine gvisor can run here and enforces every limit, and no other engine is there",
		"no other sandbox is live, and a named workspace is a new one",
		"where a name of an image leads to is not judged",
	}
	for _, p := range Paths(spec, caller, set) {
		f.Dirs[p] = DirFact{Exists: true, Real: p, Dir: true, OwnerUID: caller.UID}
	}
	if len(f.Dirs) > 0 {
		said = append(said, "every directory of the host exists, is no symlink, and belongs to the caller")
	}
	return f, said
}

// QuestionOf converts a question from the API. The caller of QuestionOf fills in the facts about
// the machine and the sandbox.
func QuestionOf(q api.PolicyQuestion) (Question, error) {
	out := Question{Verb: cmp.Or(Verb(api.CurrentVerb(q.Verb)), VerbCreate), Request: Request{Spec: q.Spec}, Exec: q.Exec, Endpoint: q.Endpoint}
	if !slices.Contains(Verbs(), out.Verb) {
		return out, api.Invalid("verb", "there is no verb %s", rules.Quote(q.Verb)).WithHint("the verbs are %s", verbList())
	}
	if q.Exec != nil && !slices.Contains([]Verb{VerbRun, VerbExec, VerbStart}, out.Verb) {
		return out, api.Invalid("exec", "%s runs no program", out.Verb).WithHint("leave exec out, or ask about %s, %s or %s", VerbRun, VerbExec, VerbStart)
	}
	if q.Endpoint != nil && out.Verb != VerbAddEndpoint {
		return out, api.Invalid("endpoint", "%s adds no endpoint", out.Verb).WithHint("ask about %s, or put it into spec", VerbAddEndpoint)
	}
	if q.Sandbox != "" && !out.OnSandbox() {
		return out, api.Invalid("sandbox", "%s makes its own sandbox", out.Verb).WithHint("say with spec what it is to be")
	}
	return out, nil
}

// OnSandbox reports whether the question is about an existing sandbox.
func (q Question) OnSandbox() bool { return q.Verb != VerbCreate && q.Verb != VerbRun }

// TenantCaller returns a caller of a tenant that is not the operator.
func TenantCaller(tenant string) (Caller, error) {
	if !api.ValidName(tenant) {
		return Caller{}, api.Invalid("tenant", "tenant %s is not valid", rules.Quote(tenant)).WithHint("%s", rules.NameHint())
	}
	return Caller{Tenant: tenant, UID: -1, Via: ViaTCP}, nil
}

// ExplainRules answers a question with only a policy file, and lists the necessary assumptions.
func ExplainRules(data []byte, q api.PolicyQuestion) (api.PolicyAnswer, error) {
	set, err := rules.ParseRules(data)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	ask, err := QuestionOf(q)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	if q.Key != "" || q.Sandbox != "" {
		return api.PolicyAnswer{}, api.Invalid("key", "a policy file knows neither keys nor sandboxes").WithHint("ask a daemon, or name a tenant")
	}
	caller := InProcessCaller(0)
	if q.Tenant != "" {
		if caller, err = TenantCaller(q.Tenant); err != nil {
			return api.PolicyAnswer{}, err
		}
	}
	var assumed []string
	if !ask.OnSandbox() {
		ask.Request.Facts, assumed = AssumedFacts(ask.Request.Spec, caller, set)
	}
	ask.Secrets = true
	a := Explain(ask, caller, set)
	a.Assumed = assumed
	return a, nil
}

// CheckFile finds all errors in a policy file, and warns of rules that have no effect because
// another rule takes precedence. The problems are in the order of the file, errors and warnings
// mixed. A file has no errors if and only if ParseRules accepts it.
func CheckFile(data []byte) []api.PolicyProblem {
	d := rules.ReadDocument(data)
	out := make([]api.PolicyProblem, 0, len(d.Errors))
	add := func(p rules.Problem, warning bool) {
		out = append(out, api.PolicyProblem{
			Line: p.Line, Column: p.Column, Warning: warning, Key: p.Err.Field, Message: p.Err.Message, Hint: p.Err.Hint,
		})
	}
	for _, p := range d.Errors {
		add(p, false)
	}
	if len(d.Errors) == 0 {
		shadowed(d.Rules, func(err *api.Error) { add(d.ProblemOf(err), true) })
	}
	slices.SortStableFunc(out, func(a, b api.PolicyProblem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return out
}

// InfoOf returns what a caller can learn about the rules before any other request.
func InfoOf(caller Caller, set rules.Rules) api.Info {
	text, _ := set.Names.EffectiveTemplate()
	profiles := slices.DeleteFunc(rules.Profiles(set), func(name string) bool { return !caller.Scope.permitsProfile(name) })
	out := api.Info{
		API: api.APIVersion, Tenant: caller.Tenant, Operator: caller.Operator,
		ScopeForced: set.Names.Force, ScopeEditable: !set.Names.Force, NameTemplate: text,
		Profiles: profiles, DefaultProfile: cmp.Or(set.Defaults.Profile, api.DefaultProfile),
		Limits: api.InfoLimits{
			NameBytes: api.MaxNameLen, ArgvBytes: maxArgvBytes, StdinBytes: maxStdin, OutputBytes: api.MaxMaxOutput,
			Sandboxes: quotaOf(set, caller.Tenant).Tenant,
		},
	}
	if rate, ok := RateOf(caller, set); ok {
		out.Limits.RequestsPerSecond, out.Limits.Burst = rate.PerSecond, rate.Burst
	}
	return out
}
