// Package policy decides what a caller gets: a request, the caller and the
// operator's rules go in; a Permit, without which nothing starts, or a refusal
// that names its rule comes out. It is pure: what must be known of the machine
// is gathered before and handed in as Facts.
package policy

import (
	"maps"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Request is what is to be decided, with what was found out about it.
type Request struct {
	Spec  api.SandboxSpec
	Facts Facts
	// Held says that a connection holds the sandbox.
	Held bool
	// Setup is what may leave the sandbox before what Spec says of that is put in
	// force; nil is the same.
	Setup *api.EgressPolicy
}

// Facts are what I/O found out before the decision. Paths says which host
// paths they must cover.
type Facts struct {
	// Dirs has one entry for each path that Paths returned.
	Dirs map[string]DirFact
	// Mounts are those of the host, in the order of mounting; empty where the system has
	// no list of them.
	Mounts []HostMount
	// Recursive: what is mounted below a directory is seen with it.
	Recursive bool
	// Home is the real path of Cloche's home, which no sandbox may see; empty
	// when there is none.
	Home string
	// UserHome is the real path of the home directory of the user that Cloche
	// runs as; empty when it has none.
	UserHome string
	// SocketDirs are directories that hold a socket by which the caller would be more
	// than a sandbox: Cloche's own and those of the engines' daemons.
	SocketDirs []string
	// Engines are the reports of all engines of this build; "auto" takes the
	// first that is usable and strong enough.
	Engines []api.EngineReport
	// Image is what is here of the image that ImageOf names.
	Image ImageFact
	// Skills are those that the request names, or all of the caller's tenant where it
	// asks for all, by name.
	Skills []SkillFact
	// Windows: the host is one of Windows. Dirs has what WindowsPaths returned, and Real
	// is as that host writes it.
	Windows bool
	// HardQuota says whether the kernel can hold a workspace to its bounds here.
	HardQuota api.Enforcement
	// Projects says that it does so by project quotas of the home's filesystem, at no
	// cost worth a word.
	Projects bool
	// Workspace is the named workspace that the request is about, if it exists.
	Workspace *api.WorkspaceInfo
	// Snapshot is what Spec.Snapshot names, if there is such a one; whether the caller
	// sees it is for policy to say.
	Snapshot *api.Snapshot
	// Secrets says that the values of secrets can be had here.
	Secrets bool
	// NoLayers says why no layered workspace can be made here; nil is that one can.
	NoLayers *api.Error
	// NoApproval says why nobody can be asked here; nil is that somebody can.
	NoApproval *api.Error
	// NoInterception says why no TLS can be opened here; nil is that it can.
	NoInterception *api.Error
	// Live counts the live sandboxes of all tenants, LiveTenant the caller's.
	Live       int
	LiveTenant int
}

// DirFact is what is known of one path of the host. The zero value is a path
// that does not exist or cannot be read.
type DirFact struct {
	Exists bool
	// Real is the path with every symlink resolved; of a path that does not exist,
	// that of the deepest directory above it that does, which the other fields
	// then describe.
	Real string
	// Missing is what does not exist below Real, where it is known that all of it
	// could be made.
	Missing string
	// Dir is true for a directory.
	Dir      bool
	OwnerUID int
	// Dev and Ino identify what was seen, so that whoever opens Real later can
	// tell that it is still the same. Policy only passes them on.
	Dev, Ino uint64
	// Mount is the ID of the mount through which Real is seen; 0 where it is not known.
	Mount int
	// Private is what was found in the directory that a sandbox does not get with it.
	Private []PrivatePath
}

// decision is the work sheet of one Decide. Each step reads and completes it.
type decision struct {
	facts  Facts
	held   bool
	caller Caller
	rules  Rules
	// spec becomes what is granted.
	spec api.SandboxSpec
	// demanded holds the limits that were asked for or set by a rule.
	demanded   map[string]bool
	adjusted   []api.Adjustment
	unenforced []api.Unenforced
	profile    profile
	engine     api.EngineReport
	mounts     []HostDir
	skills     []HostDir
	workspace  *HostDir
	snapshot   *api.Snapshot
	granted    WorkspaceGrant
	// rootBytes is the root's part of the disk.
	rootBytes int64
	image     ImageGrant
	grants    []api.PolicyGrant
	// What cleanBlocked, namedRoots, realRoots and moved return, once asked.
	allBlocked, allNamed, allReal []string
	allMoved                      map[string]string
	// free are built-in blocked paths that do not count.
	free []string
	// cwdOpen: neither the request nor a workspace of its own says where to work.
	cwdOpen bool
	egress  *EgressGrant
	// setup is Request.Setup, and first what is granted of it.
	setup *api.EgressPolicy
	first *EgressGrant
	// endpoints are in the order of the spec's.
	endpoints []EndpointGrant
	secrets   []SecretGrant
}

// step is one named check. The name is the Rule of a denial that names no
// narrower one.
type step struct {
	name string
	do   func(*decision) *api.Error
}

// steps is every check, in order: first what the request can be, then what it
// may have, then what this machine can do. Later steps rely on earlier ones.
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
		{"images", checkImage},
		{"host_directories", checkHostDirs},
		{"skills", checkSkills},
		{"reach", checkReach},
		{"engine", checkEngine},
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

// Decide grants a request, with every default filled in, or says why not. The
// error is always a *api.Error. Decide changes none of its arguments, and
// the same arguments always give the same answer; deciding a granted spec again
// grants it unchanged.
func Decide(req Request, caller Caller, rules Rules) (Permit, error) {
	p, err := begin(req, caller, rules).finish(func(string, *api.Error) {})
	if err != nil {
		return Permit{}, err
	}
	return p, nil
}

// begin lays out the work sheet of one decision.
func begin(req Request, caller Caller, rules Rules) *decision {
	return &decision{
		facts:    req.Facts,
		held:     req.Held,
		setup:    req.Setup,
		caller:   caller,
		rules:    rules,
		spec:     cloneSpec(req.Spec),
		demanded: map[string]bool{},
	}
}

// finish does every step until one refuses, and tells done of each.
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
		image:      d.image,
		cwdOpen:    d.cwdOpen,
		secrets:    d.secrets,
		quota:      d.rules.quota(d.caller.Tenant),
		egress:     d.egress,
		first:      d.first,
		endpoints:  d.endpoints,
	}, nil
}

func (d *decision) adjust(field, asked, used, rule string) {
	d.adjusted = append(d.adjusted, api.Adjustment{Field: field, Asked: asked, Used: used, Rule: rule})
}

// cloneSpec copies everything that a step may change. The contents of files
// are shared: no step writes to them.
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
		s.Egress = new(cloneEgress(*s.Egress))
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
	return d.rules.quota(d.caller.Tenant).check(d.facts.LiveTenant, d.facts.Live, d.caller.Operator)
}
