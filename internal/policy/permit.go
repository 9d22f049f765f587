package policy

import (
	"maps"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Permit is a granted request. Only Decide makes a valid one; the zero value
// permits nothing. It is immutable and safe for concurrent use.
type Permit struct {
	valid      bool
	spec       api.SandboxSpec
	tenant     string
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
	// Asked is the path in the request, Real the one that was judged: mount Real,
	// following no symlink, and check that Dev and Ino are still the same.
	Asked, Real string
	Target      string
	ReadOnly    bool
	OwnerUID    int
	Dev, Ino    uint64
	// Missing is what has to be made of Real, with OwnerUID as its owner: then Dev
	// and Ino are of the directory above it.
	Missing string
}

// Quota is how many sandboxes may be live; 0 is unlimited. Decide has compared
// it with the counts in Facts; who adds the sandbox to the list of live ones
// compares again in the same critical section.
type Quota struct {
	Total, Tenant int
	// rule is the one that bounds the tenant.
	rule string
}

// Valid is false for a Permit that Decide did not make.
func (p Permit) Valid() bool { return p.valid }

// Spec is what was granted: every default filled in but Name and User, paths
// cleaned, limits that are not enforced at zero. The contents of Files are
// shared with the request; all else is the caller's to change.
func (p Permit) Spec() api.SandboxSpec { return cloneSpec(p.spec) }

// Limits are the ones in force; zero is none.
func (p Permit) Limits() api.Limits { return p.spec.Limits }

// Tenant owns the sandbox.
func (p Permit) Tenant() string { return p.tenant }

// Profile is the name of the profile in force.
func (p Permit) Profile() string { return p.spec.Profile }

// Engine is the name of the engine to use, never "auto".
func (p Permit) Engine() string { return p.engine }

// Tier is how strong that engine's isolation is.
func (p Permit) Tier() api.Tier { return p.tier }

// Demanded lists the limits that must be enforced or the create must fail,
// because the request or a rule of the operator set them: "limits.pids".
func (p Permit) Demanded() []string { return slices.Clone(p.demanded) }

// Adjusted lists every value that a lock or a clamp changed.
func (p Permit) Adjusted() []api.Adjustment { return slices.Clone(p.adjusted) }

// Unenforced lists default limits that the engine cannot enforce here.
func (p Permit) Unenforced() []api.Unenforced { return slices.Clone(p.unenforced) }

// Mounts are the granted directories of the host, in the order of Spec.Mounts.
func (p Permit) Mounts() []HostDir { return slices.Clone(p.mounts) }

// WorkspaceDir is the granted host directory of the workspace; false when the
// workspace is private or named.
func (p Permit) WorkspaceDir() (HostDir, bool) {
	if p.workspace == nil {
		return HostDir{}, false
	}
	return *p.workspace, true
}

// Image is the granted image.
func (p Permit) Image() ImageGrant { return p.image }

// WithoutPull is p for an image that has been fetched: what is here is used.
func (p Permit) WithoutPull() Permit {
	p.image.Pull = api.PullNever
	return p
}

// CwdOpen is true when the working directory is the image's, where it has one:
// then Spec has the workspace's path, for an image that has none.
func (p Permit) CwdOpen() bool { return p.cwdOpen }

// Quota bounds how many sandboxes may be live.
func (p Permit) Quota() Quota { return p.quota }

// Settings are what DecideExec needs to know of the sandbox.
func (p Permit) Settings() Settings {
	s := Settings{
		Ref: p.spec.Name, Tenant: p.tenant, Profile: p.spec.Profile, Env: maps.Clone(p.spec.Env), User: p.spec.User,
		Cwd: p.spec.Cwd, Limits: p.spec.Limits,
	}
	if p.cwdOpen {
		s.Cwd = "" // the sandbox's, which its image may decide
	}
	return s
}
