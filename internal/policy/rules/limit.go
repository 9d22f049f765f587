package rules

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Fields of a request that locks, clamps and reports name.
const (
	fieldCPUs              = "limits.cpus"
	FieldMemory            = "limits.memory_bytes"
	fieldPids              = "limits.pids"
	FieldDisk              = "limits.disk_bytes"
	FieldTimeout           = "limits.timeout_ms"
	FieldMaxOutput         = "limits.max_output_bytes"
	FieldLifetime          = "limits.lifetime_ms"
	fieldIdle              = "limits.idle_ms"
	FieldTmp               = "limits.tmp_bytes"
	FieldShm               = "limits.shm_bytes"
	FieldWorkspaceSize     = "workspace.size_bytes"
	FieldWorkspaceInodes   = "workspace.inodes"
	FieldNetwork           = "network"
	FieldImage             = "image"
	FieldReadOnlyRoot      = "read_only_root"
	FieldWorkspaceReadOnly = "workspace.read_only"
	FieldMountsReadOnly    = "mounts.read_only"
)

// Bounds are the values of all limits: those of the sandbox, and those of its new workspace.
type Bounds struct {
	api.Limits
	WorkspaceBytes, WorkspaceInodes int64
}

// Limit describes one limit, so that the rules on limits exist once. Values are float64: each has a
// hard limit far below 2^53, so none is rounded.
type Limit struct {
	Field string
	// key is its name in the policy file.
	Key string
	// enforced is its name in an engine's report. It is empty if Cloche enforces it itself on
	// every engine.
	Enforced string
	// least is the smallest useful value, and hard the largest that is accepted even without a
	// ceiling.
	least, hard float64
	Get         func(*Bounds) float64
	Set         func(*Bounds, float64)
	Ruled       func(*LimitRule) (float64, bool)
	Format      func(float64) string
}

// MaxTimeoutMS keeps a timeout far from overflowing a time.Duration.
const MaxTimeoutMS = 366 * 24 * 3600 * 1000

// Limits returns all limits. They are never changed.
func Limits() []Limit { return allLimits() }

// allLimits is computed once, because every decision uses it several times.
var allLimits = sync.OnceValue(func() []Limit {
	return slices.Concat(machineLimits(), storageLimits(), TimeLimits())
})

// machineLimits returns the limits on resources of the whole machine.
func machineLimits() []Limit {
	return []Limit{
		{
			Field: fieldCPUs, Key: "cpus", Enforced: "cpus", least: 0.01, hard: 1 << 16,
			Get:    func(l *Bounds) float64 { return l.CPUs },
			Set:    func(l *Bounds, v float64) { l.CPUs = v },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.CPUs) },
			Format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) },
		},
		{
			Field: FieldMemory, Key: "memory", Enforced: "memory_bytes", least: 32 * mib, hard: 1 << 50,
			Get:    func(l *Bounds) float64 { return float64(l.MemoryBytes) },
			Set:    func(l *Bounds, v float64) { l.MemoryBytes = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.Memory) },
			Format: FormatSize,
		},
		{
			Field: fieldPids, Key: "pids", Enforced: "pids", least: 1, hard: 1 << 22,
			Get:    func(l *Bounds) float64 { return float64(l.Pids) },
			Set:    func(l *Bounds, v float64) { l.Pids = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.Pids) },
			Format: func(v float64) string { return strconv.FormatInt(int64(v), 10) },
		},
		{
			Field: FieldDisk, Key: "disk", Enforced: "disk_bytes", least: LeastRoot + MinWorkspace, hard: 1 << 50,
			Get:    func(l *Bounds) float64 { return float64(l.DiskBytes) },
			Set:    func(l *Bounds, v float64) { l.DiskBytes = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.Disk) },
			Format: FormatSize,
		},
	}
}

