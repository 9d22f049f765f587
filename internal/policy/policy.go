// Package policy decides requests. From a request, its caller and the operator's rules, [Decide]
// returns a [Permit], without which nothing starts, or a refusal that names its rule. Other
// operations have their own functions, such as [DecideExec] and [Authorize].
//
// The package does no I/O. What it must know about the machine is collected first and passed in as
// [Facts].
package policy

import (
	"cmp"
	"maps"
	"reflect"
	"runtime"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/egress"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Request is a request to decide, with the facts about it.
type Request struct {
	Spec  api.SandboxSpec
	Facts Facts
	// Connected means that a connection holds the sandbox.
	Connected bool
	// Setup is the egress during setup, before the egress of Spec takes effect. Nil means that
	// both are the same.
	Setup *api.EgressPolicy
}

// Facts are what was found out before the decision. Paths returns which host paths they must cover.
type Facts struct {
	// Dirs has one entry for each path that Paths returned.
	Dirs map[string]DirFact
	// Mounts are the mounts of the host, in the order of mounting. It is empty if the system has
	// no such list.
	Mounts []HostMount
	// Recursive means that mounts below a directory are visible together with it.
	Recursive bool
	// Home is the real path of Cloche's home directory, which no sandbox may see. It may be
	// empty.
	Home string
	// UserHome is the real path of the home directory of the user that runs Cloche. It is empty
	// if the user has none.
	UserHome string
	// SocketDirs are directories with sockets that would give a sandbox more rights: Cloche's own
	// and those of engine daemons.
	SocketDirs []string
	// Engines are the reports of all engines of this build. "auto" uses the first one that is
	// usable and strong enough.
	Engines []api.EngineReport
	// Image is what is stored of the image that ImageOf returns.
	Image ImageFact
	// Skills are the skills that the request names or, if it requests all, those of the caller's
	// tenant, by name.
	Skills []SkillFact
	// Windows means that the host runs Windows. Dirs has what WindowsPaths returned, and Real is
	// in that host's syntax.
	Windows bool
	// HardQuota says whether the kernel can enforce size limits of workspaces here.
	HardQuota api.Enforcement
	// Projects means that it does so with project quotas of the home directory's filesystem, at
	// negligible cost.
	Projects bool
	// Workspace is the named workspace of the request, if it exists.
	Workspace *api.WorkspaceInfo
	// Snapshot is the snapshot that Spec.Snapshot names, if it exists. Policy decides whether the
	// caller sees it.
	Snapshot *api.Snapshot
	// Secrets means that the values of secrets are available here.
	Secrets bool
	// NoLayers says why layered workspaces are not possible here. It is nil if they are.
	NoLayers *api.Error
	// NoApproval says why connections cannot be held for approval here. It is nil if they can.
	NoApproval *api.Error
	// NoInterception says why TLS cannot be intercepted here. It is nil if it can.
	NoInterception *api.Error
	// Live counts the live sandboxes of all tenants, and LiveTenant those of the caller's tenant.
	Live       int
	LiveTenant int
}

// DirFact is what is known about one path of the host. The zero value is a path that does not exist
// or cannot be read.
type DirFact struct {
	Exists bool
	// Real is the path with every symlink resolved. For a path that does not exist, it is the
	// deepest existing directory above it, and the other fields describe that directory.
	Real string
	// Missing is the part below Real that does not exist, if all of it can be created.
	Missing string
	// Dir is true for a directory.
	Dir      bool
	OwnerUID int
	// Dev and Ino identify what was examined, so that the code that opens Real later can check
	// that it is still the same. Policy only passes them on.
	Dev, Ino uint64
	// Mount is the ID of the mount through which Real is visible, or 0 if it is not known.
	Mount int
	// Private lists what was found in the directory and is hidden from the sandbox.
	Private []PrivatePath
}

// decision is the state of one Decide. Each step reads and completes it.
type decision struct {
	facts  Facts
	held   bool
	caller Caller
	rules  rules.Rules
	// spec becomes what is granted.
	spec api.SandboxSpec
	// demanded holds the limits that were requested or set by a rule.
	demanded   map[string]bool
	adjusted   []api.Adjustment
	unenforced []api.Unenforced
	profile    rules.Profile
	engine     api.EngineReport
	mounts     []HostDir
	skills     []HostDir
	workspace  *HostDir
	snapshot   *api.Snapshot
	granted    WorkspaceGrant
	// rootBytes is the root's share of the disk.
	rootBytes int64
	image     ImageGrant
	grants    []api.PolicyGrant
	// Cached results of cleanBlocked, namedRoots, realRoots and moved.
	allBlocked, allNamed, allReal []string
	allMoved                      map[string]string
	// free are built-in blocked paths that are not blocked here.
	free []string
	// cwdOpen means that neither the request nor its own workspace sets the working directory.
	cwdOpen bool
	egress  *EgressGrant
	// setup is Request.Setup, and later what is granted of it.
	setup *api.EgressPolicy
	first *EgressGrant
	// endpoints are in the order of the spec.
	endpoints []EndpointGrant
	secrets   []SecretGrant
}

// step is one named check. Its name is the Rule of a denial without a more specific rule.
type step struct {
	name string
	do   func(*decision) *api.Error
}

// steps returns every check in order: first whether the request is valid, then what it is allowed,
// then what this machine can do. Later steps rely on earlier ones.
func steps() []step {
	return []step{
		{"enabled", checkEnabled},
		{"profile", checkProfile},
		{"key", checkScope},
		{"locked", applyLocks},
		{"name", checkName},
		{ruleKey, checkKey},
		{"labels", checkLabels},
		{"env", checkEnv},
		{"user", checkUser},
		{"network", checkNetwork},
		{"endpoints", checkEndpoints},
		{"egress", checkEgress},
		{"setup_egress", checkSetupEgress},
		{"workspace", checkWorkspace},
		{"snapshot", checkSnapshot},
		{"cwd", checkCwd},
		{"mounts", checkMounts},
		{"rules", checkPathRules},
		{"files", checkFiles},
		{"endpoints", checkSocketPlaces},
		{"limits", checkLimits},
		{"lease", checkLease},
		{"on_expiry", checkExpiry},
		{"images", checkImage},
		{"host_directories", checkHostDirs},
		{"skills", checkSkills},
		{"reach", checkReach},
		{"engine", checkEngine},
		{"suspend", checkSuspends},
		{"host_files", checkHostFiles},
		{"egress_link", checkLink},
		{"globs", checkGlobs},
		{"enforcement", checkEnforcement},
		{"mount_sockets", checkMountSockets},
		{"kernel", checkKernel},
		{"workspace_quota", checkWorkspaceBound},
		{"disk", checkRootShare},
		{"workspace_layered", checkLayered},
		{"workspace_unbounded", checkUnbounded},
		{"snapshot_size", checkSnapshotFits},
		{"secrets", checkSecrets},
		{"trust", checkTrust},
		{"max_sandboxes", checkQuota},
	}
}

// Decide grants a request, with defaults filled in, or returns why not. The error is always a
// *api.Error. Decide changes none of its arguments, and the same arguments always give the same
// answer. Deciding a granted spec again grants it unchanged.
func Decide(req Request, caller Caller, set rules.Rules) (Permit, error) {
	p, err := begin(req, caller, set).finish(func(string, *api.Error) {})
	if err != nil {
		return Permit{}, err
	}
	return p, nil
}

// begin returns the initial state of one decision.
func begin(req Request, caller Caller, set rules.Rules) *decision {
	return &decision{
		facts:    req.Facts,
		held:     req.Connected,
		setup:    req.Setup,
		caller:   caller,
		rules:    set,
		spec:     cloneSpec(req.Spec),
		demanded: map[string]bool{},
	}
}

// finish runs the steps until one refuses, and calls done for each.
func (d *decision) finish(done func(step string, err *api.Error)) (Permit, *api.Error) {
	for _, s := range steps() {
		err := s.do(d)
		if err != nil && err.Code == api.CodeDenied && err.Rule == "" {
			err.Rule = s.name
		}
		if done(s.name, err); err != nil {
			return Permit{}, err
		}
	}
	return Permit{
		valid:      true,
		spec:       d.spec,
		tenant:     d.caller.Tenant,
		creator:    Caller{Tenant: d.caller.Tenant, Operator: d.caller.Operator, UID: d.caller.UID},
		engine:     d.engine.Name,
		tier:       d.engine.Tier,
		demanded:   slices.Sorted(maps.Keys(d.demanded)),
		adjusted:   d.adjusted,
		unenforced: d.unenforced,
		mounts:     d.mounts,
		skills:     d.skills,
		workspace:  d.workspace,
		snapshot:   d.snapshot,
		granted:    d.granted,
		rootBytes:  d.rootBytes,
		pool:       d.profile.Pool,
		image:      d.image,
		cwdOpen:    d.cwdOpen,
		secrets:    d.secrets,
		quota:      quotaOf(d.rules, d.caller.Tenant),
		egress:     d.egress,
		first:      d.first,
		endpoints:  d.endpoints,
	}, nil
}

func (d *decision) adjust(field, asked, used, rule string) {
	d.adjusted = append(d.adjusted, api.Adjustment{Field: field, Asked: asked, Used: used, Rule: rule})
}

// cloneSpec copies everything that a step may change. The contents of files are shared, because no
// step writes to them.
func cloneSpec(s api.SandboxSpec) api.SandboxSpec {
	s.Env = maps.Clone(s.Env)
	s.Labels = maps.Clone(s.Labels)
	s.Mounts = slices.Clone(s.Mounts)
	s.Skills = slices.Clone(s.Skills)
	s.Files = slices.Clone(s.Files)
	s.Endpoints = slices.Clone(s.Endpoints)
	for i := range s.Endpoints {
		s.Endpoints[i] = cloneEndpoint(s.Endpoints[i])
	}
	s.Secrets = slices.Clone(s.Secrets)
	for i := range s.Mounts {
		s.Mounts[i].Rules, s.Mounts[i].Globs = slices.Clone(s.Mounts[i].Rules), slices.Clone(s.Mounts[i].Globs)
	}
	s.Identity = cloneIdentity(s.Identity)
	if s.Workspace != nil {
		s.Workspace = new(*s.Workspace)
		s.Workspace.Rules, s.Workspace.Globs = slices.Clone(s.Workspace.Rules), slices.Clone(s.Workspace.Globs)
	}
	if s.Egress != nil {
		s.Egress = new(egress.Clone(*s.Egress))
	}
	if s.Persistent != nil {
		s.Persistent = new(*s.Persistent)
	}
	if s.ReadOnlyRoot != nil {
		s.ReadOnlyRoot = new(*s.ReadOnlyRoot)
	}
	return s
}

func checkEnabled(d *decision) *api.Error {
	if d.rules.IsEnabled() {
		return nil
	}
	e := api.Errorf(api.CodeDisabled, "creating sandboxes is switched off by the operator")
	return e.WithHint("the operator switches it on with `enabled: true` in the policy file")
}

func checkQuota(d *decision) *api.Error {
	return quotaOf(d.rules, d.caller.Tenant).check(d.facts.LiveTenant, d.facts.Live, d.caller.Operator)
}

// Admission limits how many sandboxes are created at once. The queue is fair: it serves tenants in
// turn, so that a burst of one tenant does not delay the others.
type Admission struct {
	// Starting is how many sandboxes are created at once; 0 is DefaultStarting.
	Starting int
	// Queued is how many creations can wait; 0 is DefaultQueued. One tenant can use half of the
	// queue.
	Queued int
}

// DefaultQueued is the default number of creations that can wait.
const DefaultQueued = 2048

// DefaultStarting returns the default number of sandboxes that are created at once. Creating a
// sandbox mostly needs CPU time.
func DefaultStarting() int {
	const least, most = 4, 128
	return min(max(4*runtime.GOMAXPROCS(0), least), most)
}

// Filled returns a with defaults in place of zeros.
func (a Admission) Filled() Admission {
	return Admission{Starting: cmp.Or(a.Starting, DefaultStarting()), Queued: cmp.Or(a.Queued, DefaultQueued)}
}

// unsupported returns the error for something that this build or engine cannot do.
func unsupported(field, format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeUnsupported, format, args...)
	e.Field = field
	return e
}

// AtStart returns the changed keys that a daemon reads only when it starts.
func AtStart(old, changed rules.Rules) []string {
	old.Audit.Argv, changed.Audit.Argv = "", ""
	var out []string
	for _, k := range []struct {
		key      string
		old, now any
	}{
		{"registries.*.mirrors", old.Mirrors(), changed.Mirrors()},
		{"registries.*.insecure", old.InsecureRegistries(), changed.InsecureRegistries()},
		{"retention", old.Retention, changed.Retention},
		{"audit", old.Audit, changed.Audit},
		{"tls", old.TLS, changed.TLS},
	} {
		if !reflect.DeepEqual(k.old, k.now) {
			out = append(out, k.key)
		}
	}
	return out
}
