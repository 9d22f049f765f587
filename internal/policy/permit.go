package policy

import (
	"maps"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Permit is a granted request. Only Decide returns a valid one. The zero value permits nothing. It
// is immutable and safe for concurrent use.
type Permit struct {
	valid      bool
	spec       api.SandboxSpec
	tenant     string
	creator    Caller
	engine     string
	tier       api.Tier
	demanded   []string
	adjusted   []api.Adjustment
	unenforced []api.Unenforced
	mounts     []HostDir
	skills     []HostDir
	workspace  *HostDir
	snapshot   *api.Snapshot
	granted    WorkspaceGrant
	rootBytes  int64
	pool       rules.PoolRule
	image      ImageGrant
	cwdOpen    bool
	secrets    []SecretGrant
	quota      Quota
	egress     *EgressGrant
	first      *EgressGrant
	endpoints  []EndpointGrant
}

// HostDir is one directory of the host that a Permit grants.
type HostDir struct {
	// Asked is the path in the request, and Real the path that was judged. Mount Real without
	// following symlinks, and check that Dev and Ino are unchanged.
	Asked, Real string
	Target      string
	ReadOnly    bool
	OwnerUID    int
	Dev, Ino    uint64
	// Missing is the part of Real to create, with OwnerUID as its owner. In that case Dev and Ino
	// belong to the directory above it.
	Missing string
}

// Quota is the maximum number of live sandboxes; 0 is unlimited. Decide has compared it with the
// counts in Facts. The code that adds the sandbox to the list of live ones must compare again in
// the same critical section.
type Quota struct {
	Total, Tenant int
	// rule is the rule that limits the tenant.
	rule string
}

// Valid reports whether Decide returned p.
func (p Permit) Valid() bool { return p.valid }

// Spec returns what was granted: with defaults filled in except Name and User, with clean paths,
// and with zero for limits that are not enforced. The contents of Files are shared with the
// request. The caller can change everything else.
func (p Permit) Spec() api.SandboxSpec { return cloneSpec(p.spec) }

// Limits returns the limits in force; zero is no limit.
func (p Permit) Limits() api.Limits { return p.spec.Limits }

// Tenant returns the owner of the sandbox.
func (p Permit) Tenant() string { return p.tenant }

// Creator returns the caller that was granted the sandbox, without its key.
func (p Permit) Creator() Caller { return p.creator }

// Profile returns the name of the profile in force.
func (p Permit) Profile() string { return p.spec.Profile }

// Engine returns the name of the engine to use. It is never "auto".
func (p Permit) Engine() string { return p.engine }

// Tier returns the isolation strength of that engine.
func (p Permit) Tier() api.Tier { return p.tier }

// Demanded returns the limits, such as "limits.pids", that the request or a rule of the operator
// set. If one cannot be enforced, the create must fail.
func (p Permit) Demanded() []string { return slices.Clone(p.demanded) }

// Adjusted returns every value that a lock or a clamp changed.
func (p Permit) Adjusted() []api.Adjustment { return slices.Clone(p.adjusted) }

// Unenforced returns default limits that the engine cannot enforce here.
func (p Permit) Unenforced() []api.Unenforced { return slices.Clone(p.unenforced) }

// Mounts returns the granted directories of the host, in the order of Spec.Mounts.
func (p Permit) Mounts() []HostDir { return slices.Clone(p.mounts) }

// WorkspaceDir returns the granted host directory of the workspace, or false if the workspace is
// private or named.
func (p Permit) WorkspaceDir() (HostDir, bool) {
	if p.workspace == nil {
		return HostDir{}, false
	}
	return *p.workspace, true
}

// Image returns the granted image.
func (p Permit) Image() ImageGrant { return p.image }

// Pool returns how many sandboxes like this one are kept ready: what its profile says, and otherwise
// the given numbers.
func (p Permit) Pool(floor, ceiling int) (int, int) {
	if p.pool.Ceiling != nil {
		ceiling = *p.pool.Ceiling
	}
	if p.pool.Floor != nil {
		floor = *p.pool.Floor
	}
	return min(floor, ceiling), ceiling
}

// WithoutPull returns p for an image that has been pulled: the stored image is used.
func (p Permit) WithoutPull() Permit {
	p.image.Pull = api.PullNever
	return p
}

// CwdOpen reports whether the working directory is the image's, if the image sets one. Spec then
// has the workspace's path, for an image that sets none.
func (p Permit) CwdOpen() bool { return p.cwdOpen }

// Quota returns the maximum number of live sandboxes.
func (p Permit) Quota() Quota { return p.quota }

// Settings returns what DecideExec needs to know about the sandbox.
func (p Permit) Settings() Settings {
	s := Settings{
		Ref: p.spec.Name, Tenant: p.tenant, Profile: p.spec.Profile, Env: maps.Clone(p.spec.Env), User: p.spec.User,
		Cwd: p.spec.Cwd, Limits: p.spec.Limits,
	}
	if p.cwdOpen {
		s.Cwd = "" // the sandbox's, which can depend on its image
	}
	return s
}
