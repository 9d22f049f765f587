package policy

import (
	"time"

	"github.com/cloche-dev/cloche"
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
	// "auto"; only a value set here lets "auto" fall to a shared kernel.
	MinTier cloche.Tier `yaml:"min_tier"`
	// Profiles change built-in profiles or add new ones, by name.
	Profiles map[string]ProfileRule `yaml:"profiles"`
	// Images are granted to callers that are not the operator, beside "host". One
	// that ends in * grants every image that begins so.
	Images []string `yaml:"images"`
	// BlockedImages are refused to everyone, in the same syntax.
	BlockedImages []string `yaml:"blocked_images"`
	// Mounts grants host directories.
	Mounts []MountRule `yaml:"mounts"`
	// BlockedPaths are host paths that no sandbox may see, with all below them,
	// beside the built-in ones.
	BlockedPaths []string `yaml:"blocked_paths"`
	// MaxSandboxes bounds the live sandboxes of all tenants together; 0 is
	// unlimited.
	MaxSandboxes int `yaml:"max_sandboxes"`
	// MaxSandboxesPerTenant bounds each tenant's; 0 is unlimited.
	MaxSandboxesPerTenant int `yaml:"max_sandboxes_per_tenant"`
	// Audit says what the audit log holds.
	Audit AuditRule `yaml:"audit"`
}

// AuditRule says what the audit log holds.
type AuditRule struct {
	// Argv is "hash" (or empty) for the program's name, the number of arguments
	// and a digest, or "full" for every argument as it is, secrets included.
	Argv string `yaml:"argv"`
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
	// Network is "none" or "on".
	Network string `yaml:"network"`
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
	CPUs      *float64  `yaml:"cpus"`
	Memory    *Size     `yaml:"memory"`
	Pids      *int64    `yaml:"pids"`
	Disk      *Size     `yaml:"disk"`
	Timeout   *Duration `yaml:"timeout"`
	MaxOutput *Size     `yaml:"max_output"`
}

// Size is a number of bytes, written 1048576, 512KiB, 2GiB or 2GB.
type Size int64

// Duration is a time, written 90s, 5m or 1h30m.
type Duration time.Duration

// IsEnabled is the master switch with its default.
func (r Rules) IsEnabled() bool { return r.Enabled == nil || *r.Enabled }

// AuditArgvFull says that the operator wants whole command lines in the audit.
func (r Rules) AuditArgvFull() bool { return r.Audit.Argv == auditArgvFull }

const (
	auditArgvHash = "hash"
	auditArgvFull = "full"
)

func (r Rules) quota() Quota {
	return Quota{Total: max(r.MaxSandboxes, 0), Tenant: max(r.MaxSandboxesPerTenant, 0)}
}
