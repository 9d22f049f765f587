package policy

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
	fieldMemory            = "limits.memory_bytes"
	fieldPids              = "limits.pids"
	fieldDisk              = "limits.disk_bytes"
	fieldTimeout           = "limits.timeout_ms"
	fieldMaxOutput         = "limits.max_output_bytes"
	fieldLifetime          = "limits.lifetime_ms"
	fieldIdle              = "limits.idle_ms"
	fieldTmp               = "limits.tmp_bytes"
	fieldShm               = "limits.shm_bytes"
	fieldWorkspaceSize     = "workspace.size_bytes"
	fieldWorkspaceInodes   = "workspace.inodes"
	fieldNetwork           = "network"
	fieldImage             = "image"
	fieldReadOnlyRoot      = "read_only_root"
	fieldWorkspaceReadOnly = "workspace.read_only"
	fieldMountsReadOnly    = "mounts.read_only"
)

// bounds are the values of all limits: those of the sandbox, and those of its new workspace.
type bounds struct {
	api.Limits
	WorkspaceBytes, WorkspaceInodes int64
}

// limit describes one limit, so that the rules on limits exist once. Values are float64: each has a
// hard limit far below 2^53, so none is rounded.
type limit struct {
	field string
	// key is its name in the policy file.
	key string
	// enforced is its name in an engine's report. It is empty if Cloche enforces it itself on
	// every engine.
	enforced string
	// least is the smallest useful value, and hard the largest that is accepted even without a
	// ceiling.
	least, hard float64
	get         func(*bounds) float64
	set         func(*bounds, float64)
	ruled       func(*LimitRule) (float64, bool)
	format      func(float64) string
}

// maxTimeoutMS keeps a timeout far from overflowing a time.Duration.
const maxTimeoutMS = 366 * 24 * 3600 * 1000

// limits returns all limits. They are never changed.
func limits() []limit { return allLimits() }

// allLimits is computed once, because every decision uses it several times.
var allLimits = sync.OnceValue(func() []limit {
	return slices.Concat(machineLimits(), storageLimits(), timeLimits())
})

// machineLimits returns the limits on resources of the whole machine.
func machineLimits() []limit {
	return []limit{
		{
			field: fieldCPUs, key: "cpus", enforced: "cpus", least: 0.01, hard: 1 << 16,
			get:    func(l *bounds) float64 { return l.CPUs },
			set:    func(l *bounds, v float64) { l.CPUs = v },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.CPUs) },
			format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) },
		},
		{
			field: fieldMemory, key: "memory", enforced: "memory_bytes", least: 32 * mib, hard: 1 << 50,
			get:    func(l *bounds) float64 { return float64(l.MemoryBytes) },
			set:    func(l *bounds, v float64) { l.MemoryBytes = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.Memory) },
			format: formatSize,
		},
		{
			field: fieldPids, key: "pids", enforced: "pids", least: 1, hard: 1 << 22,
			get:    func(l *bounds) float64 { return float64(l.Pids) },
			set:    func(l *bounds, v float64) { l.Pids = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.Pids) },
			format: func(v float64) string { return strconv.FormatInt(int64(v), 10) },
		},
		{
			field: fieldDisk, key: "disk", enforced: "disk_bytes", least: leastRoot + minWorkspace, hard: 1 << 50,
			get:    func(l *bounds) float64 { return float64(l.DiskBytes) },
			set:    func(l *bounds, v float64) { l.DiskBytes = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.Disk) },
			format: formatSize,
		},
	}
}

// storageLimits returns the limits on writable places of a sandbox.
func storageLimits() []limit {
	return []limit{
		{
			field: fieldTmp, key: "tmp", least: 64 << 10, hard: 1 << 50,
			get:    func(l *bounds) float64 { return float64(l.TmpBytes) },
			set:    func(l *bounds, v float64) { l.TmpBytes = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.Tmp) },
			format: formatSize,
		},
		{
			field: fieldShm, key: "shm", least: 64 << 10, hard: 1 << 50,
			get:    func(l *bounds) float64 { return float64(l.ShmBytes) },
			set:    func(l *bounds, v float64) { l.ShmBytes = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.Shm) },
			format: formatSize,
		},
		{
			field: fieldWorkspaceSize, key: "workspace", least: minWorkspace, hard: maxWorkspace,
			get:    func(l *bounds) float64 { return float64(l.WorkspaceBytes) },
			set:    func(l *bounds, v float64) { l.WorkspaceBytes = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.Workspace) },
			format: formatSize,
		},
		{
			field: fieldWorkspaceInodes, key: "workspace_inodes", least: 1, hard: maxWorkspace / 4096,
			get:    func(l *bounds) float64 { return float64(l.WorkspaceInodes) },
			set:    func(l *bounds, v float64) { l.WorkspaceInodes = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.WorkspaceInodes) },
			format: func(v float64) string { return strconv.FormatInt(int64(v), 10) },
		},
	}
}

