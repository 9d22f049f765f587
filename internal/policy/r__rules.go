package policy

import (
	"time"

	"github.com/cloche-dev/cloche/api"
)

// RulesVersion is the version of the policy file that this build reads.
const RulesVersion = 1

// Rules are the operator's rules, as read from the policy file. With the zero value, the operator
// can do everything that is not blocked, and every other caller gets the built-in profiles, the
// host image and no host directories.
//
// Lists of grants (Images, Mounts) only add permissions. Other keys remove permissions. The
// operator needs no grant. Everything else also applies to the operator.
type Rules struct {
	// Version is RulesVersion; 0 means the same.
	Version int `yaml:"version"`
	// Enabled is the main switch for create. Nil is true.
	Enabled *bool `yaml:"enabled"`
	// Engine is the engine for "auto". Empty uses the first usable engine of at least MinTier.
	Engine string `yaml:"engine"`
	// MinTier is the weakest accepted isolation. For "auto", empty is gvisor. Only an explicit
	// value lets "auto" use a shared kernel or a virtual machine.
	MinTier api.Tier `yaml:"min_tier"`
	// Defaults are the operator's settings for every profile.
	Defaults DefaultRule `yaml:"defaults"`
	// Profiles change built-in profiles or add new ones, by name.
	Profiles map[string]ProfileRule `yaml:"profiles"`
	// Images are granted to callers other than the operator, in addition to "host": they can be
	// used and pulled. An entry that ends in * grants every image with that prefix. References
	// are compared with defaults filled in.
	Images []string `yaml:"images"`
	// BlockedImages are refused to all callers, in the same syntax. A digest blocks the image
	// that a name resolves to.
	BlockedImages []string `yaml:"blocked_images"`
	// ImageAliases replace a reference by another one, or by "host". The other rules judge the
	// replacement, which cannot be an alias itself.
	ImageAliases map[string]string `yaml:"image_aliases"`
	// ImagePins are the digests that references must resolve to: the digest of the image, or of
	// its multi-platform index.
	ImagePins map[string]string `yaml:"image_pins"`
	// Registries configures registries, by host.
	Registries map[string]RegistryRule `yaml:"registries"`
	// OnlyRegistries are the only registries that images are pulled from. Empty is all.
	OnlyRegistries []string `yaml:"only_registries"`
	// ImageStore limits the disk space of images.
	ImageStore ImageStoreRule `yaml:"image_store"`
	// Names say how sandboxes get their names from the identity of requests.
	Names NameRule `yaml:"names"`
	// Mounts grants host directories.
	Mounts []MountRule `yaml:"mounts"`
	// Endpoints are the allowed endpoint targets for callers other than the operator.
	Endpoints []EndpointRule `yaml:"endpoints"`
	// BlockedPaths are host paths that no sandbox can see, with everything below them, in
	// addition to the built-in ones.
	BlockedPaths []string `yaml:"blocked_paths"`
	// Skills are rules for skills.
	Skills SkillRule `yaml:"skills"`
	// Secrets are the secrets that sandboxes can use.
	Secrets []SecretRule `yaml:"secrets"`
	// TLS configures intercepted TLS connections, for secrets and request rules.
	TLS TLSRule `yaml:"tls"`
	// MaxSandboxes limits the live sandboxes of all tenants together; 0 is unlimited.
	MaxSandboxes int `yaml:"max_sandboxes"`
	// MaxSandboxesPerTenant limits the live sandboxes of each tenant; 0 is unlimited.
	MaxSandboxesPerTenant int `yaml:"max_sandboxes_per_tenant"`
	// MaxSnapshotsPerTenant limits the snapshots of each tenant; 0 is 100.
	MaxSnapshotsPerTenant int `yaml:"max_snapshots_per_tenant"`
	// MaxSnapshotBytesPerTenant limits their disk space; 0 is 32GiB.
	MaxSnapshotBytesPerTenant Size `yaml:"max_snapshot_bytes_per_tenant"`
	// MaxWorkspacesPerTenant limits each tenant's named workspaces; 0 is 1000.
	MaxWorkspacesPerTenant int `yaml:"max_workspaces_per_tenant"`
	// Tenants have limits of single tenants, which override the general ones.
	Tenants map[string]TenantRule `yaml:"tenants"`
	// Rate limits the requests of each tenant except the operator. Nil is no limit.
	Rate *RateRule `yaml:"rate"`
	// Retention says how long the record and the logs of an ended sandbox are kept.
	Retention RetentionRule `yaml:"retention"`
	// Audit says what the audit log records, and for how long.
	Audit AuditRule `yaml:"audit"`
	// Egress says what can leave sandboxes.
	Egress EgressRule `yaml:"egress"`
}

// TLSRule says how hosts are verified whose TLS is intercepted.
type TLSRule struct {
	// Roots is the path of a file of PEM certificates that are trusted in addition to the
	// machine's own.
	Roots string `yaml:"roots"`
}

// RetentionRule limits what is kept of ended sandboxes. The oldest are removed first. Removing a
// sandbox removes everything at once.
type RetentionRule struct {
	// For is how long after its end it is kept. Nil is 24 hours.
	For *Duration `yaml:"for"`
	// Count is the maximum number of ended sandboxes of all tenants; 0 is 1000.
	Count int `yaml:"count"`
}

