package policy

import (
	"reflect"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// RulesVersion is the version of the policy file that this build reads.
const RulesVersion = 1

// Rules are the operator's, as read from the policy file. The zero value works:
// the operator may do all that is not blocked, and every other caller gets the
// built-in profiles, the host image and nothing of the host's directories.
//
// Lists that grant (Images, Mounts) only ever add; what takes away is in keys of
// its own. The operator needs no grant and is bound by everything else.
type Rules struct {
	// Version is RulesVersion; 0 means the same.
	Version int `yaml:"version"`
	// Enabled is the master switch of create; nil is true.
	Enabled *bool `yaml:"enabled"`
	// Engine is what "auto" means; empty takes the first usable engine of at
	// least MinTier.
	Engine string `yaml:"engine"`
	// MinTier is the weakest isolation that is accepted. Empty is gvisor for
	// "auto"; only a value set here lets "auto" fall to a shared kernel, or take a
	// virtual machine.
	MinTier api.Tier `yaml:"min_tier"`
	// Defaults are the operator's settings for every profile.
	Defaults DefaultRule `yaml:"defaults"`
	// Profiles change built-in profiles or add new ones, by name.
	Profiles map[string]ProfileRule `yaml:"profiles"`
	// Images are granted to callers that are not the operator, beside "host": to be
	// used, and to be fetched. One that ends in * grants every image that begins so.
	// References are compared with every default filled in.
	Images []string `yaml:"images"`
	// BlockedImages are refused to everyone, in the same syntax. A digest blocks what
	// a name turns out to be.
	BlockedImages []string `yaml:"blocked_images"`
	// ImageAliases let a reference stand for another, or for "host". What it stands
	// for is what the other rules judge; it is no alias itself.
	ImageAliases map[string]string `yaml:"image_aliases"`
	// ImagePins are the digests that references must turn out to have, that of the
	// image or that of its list of platforms.
	ImagePins map[string]string `yaml:"image_pins"`
	// Registries say how registries are reached, by host.
	Registries map[string]RegistryRule `yaml:"registries"`
	// OnlyRegistries are the ones from which anything is fetched; empty is all.
	OnlyRegistries []string `yaml:"only_registries"`
	// ImageStore bounds what images occupy.
	ImageStore ImageStoreRule `yaml:"image_store"`
	// Names say how sandboxes get their names from who asks.
	Names NameRule `yaml:"names"`
	// Mounts grants host directories.
	Mounts []MountRule `yaml:"mounts"`
	// Endpoints are the targets that endpoints may have, for callers that are not the
	// operator.
	Endpoints []EndpointRule `yaml:"endpoints"`
	// BlockedPaths are host paths that no sandbox may see, with all below them,
	// beside the built-in ones.
	BlockedPaths []string `yaml:"blocked_paths"`
	// Skills are rules for skills.
	Skills SkillRule `yaml:"skills"`
	// Secrets are those that sandboxes may have.
	Secrets []SecretRule `yaml:"secrets"`
	// TLS is about the TLS that is opened for secrets and for rules of requests.
	TLS TLSRule `yaml:"tls"`
	// MaxSandboxes bounds the live sandboxes of all tenants together; 0 is
	// unlimited.
	MaxSandboxes int `yaml:"max_sandboxes"`
	// MaxSandboxesPerTenant bounds each tenant's; 0 is unlimited.
	MaxSandboxesPerTenant int `yaml:"max_sandboxes_per_tenant"`
	// MaxSnapshotsPerTenant bounds the snapshots of each tenant; 0 is 100.
	MaxSnapshotsPerTenant int `yaml:"max_snapshots_per_tenant"`
	// MaxSnapshotBytesPerTenant bounds what they occupy; 0 is 32GiB.
	MaxSnapshotBytesPerTenant Size `yaml:"max_snapshot_bytes_per_tenant"`
	// MaxWorkspacesPerTenant bounds each tenant's named workspaces; 0 is 1000.
	MaxWorkspacesPerTenant int `yaml:"max_workspaces_per_tenant"`
	// Tenants have limits of single tenants, which go before those for each.
	Tenants map[string]TenantRule `yaml:"tenants"`
	// Rate bounds how often each tenant asks, but the operator; nil is no bound.
	Rate *RateRule `yaml:"rate"`
	// Retention says how long the record and the logs of an ended sandbox are kept.
	Retention RetentionRule `yaml:"retention"`
	// Audit says what the audit log holds, and how long.
	Audit AuditRule `yaml:"audit"`
	// Egress says what may leave sandboxes.
	Egress EgressRule `yaml:"egress"`
}

// TLSRule says how the hosts are verified whose TLS is opened.
type TLSRule struct {
	// Roots is the path of a file of certificates in PEM that are trusted beside the
	// machine's own.
	Roots string `yaml:"roots"`
}

// RetentionRule bounds what is kept of ended sandboxes: the oldest go first.
// Removing a sandbox takes all of it at once.
type RetentionRule struct {
	// For is how long after its end; nil is 24 hours.
	For *Duration `yaml:"for"`
	// Count is how many ended sandboxes of all tenants; 0 is 1000.
	Count int `yaml:"count"`
}

// MountRule grants one directory of the host and everything below it that is
// not blocked.
type MountRule struct {
	// Root is an absolute path.
	Root string `yaml:"root"`
	// Write also grants writing.
	Write bool `yaml:"write"`
	// Tenants are the ones it is for; empty is every caller.
	Tenants []string `yaml:"tenants"`
	// Rules take away from what is granted, below Root. Where several grants hold a
	// directory the widest counts; where the request has rules too, the stricter.
	// They bind the operator as well, who needs no grant.
	Rules []PathRule `yaml:"rules"`
}

// EndpointRule grants one service of the host's, or of its network, as a target.
type EndpointRule struct {
	// Target is http://HOST[:PORT][/BASE] or https, with all that is below BASE;
	// tcp://HOST:PORT, for bytes that nobody looks into; unix:///SOCKET or
	// unix+tcp:///SOCKET, which is that socket alone; client or client+tcp, which
	// whoever uses the sandbox serves; replay for all of a tenant's recordings, or
	// replay:NAME for one.
	Target string `yaml:"target"`
	// At are ranges of addresses, not public, in which the host may be, such as
	// 10.1.0.0/16. A host that is written as an address may be there anyway, and
	// localhost is the loopback.
	At []string `yaml:"at"`
	// Tenants are the ones it is for; empty is every caller.
	Tenants []string `yaml:"tenants"`
	// BodyFilter is the weakest body_filter that its endpoints have, for a target that
	// is a model's API: off, strip or refuse; empty is off.
	BodyFilter string `yaml:"body_filter"`
	// Record lets what goes through be recorded.
	Record bool `yaml:"record"`
	// Audit is the most of what goes through that may go on record beside its outline:
	// headers, or body for both; empty is nothing.
	Audit string `yaml:"audit"`
}

// PathRule is the access to one path below a root, with all below that.
type PathRule struct {
	// Path is relative to the root.
	Path string `yaml:"path"`
	// Access is none, ro or rw.
	Access api.PathAccess `yaml:"access"`
}

// ProfileRule changes or adds one profile. What it leaves out stays as it is in
// the built-in profile of that name, in the profile that Extends names, or in
// "agent".
type ProfileRule struct {
	// Extends names the built-in profile that a new one starts from.
	Extends string `yaml:"extends"`
	// Defaults are the limits of a request that names none.
	Defaults LimitRule `yaml:"defaults"`
	// Ceilings are the most that a request gets; 0 is no ceiling.
	Ceilings LimitRule `yaml:"ceilings"`
	// Image is the default image.
	Image string `yaml:"image"`
	// Engine is what "auto" means for its sandboxes, whatever the file's engine says;
	// absent is the same as everywhere.
	Engine string `yaml:"engine"`
	// Network is "none" or "on".
	Network string `yaml:"network"`
	// Egress is what may leave sandboxes of this profile. Its list is what they have
	// that ask for nothing; absent keeps the base's.
	Egress EgressPart `yaml:"egress"`
	// ReadOnlyRoot is the default of read_only_root.
	ReadOnlyRoot *bool `yaml:"read_only_root"`
	// WorkspaceReadOnly is the default of workspace.read_only.
	WorkspaceReadOnly *bool `yaml:"workspace_read_only"`
	// MountsReadOnly is what "mounts.read_only" in Locked forces.
	MountsReadOnly *bool `yaml:"mounts_read_only"`
	// Locked are the fields whose value in the profile overwrites the request's.
	// Absent keeps the base's; an empty list unlocks everything.
	Locked *[]string `yaml:"locked"`
	// Clamp are the limits that are lowered to their ceiling instead of refused.
	// Absent keeps the base's.
	Clamp *[]string `yaml:"clamp"`
}

// LimitRule is a set of limits of which only some are set.
type LimitRule struct {
	CPUs   *float64 `yaml:"cpus"`
	Memory *Size    `yaml:"memory"`
	Pids   *int64   `yaml:"pids"`
	Disk   *Size    `yaml:"disk"`
	// Tmp and Shm are the sizes of /tmp and /dev/shm.
	Tmp *Size `yaml:"tmp"`
	Shm *Size `yaml:"shm"`
	// Workspace and WorkspaceInodes bound a private workspace, and a named one that
	// is made. The kernel holds them, so without root they cannot be set.
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

// AtStart lists the keys that differ and that a daemon reads only when it starts.
func AtStart(old, changed Rules) []string {
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

// IsEnabled is the master switch with its default.
func (r Rules) IsEnabled() bool { return r.Enabled == nil || *r.Enabled }