// timeLimits returns the limits on durations and on kept output.
func timeLimits() []limit {
	return []limit{
		{
			field: fieldTimeout, key: "timeout", least: 1, hard: maxTimeoutMS,
			get:    func(l *bounds) float64 { return float64(l.TimeoutMS) },
			set:    func(l *bounds, v float64) { l.TimeoutMS = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return millis(r.Timeout) },
			format: formatMillis,
		},
		{
			field: fieldMaxOutput, key: "max_output", least: 1, hard: api.MaxMaxOutput,
			get:    func(l *bounds) float64 { return float64(l.MaxOutputBytes) },
			set:    func(l *bounds, v float64) { l.MaxOutputBytes = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return value(r.MaxOutput) },
			format: formatSize,
		},
		{
			field: fieldLifetime, key: "lifetime", least: 1000, hard: maxTimeoutMS,
			get:    func(l *bounds) float64 { return float64(l.LifetimeMS) },
			set:    func(l *bounds, v float64) { l.LifetimeMS = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return millis(r.Lifetime) },
			format: formatMillis,
		},
		{
			field: fieldIdle, key: "idle", least: 1000, hard: maxTimeoutMS,
			get:    func(l *bounds) float64 { return float64(l.IdleMS) },
			set:    func(l *bounds, v float64) { l.IdleMS = int64(v) },
			ruled:  func(r *LimitRule) (float64, bool) { return millis(r.Idle) },
			format: formatMillis,
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
func (l limit) lowerDefault(p *profile) {
	ceiling := l.get(&p.ceilings)
	if v := l.get(&p.defaults); ceiling > 0 && (v == 0 || v > ceiling) {
		l.set(&p.defaults, ceiling)
	}
}

// check returns what is wrong with a requested value.
func (l limit) check(field string, v float64) *api.Error {
	switch {
	case math.IsNaN(v) || v < 0:
		return api.Invalid(field, "%s is %s, which is negative or no number", field, rawNumber(v)).
			WithHint("leave it out for the profile's default, or name at least %s", l.format(l.least))
	case v > 0 && v < l.least:
		return api.Invalid(field, "%s is %s, too little for anything to run", field, l.format(v)).
			WithHint("name at least %s", l.format(l.least))
	case v > l.hard:
		return api.Invalid(field, "%s is %s, more than any machine has", field, rawNumber(v)).
			WithHint("name at most %s", l.format(l.hard))
	}
	return nil
}

// fit compares a requested value with the ceiling of p: it is unchanged, clamped or refused. If
// unlimited is true, zero is a request for unlimited.
func (l limit) fit(p *profile, field string, v float64, unlimited bool) (float64, *api.Adjustment, *api.Error) {
	ceiling := l.get(&p.ceilings)
	if ceiling == 0 || v <= ceiling && (v > 0 || !unlimited) {
		return v, nil, nil
	}
	rule := ruleName(p.name, "ceilings", l.key)
	if p.clamps(l.field) {
		return ceiling, &api.Adjustment{Field: field, Asked: wire(v), Used: wire(ceiling), Rule: rule}, nil
	}
	asked := l.format(v)
	if v == 0 {
		asked = "unlimited"
	}
	e := denied(rule, field, "%s is %s, over the ceiling of %s of profile %s", field, asked, l.format(ceiling), show(p.name))
	return 0, nil, e.WithHint("ask for at most %s; the smallest rule that would allow it is %s", l.format(ceiling), l.ceilingRule(p, v))
}

// ceilingRule returns the smallest rule that would allow v.
func (l limit) ceilingRule(p *profile, v float64) string {
	s := l.format(v)
	if v == 0 {
		s = "0"
	} else if l.field == fieldTimeout || l.field == fieldLifetime || l.field == fieldIdle {
		s = time.Duration(int64(v) * int64(time.Millisecond)).String()
	}
	return "`profiles: {" + yamlString(p.name) + ": {ceilings: {" + l.key + ": " + s + "}}}`"
}