// storageLimits returns the limits on writable places of a sandbox.
func storageLimits() []Limit {
	return []Limit{
		{
			Field: FieldTmp, Key: "tmp", least: 64 << 10, hard: 1 << 50,
			Get:    func(l *Bounds) float64 { return float64(l.TmpBytes) },
			Set:    func(l *Bounds, v float64) { l.TmpBytes = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.Tmp) },
			Format: FormatSize,
		},
		{
			Field: FieldShm, Key: "shm", least: 64 << 10, hard: 1 << 50,
			Get:    func(l *Bounds) float64 { return float64(l.ShmBytes) },
			Set:    func(l *Bounds, v float64) { l.ShmBytes = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.Shm) },
			Format: FormatSize,
		},
		{
			Field: FieldWorkspaceSize, Key: "workspace", least: MinWorkspace, hard: maxWorkspace,
			Get:    func(l *Bounds) float64 { return float64(l.WorkspaceBytes) },
			Set:    func(l *Bounds, v float64) { l.WorkspaceBytes = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.Workspace) },
			Format: FormatSize,
		},
		{
			Field: FieldWorkspaceInodes, Key: "workspace_inodes", least: 1, hard: maxWorkspace / 4096,
			Get:    func(l *Bounds) float64 { return float64(l.WorkspaceInodes) },
			Set:    func(l *Bounds, v float64) { l.WorkspaceInodes = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.WorkspaceInodes) },
			Format: func(v float64) string { return strconv.FormatInt(int64(v), 10) },
		},
	}
}

// TimeLimits returns the limits on durations and on kept output.
func TimeLimits() []Limit {
	return []Limit{
		{
			Field: FieldTimeout, Key: "timeout", least: 1, hard: MaxTimeoutMS,
			Get:    func(l *Bounds) float64 { return float64(l.TimeoutMS) },
			Set:    func(l *Bounds, v float64) { l.TimeoutMS = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return millis(r.Timeout) },
			Format: formatMillis,
		},
		{
			Field: FieldMaxOutput, Key: "max_output", least: 1, hard: api.MaxMaxOutput,
			Get:    func(l *Bounds) float64 { return float64(l.MaxOutputBytes) },
			Set:    func(l *Bounds, v float64) { l.MaxOutputBytes = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return value(r.MaxOutput) },
			Format: FormatSize,
		},
		{
			Field: FieldLifetime, Key: "lifetime", least: 1000, hard: MaxTimeoutMS,
			Get:    func(l *Bounds) float64 { return float64(l.LifetimeMS) },
			Set:    func(l *Bounds, v float64) { l.LifetimeMS = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return millis(r.Lifetime) },
			Format: formatMillis,
		},
		{
			Field: fieldIdle, Key: "idle", least: 1000, hard: MaxTimeoutMS,
			Get:    func(l *Bounds) float64 { return float64(l.IdleMS) },
			Set:    func(l *Bounds, v float64) { l.IdleMS = int64(v) },
			Ruled:  func(r *LimitRule) (float64, bool) { return millis(r.Idle) },
			Format: formatMillis,
		},
	}
}

func value[T ~int64 | ~float64](p *T) (float64, bool) {
	if p == nil {
		return 0, false
	}
	return float64(*p), true
}

// millis rounds up, because a timeout of less than a millisecond is not unlimited.
func millis(p *Duration) (float64, bool) {
	if p == nil {
		return 0, false
	}
	return math.Ceil(float64(*p) / float64(time.Millisecond)), true
}

// lowerDefault lowers the default of p to its ceiling. A default of zero is unlimited and exceeds
// every ceiling.
func (l Limit) lowerDefault(p *Profile) {
	ceiling := l.Get(&p.Ceilings)
	if v := l.Get(&p.Defaults); ceiling > 0 && (v == 0 || v > ceiling) {
		l.Set(&p.Defaults, ceiling)
	}
}

