package rules

import (
	"maps"
	"slices"
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
	// MaxSuspendedBytesPerTenant limits the disk space of each tenant's saved memory of suspended sandboxes and saved roots of
	// stopped ones, together; 0 is 128GiB.
	MaxSuspendedBytesPerTenant Size `yaml:"max_suspended_bytes_per_tenant"`
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
	// Ports says which ports of sandboxes can have a URL.
	Ports PortRule `yaml:"ports"`
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
	// Suspended is how long a sandbox may stay suspended. Then its saved memory is discarded and it is stopped. Nil is
	// unlimited.
	Suspended *Duration `yaml:"suspended"`
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
	// Access: none, ro or rw.
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
	// OnExpiry is the default of on_expiry: "suspend" has sandboxes with an idle time or a lifetime suspended at its end and resumed
	// by their next use, where the engine can. Absent is "stop".
	OnExpiry api.Expiry `yaml:"on_expiry"`
	// Pool is how many sandboxes of one kind are kept ready. Absent uses the daemon's settings.
	Pool PoolRule `yaml:"pool"`
	// Locked are the fields for which the profile's value overrides the request's. Absent keeps
	// the base profile's, and an empty list unlocks everything.
	Locked *[]string `yaml:"locked"`
	// Clamp are the limits that are lowered to their ceiling instead of refused. Absent keeps the
	// base profile's.
	Clamp *[]string `yaml:"clamp"`
}

// PoolRule is how many sandboxes of one kind are kept ready.
type PoolRule struct {
	// Floor are kept from the first sandbox on.
	Floor *int `yaml:"floor"`
	// Ceiling are kept at most; 0 keeps none.
	Ceiling *int `yaml:"ceiling"`
}

// MaxPool bounds both numbers of a PoolRule.
const MaxPool = 1024

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

// TenantRule has the limits of one tenant. Each overrides the limit for all tenants.
type TenantRule struct {
	// MaxSandboxes limits its live sandboxes; 0 is unlimited.
	MaxSandboxes *int `yaml:"max_sandboxes"`
	// MaxSnapshots and MaxSnapshotBytes limit its snapshots; 0 is the default.
	MaxSnapshots     *int  `yaml:"max_snapshots"`
	MaxSnapshotBytes *Size `yaml:"max_snapshot_bytes"`
	// MaxSuspendedBytes limits the saved memory of its suspended sandboxes; 0 is the default.
	MaxSuspendedBytes *Size `yaml:"max_suspended_bytes"`
	// MaxWorkspaces limits its named workspaces; 0 is the default.
	MaxWorkspaces *int `yaml:"max_workspaces"`
	// Rate limits its requests.
	Rate *RateRule `yaml:"rate"`
	// Egress is what it can request in addition to what all tenants can, and its limits.
	Egress EgressPart `yaml:"egress"`
}

// RateRule limits requests: a number in a period, and a burst after a pause.
type RateRule struct {
	// Requests is the number of requests in each Per; 0 is unlimited.
	Requests int `yaml:"requests"`
	// Per is the period. The default is one second.
	Per Duration `yaml:"per"`
	// Burst is the maximum burst; 0 is Requests.
	Burst int `yaml:"burst"`
}

// maxPer is the longest period of a rate.
const maxPer = Duration(24 * time.Hour)

func ruleTenants(r Rules, report Reporter) {
	ruleRate("rate", r.Rate, report)
	for _, name := range slices.Sorted(maps.Keys(r.Tenants)) {
		field, t := "tenants."+Shorten(name), r.Tenants[name]
		if !api.ValidName(name) {
			report(api.Invalid(field, "tenant %s is not valid", Quote(name)).WithHint("%s", NameHint()))
		}
		for _, c := range []struct {
			key string
			n   *int
		}{{"max_sandboxes", t.MaxSandboxes}, {"max_snapshots", t.MaxSnapshots}, {"max_workspaces", t.MaxWorkspaces}} {
			if c.n != nil && *c.n < 0 {
				report(api.Invalid(field+"."+c.key, "%s.%s is %d", field, c.key, *c.n).WithHint("write a positive number, or 0 for the default"))
			}
		}
		ruleRate(field+".rate", t.Rate, report)
	}
}