// MountRule grants one directory of the host and everything below it that is not blocked.
type MountRule struct {
	// Root is an absolute path.
	Root string `yaml:"root"`
	// Write also allows writing.
	Write bool `yaml:"write"`
	// Tenants are the tenants that it is for. Empty is every caller.
	Tenants []string `yaml:"tenants"`
	// Rules restrict what is granted below Root. If several grants contain a directory, the most
	// permissive one applies. If the request has rules too, the stricter one applies. They also
	// apply to the operator, who needs no grant.
	Rules []PathRule `yaml:"rules"`
}

// EndpointRule grants one service of the host, or of its network, as a target.
type EndpointRule struct {
	// Target is http://HOST[:PORT][/BASE] or https, with everything below BASE; tcp://HOST:PORT,
	// for raw bytes; unix:///SOCKET or unix+tcp:///SOCKET, for that socket only; client or
	// client+tcp, which a client that can use the sandbox serves; replay for all recordings of a
	// tenant, or replay:NAME for one.
	Target string `yaml:"target"`
	// At lists non-public address ranges that the host can be in, such as 10.1.0.0/16. A host
	// that is written as an address is allowed at that address anyway, and localhost is the
	// loopback.
	At []string `yaml:"at"`
	// Tenants are the tenants that it is for. Empty is every caller.
	Tenants []string `yaml:"tenants"`
	// BodyFilter is the weakest body_filter of its endpoints, for a target that is a model's API:
	// off, strip or refuse. Empty is off.
	BodyFilter string `yaml:"body_filter"`
	// Record allows recordings of the exchanges.
	Record bool `yaml:"record"`
	// Audit is the maximum that can be recorded of exchanges in addition to their outline:
	// headers, or body for both. Empty is nothing.
	Audit string `yaml:"audit"`
}

// PathRule is the access to one path below a root and everything below that path.
type PathRule struct {
	// Path is relative to the root.
	Path string `yaml:"path"`
	// Access is none, ro or rw.
	Access api.PathAccess `yaml:"access"`
}

// ProfileRule changes or adds one profile. What it does not set comes from the built-in profile of
// that name, from the profile that Extends names, or from "agent".
type ProfileRule struct {
	// Extends is the built-in profile that a new one starts from.
	Extends string `yaml:"extends"`
	// Defaults are the limits of a request that does not set them.
	Defaults LimitRule `yaml:"defaults"`
	// Ceilings are the maximum limits of a request; 0 is no ceiling.
	Ceilings LimitRule `yaml:"ceilings"`
	// Image is the default image.
	Image string `yaml:"image"`
	// Engine is the engine for "auto" in this profile. It overrides the file's engine. Absent
	// uses the file's.
	Engine string `yaml:"engine"`
	// Network is "none" or "on".
	Network string `yaml:"network"`
	// Egress is the egress of this profile's sandboxes. Its list is their default. Absent keeps
	// the base profile's.
	Egress EgressPart `yaml:"egress"`
	// ReadOnlyRoot is the default of read_only_root.
	ReadOnlyRoot *bool `yaml:"read_only_root"`
	// WorkspaceReadOnly is the default of workspace.read_only.
	WorkspaceReadOnly *bool `yaml:"workspace_read_only"`
	// MountsReadOnly is the value that "mounts.read_only" in Locked forces.
	MountsReadOnly *bool `yaml:"mounts_read_only"`
	// Locked are the fields for which the profile's value overrides the request's. Absent keeps
	// the base profile's, and an empty list unlocks everything.
	Locked *[]string `yaml:"locked"`
	// Clamp are the limits that are lowered to their ceiling instead of refused. Absent keeps the
	// base profile's.
	Clamp *[]string `yaml:"clamp"`
}

// LimitRule is a set of limits, of which some can be absent.
type LimitRule struct {
	CPUs   *float64 `yaml:"cpus"`
	Memory *Size    `yaml:"memory"`
	Pids   *int64   `yaml:"pids"`
	Disk   *Size    `yaml:"disk"`
	// Tmp and Shm are the sizes of /tmp and /dev/shm.
	Tmp *Size `yaml:"tmp"`
	Shm *Size `yaml:"shm"`
	// Workspace and WorkspaceInodes limit a private workspace, and a new named one. The kernel
	// enforces them, so they require root.
	Workspace       *Size     `yaml:"workspace"`
	WorkspaceInodes *int64    `yaml:"workspace_inodes"`
	Timeout         *Duration `yaml:"timeout"`
	MaxOutput       *Size     `yaml:"max_output"`
	Lifetime        *Duration `yaml:"lifetime"`
	Idle            *Duration `yaml:"idle"`
}

// Size is a number of bytes, written 1048576, 512KiB, 2GiB or 2GB.
type Size int64

// Duration is a time, written 90s, 5m or 1h30m.
type Duration time.Duration

// IsEnabled returns the main switch with its default.
func (r Rules) IsEnabled() bool { return r.Enabled == nil || *r.Enabled }