// Check returns what is wrong with a requested value.
func (l Limit) Check(field string, v float64) *api.Error {
	switch {
	case math.IsNaN(v) || v < 0:
		return api.Invalid(field, "%s is %s, which is negative or no number", field, rawNumber(v)).
			WithHint("leave it out for the profile's default, or name at least %s", l.Format(l.least))
	case v > 0 && v < l.least:
		return api.Invalid(field, "%s is %s, too little for anything to run", field, l.Format(v)).
			WithHint("name at least %s", l.Format(l.least))
	case v > l.hard:
		return api.Invalid(field, "%s is %s, more than any machine has", field, rawNumber(v)).
			WithHint("name at most %s", l.Format(l.hard))
	}
	return nil
}

// Fit compares a requested value with the ceiling of p: it is unchanged, clamped or refused. If
// unlimited is true, zero is a request for unlimited.
func (l Limit) Fit(p *Profile, field string, v float64, unlimited bool) (float64, *api.Adjustment, *api.Error) {
	ceiling := l.Get(&p.Ceilings)
	if ceiling == 0 || v <= ceiling && (v > 0 || !unlimited) {
		return v, nil, nil
	}
	rule := KeyPath(p.Name, "ceilings", l.Key)
	if p.clamps(l.Field) {
		return ceiling, &api.Adjustment{Field: field, Asked: FormatNumber(v), Used: FormatNumber(ceiling), Rule: rule}, nil
	}
	asked := l.Format(v)
	if v == 0 {
		asked = "unlimited"
	}
	e := Denied(rule, field, "%s is %s, over the ceiling of %s of profile %s", field, asked, l.Format(ceiling), Quote(p.Name))
	return 0, nil, e.WithHint("ask for at most %s; the smallest rule that would allow it is %s", l.Format(ceiling), l.ceilingRule(p, v))
}

// ceilingRule returns the smallest rule that would allow v.
func (l Limit) ceilingRule(p *Profile, v float64) string {
	s := l.Format(v)
	if v == 0 {
		s = "0"
	} else if l.Field == FieldTimeout || l.Field == FieldLifetime || l.Field == fieldIdle {
		s = time.Duration(int64(v) * int64(time.Millisecond)).String()
	}
	return "`profiles: {" + YamlString(p.Name) + ": {ceilings: {" + l.Key + ": " + s + "}}}`"
}

const (
	// LeastRoot is the minimum share of limits.disk_bytes for a writable root.
	LeastRoot = mib
)

// LockedOrFit is fit, except that a limit that the profile locks keeps the sandbox's value.
func (l Limit) LockedOrFit(p *Profile, field string, asked, own float64, unlimited bool) (float64, *api.Adjustment, *api.Error) {
	if !p.Locks(l.Field) {
		return l.Fit(p, field, asked, unlimited)
	}
	if asked == own {
		return own, nil, nil
	}
	return own, &api.Adjustment{
		Field: field, Asked: FormatNumber(asked), Used: FormatNumber(own), Rule: KeyPath(p.Name, "locked", l.Field),
	}, nil
}

// lockable reports which fields a profile can lock.
func lockable(field string) bool {
	switch field {
	case FieldNetwork, FieldEgress, FieldImage, FieldReadOnlyRoot, FieldWorkspaceReadOnly, FieldMountsReadOnly:
		return true
	}
	return isLimit(field)
}

func isLimit(field string) bool {
	for _, l := range Limits() {
		if l.Field == field {
			return true
		}
	}
	return false
}

// ElementAt is the path of an element of a list, such as mounts[2].
func ElementAt(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// Shorten returns a caller's value for a record. It is unchanged if it is short and plain.
func Shorten(s string) string {
	if q := Quote(s); len(s) > maxShown || len(q) != len(s)+2 {
		return q
	}
	return s
}

const (
	// MinWorkspace and maxWorkspace are the smallest and largest size of a limited workspace.
	MinWorkspace = mib
	maxWorkspace = 1 << 43
)