func ruleRate(field string, r *RateRule, report Reporter) {
	if r == nil {
		return
	}
	const most = 1 << 20
	for _, c := range []struct {
		key string
		n   int
	}{{"requests", r.Requests}, {"burst", r.Burst}} {
		if c.n < 0 || c.n > most {
			report(api.Invalid(field+"."+c.key, "%s.%s is %d", field, c.key, c.n).WithHint("write a number of requests, at most %d", most))
		}
	}
	if r.Per < 0 || r.Per > maxPer {
		report(api.Invalid(field+".per", "%s.per is %s", field, time.Duration(r.Per)).WithHint("write a time such as 1s or 1m, at most 24h"))
	}
}

// AuditRule says what the audit log records, how long it is kept, and who can read it.
type AuditRule struct {
	// Argv says how arguments are recorded. "redacted" (the default) removes what looks like a
	// credential, keeps up to 4 KiB, and adds a digest of everything. "hash" records the
	// program's name, the number of arguments and the digest. "full" records arguments unchanged.
	Argv string `yaml:"argv"`
	// OnFull is "refuse" (the default) to refuse operations that cannot be recorded, or "degrade"
	// to serve requests and count the missing records.
	OnFull string `yaml:"on_full"`
	// SegmentSize and SegmentAge say when a file is closed and the next one begins; 0 is 64MiB
	// and 24h.
	SegmentSize Size     `yaml:"segment_size"`
	SegmentAge  Duration `yaml:"segment_age"`
	// KeepSize and KeepFor limit the closed files; 0 keeps all.
	KeepSize Size     `yaml:"keep_size"`
	KeepFor  Duration `yaml:"keep_for"`
	// Tenants lists the tenants that can read the records of their own operations. "*" is every
	// tenant.
	Tenants []string `yaml:"tenants"`
}

const (
	auditArgvRedacted = "redacted"
	auditArgvHash     = "hash"
	auditArgvFull     = "full"

	auditRefuse  = "refuse"
	auditDegrade = "degrade"

	minSegmentSize = 128 << 10
	minSegmentAge  = Duration(time.Minute)
)

// AuditArgv returns how a command line is recorded: "redacted", "hash" or "full".
func (r Rules) AuditArgv() string {
	if r.Audit.Argv == "" {
		return auditArgvRedacted
	}
	return r.Audit.Argv
}

// AuditDegrades reports whether requests are served without a record when there is no space for
// one.
func (r Rules) AuditDegrades() bool { return r.Audit.OnFull == auditDegrade }

func ruleAudit(r Rules, report Reporter) {
	a := r.Audit
	if !slices.Contains([]string{"", auditArgvRedacted, auditArgvHash, auditArgvFull}, a.Argv) {
		report(api.Invalid("audit.argv", "audit.argv %s is not known", Quote(a.Argv)).
			WithHint("write %q, %q or %q", auditArgvRedacted, auditArgvHash, auditArgvFull))
	}
	if !slices.Contains([]string{"", auditRefuse, auditDegrade}, a.OnFull) {
		report(api.Invalid("audit.on_full", "audit.on_full %s is not known", Quote(a.OnFull)).
			WithHint("write %q or %q", auditRefuse, auditDegrade))
	}
	if a.SegmentSize != 0 && a.SegmentSize < minSegmentSize {
		report(api.Invalid("audit.segment_size", "audit.segment_size is %d bytes", a.SegmentSize).WithHint("write 128KiB or more"))
	}
	if a.SegmentAge != 0 && a.SegmentAge < minSegmentAge {
		report(api.Invalid("audit.segment_age", "audit.segment_age is %s", time.Duration(a.SegmentAge)).WithHint("write 1m or more"))
	}
	for i, t := range a.Tenants {
		if t == "" {
			report(api.Invalid(ElementAt("audit.tenants", i), "%s is empty", ElementAt("audit.tenants", i)).
				WithHint(`name a tenant, or write "*" for every one`))
		}
	}
}
