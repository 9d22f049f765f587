// Package policy decides what a caller gets: a request, the caller and the
// operator's rules go in; a Permit, without which nothing starts, or a refusal
// that names its rule comes out. It is pure: what must be known of the machine
// is gathered before and handed in as Facts.
package policy

import (
	"maps"
	"slices"

	"github.com/cloche-dev/cloche"
)

// Request is what is to be decided, with what was found out about it.
type Request struct {
	Spec  cloche.SandboxSpec
	Facts Facts
}

// Facts are what I/O found out before the decision. Paths says which host
// paths they must cover.
type Facts struct {
	// Dirs has one entry for each path that Paths returned.
	Dirs map[string]DirFact
	// Home is the real path of Cloche's home, which no sandbox may see; empty
	// when there is none.
	Home string
	// UserHome is the real path of the home directory of the user that Cloche
	// runs as; empty when it has none.
	UserHome string
	// Engines are the reports of all engines of this build; "auto" takes the
	// first that is usable and strong enough.
	Engines []cloche.EngineReport
	// Live counts the live sandboxes of all tenants, LiveTenant the caller's.
	Live       int
	LiveTenant int
}

// DirFact is what is known of one path of the host. The zero value is a path
// that does not exist or cannot be read.
type DirFact struct {
	Exists bool
	// Real is the path with every symlink resolved.
	Real string
	// Dir is true for a directory.
	Dir      bool
	OwnerUID int
	// Dev and Ino identify what was seen, so that whoever opens Real later can
	// tell that it is still the same. Policy only passes them on.
	Dev, Ino uint64
}

// decision is the work sheet of one Decide. Each step reads and completes it.
type decision struct {
	facts  Facts
	caller Caller
	rules  Rules
	// spec becomes what is granted.
	spec cloche.SandboxSpec
	// demanded holds the limits that were asked for or set by a rule.
	demanded   map[string]bool
	adjusted   []cloche.Adjustment
	unenforced []cloche.Unenforced
	profile    profile
	engine     cloche.EngineReport
	mounts     []HostDir
	workspace  *HostDir
}

// step is one named check. The name is the Rule of a denial that names no
// narrower one.
type step struct {
	name string
	do   func(*decision) *cloche.Error
}

// steps is every check, in order: first what the request can be, then what it
// may have, then what this machine can do. Later steps rely on earlier ones.
func steps() []step {
	return []step{
		{"enabled", checkEnabled},
		{"profile", checkProfile},
		{"locked", applyLocks},
		{"name", checkName},
		{"labels", checkLabels},
		{"env", checkEnv},
		{"user", checkUser},
		{"network", checkNetwork},
		{"workspace", checkWorkspace},
		{"cwd", checkCwd},
		{"mounts", checkMounts},
		{"files", checkFiles},
		{"limits", checkLimits},
		{"images", checkImage},
		{"host_directories", checkHostDirs},
		{"engine", checkEngine},
		{"enforcement", checkEnforcement},
		{"max_sandboxes", checkQuota},
	}
}

// Decide grants a request, with every default filled in, or says why not. The
// error is always a *cloche.Error. Decide changes none of its arguments, and
// the same arguments always give the same answer; deciding a granted spec again
// grants it unchanged.
func Decide(req Request, caller Caller, rules Rules) (Permit, error) {
	d := &decision{
		facts:    req.Facts,
		caller:   caller,
		rules:    rules,
		spec:     cloneSpec(req.Spec),
		demanded: map[string]bool{},
	}
	for _, s := range steps() {
		if err := s.do(d); err != nil {
			if err.Code == cloche.CodeDenied && err.Rule == "" {
				err.Rule = s.name
			}
			return Permit{}, err
		}
	}
	return Permit{
		valid:      true,
		spec:       d.spec,
		tenant:     caller.Tenant,
		engine:     d.engine.Name,
		tier:       d.engine.Tier,
		demanded:   slices.Sorted(maps.Keys(d.demanded)),
		adjusted:   d.adjusted,
		unenforced: d.unenforced,
		mounts:     d.mounts,
		workspace:  d.workspace,
		quota:      rules.quota(),
	}, nil
}

func (d *decision) adjust(field, asked, used, rule string) {
	d.adjusted = append(d.adjusted, cloche.Adjustment{Field: field, Asked: asked, Used: used, Rule: rule})
}

// cloneSpec copies everything that a step may change. The contents of files
// are shared: no step writes to them.
func cloneSpec(s cloche.SandboxSpec) cloche.SandboxSpec {
	s.Env = maps.Clone(s.Env)
	s.Labels = maps.Clone(s.Labels)
	s.Mounts = slices.Clone(s.Mounts)
	s.Files = slices.Clone(s.Files)
	if s.Workspace != nil {
		s.Workspace = new(*s.Workspace)
	}
	if s.ReadOnlyRoot != nil {
		s.ReadOnlyRoot = new(*s.ReadOnlyRoot)
	}
	return s
}

func checkEnabled(d *decision) *cloche.Error {
	if d.rules.IsEnabled() {
		return nil
	}
	e := cloche.Errorf(cloche.CodeDisabled, "creating sandboxes is switched off by the operator")
	return e.WithHint("the operator switches it on with `enabled: true` in the policy file")
}

func checkQuota(d *decision) *cloche.Error {
	full := func(rule string, have, limit int) *cloche.Error {
		e := cloche.Errorf(cloche.CodeNoCapacity, "no capacity for another sandbox: %d are live and %s is %d", have, rule, limit)
		e.Rule, e.Retryable, e.RetryAfterMS = rule, true, retryAfterMS
		return e.WithHint("remove one, or come again later")
	}
	q := d.rules.quota()
	// The total is not told to a tenant that is not itself at its limit.
	if q.Tenant > 0 && d.facts.LiveTenant >= q.Tenant {
		return full("max_sandboxes_per_tenant", d.facts.LiveTenant, q.Tenant)
	}
	if q.Total > 0 && d.facts.Live >= q.Total {
		if d.caller.Operator {
			return full("max_sandboxes", d.facts.Live, q.Total)
		}
		e := cloche.Errorf(cloche.CodeNoCapacity, "no capacity for another sandbox: the server is full")
		e.Rule, e.Retryable, e.RetryAfterMS = "max_sandboxes", true, retryAfterMS
		return e.WithHint("come again later")
	}
	return nil
}

// retryAfterMS is what a caller is told to wait when there is no capacity.
const retryAfterMS = 5000
