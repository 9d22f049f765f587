package langbot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// admissionPolicy is the part of the configuration about grants. Where it is wrong it
// counts as required, and nothing is ready.
type admissionPolicy struct {
	required bool
	// wrong says what is the matter with it.
	wrong string

	Required       bool    `json:"required"`
	LogicalID      string  `json:"logical_session_id"`
	Backend        string  `json:"required_backend"`
	Sessions       int     `json:"max_sessions"`
	Processes      int     `json:"max_managed_processes"`
	GrantTTLSec    int64   `json:"max_grant_ttl_sec"`
	TimeoutSec     int64   `json:"max_timeout_sec"`
	CPUs           float64 `json:"cpus"`
	MemoryMB       int64   `json:"memory_mb"`
	Pids           int64   `json:"pids_limit"`
	ReadOnlyRoot   bool    `json:"read_only_rootfs"`
	QuotaMB        int64   `json:"workspace_quota_mb"`
	ReadinessCache int64   `json:"readiness_cache_sec"`
}

// globalSession is the one session of a workspace where grants are needed.
const globalSession = "global"

func parsePolicy(data []byte) admissionPolicy {
	usual := admissionPolicy{
		LogicalID: globalSession, Backend: "nsjail", Sessions: 1, GrantTTLSec: 300, TimeoutSec: 120, CPUs: 1, MemoryMB: 512, Pids: 128,
		ReadOnlyRoot: true, ReadinessCache: 15,
	}
	if len(data) == 0 || bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return usual
	}
	p := usual
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(&p)
	switch {
	case err != nil:
		p.wrong = "admission cannot be read, or has a key that there is not"
	case p.LogicalID != globalSession || p.Backend != "nsjail" || p.Sessions < 0 || p.Sessions > 1 || p.Processes != 0:
		p.wrong = "admission asks for another session than global, another backend than nsjail, more than one session, or processes"
	case p.GrantTTLSec < 1 || p.TimeoutSec < 1 || !(p.CPUs > 0) || p.MemoryMB < 32 || p.Pids < 1 || p.QuotaMB < 0 || p.ReadinessCache < 0:
		p.wrong = "a number of admission is too small"
	}
	if p.required = p.Required; p.wrong != "" {
		p = usual
		p.required, p.wrong = true, "admission is malformed"
	}
	return p
}

// followedBy is the policy after a new configuration: what needed grants goes on to
// need them until the runtime is started anew.
func (p admissionPolicy) followedBy(next admissionPolicy) admissionPolicy {
	if p.required && !next.required {
		p.wrong = "admission was required and cannot be switched off while the runtime runs"
		return p
	}
	return next
}

// readiness is whether what a policy demands is enforced here.
type readiness struct {
	Ready   bool            `json:"ready"`
	Mode    string          `json:"mode"`
	Backend readyBackend    `json:"backend"`
	Unsafe  *bool           `json:"unsafe_soft_storage_limits,omitempty"`
	Error   string          `json:"error,omitempty"`
	Checks  map[string]bool `json:"checks"`
}

type readyBackend struct {
	Name      *string           `json:"name"`
	Available bool              `json:"available"`
	Details   map[string]string `json:"details,omitempty"`
}

// notReady names the limits that are not enforced.
func (r readiness) notReady() *failure {
	var missing []string
	for check, ok := range r.Checks {
		if !ok {
			missing = append(missing, check)
		}
	}
	slices.Sort(missing)
	return failed(classReadiness, "managed sandbox isolation is not ready: %s", strings.Join(missing, ", "))
}

// readiness is answered from what the engine says that it enforces, and from what this
// runtime does with it.
func (s *Server) readiness(ctx context.Context) readiness {
	cfg := s.settings()
	c := s.choice(ctx)
	r := readiness{Mode: "standard", Backend: readyBackend{Available: c.available}, Checks: map[string]bool{"backend_available": c.available}}
	if c.name != "" {
		r.Backend.Name = &c.name
	}
	if !cfg.policy.required {
		if r.Ready = c.available; !r.Ready {
			r.Error = c.reason
		}
		return r
	}
	r.Mode, r.Unsafe, r.Error = "grant_enforced", new(s.o.UnsafeStorage), cfg.policy.wrong
	report := s.reportOf(ctx, c.name)
	r.Backend.Details = maps.Clone(report.Facts)
	r.Ready = true
	for check, why := range s.unmet(cfg, c, report) {
		r.Checks[check] = why == ""
		if why == "" {
			continue
		}
		r.Ready = false
		if r.Backend.Details == nil {
			r.Backend.Details = map[string]string{}
		}
		r.Backend.Details[check] = why
	}
	if !r.Ready && r.Error == "" {
		r.Error = r.notReady().text
	}
	return r
}

// unmet are the checks of the strict mode, each with why it fails; empty is that it
// holds.
func (s *Server) unmet(cfg *settings, c choice, report api.EngineReport) map[string]string {
	unless := func(ok bool, why string) string {
		if ok {
			return ""
		}
		return why
	}
	holds := func(limits ...string) string {
		for _, l := range limits {
			if e := report.Enforces[l]; !e.OK {
				return cmp.Or(e.Reason, "the engine does not enforce "+l)
			}
		}
		return ""
	}
	// The operator may say that storage need not be held.
	storage := func(why string) string { return unless(s.o.UnsafeStorage, why) }
	isolates := unless(c.available && report.Tier != api.TierNone && report.Tier != "", "the engine isolates nothing, or is not available")
	fi, err := os.Stat(cfg.workspace)
	mounted := cfg.workspace != "" && err == nil && fi.IsDir() && cfg.allowed(resolved(cfg.workspace))
	const unheld = "the workspace is a directory of the host, which is measured before and after an exec, and which nothing holds while one runs"
	return map[string]string{
		"configuration":       cfg.policy.wrong,
		"required_backend":    unless(c.name == cfg.policy.Backend, "the backend is "+cmp.Or(c.name, "none")+", and "+cfg.policy.Backend+" is required"),
		"workspace_mount":     unless(mounted, "there is no default workspace below the allowed_mount_roots"),
		"backend_available":   unless(c.available, cmp.Or(c.reason, "it is not available")),
		"cgroup_v2":           holds("memory_bytes", "pids", "cpus"),
		"namespace_isolation": isolates, "mount_isolation": isolates, "network_isolation": isolates,
		"hard_workspace_quota": storage(unheld), "inode_quota": storage(unheld),
		// Skills, and every other mount but the workspace, are to be read only inside;
		// what they occupy has a bound by the operator's rules, which core holds.
		"hard_skill_storage_quota": storage(isolates), "hard_read_only_mount_quota": storage(isolates),
		"bounded_ephemeral_storage": storage(holds("disk_bytes")),
		"session_cap":               unless(cfg.policy.Sessions <= 1, "more than one session is allowed"),
		"managed_process_cap":       unless(cfg.policy.Processes == 0, "managed processes are allowed"),
	}
}

func (s *Server) reportOf(ctx context.Context, name string) api.EngineReport {
	reports, err := s.core.Engines(ctx, fixture())
	if err != nil {
		return api.EngineReport{}
	}
	if i := slices.IndexFunc(reports, func(r api.EngineReport) bool { return r.Name == name }); i >= 0 {
		return reports[i]
	}
	return api.EngineReport{}
}

// grantSpec is a grant as it comes, and its revocation.
type grantSpec struct {
	Instance   string     `json:"instance_uuid"`
	Workspace  string     `json:"workspace_uuid"`
	Generation int64      `json:"execution_generation"`
	Revision   int64      `json:"entitlement_revision"`
	Expires    *time.Time `json:"expires_at,omitempty"`
	Sessions   *int       `json:"max_sessions,omitempty"`
	Processes  *int       `json:"max_managed_processes,omitempty"`
}

// grants are by the durable name of their workspace. What was seen is kept indefinitely,
// so that nothing old is taken again. It is safe for concurrent use.
type grants struct {
	mu  sync.Mutex
	all map[string]*granted
}

type granted struct {
	place placement
	// now is nil when it was revoked or has expired.
	now                           *grantSpec
	revision, revoked, generation int64
}

func newGrants() *grants { return &grants{all: map[string]*granted{}} }

func readGrant(data json.RawMessage) (grantSpec, error) {
	var g grantSpec
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&g); err != nil {
		return g, failed(classAdmission, "the grant cannot be read, or has a key that there is not")
	}
	if g.Instance = strings.TrimSpace(g.Instance); g.Instance == "" || strings.TrimSpace(g.Workspace) == "" || g.Revision < 1 {
		return g, failed(classAdmission, "instance_uuid, workspace_uuid and an entitlement_revision from 1 are needed")
	}
	return g, nil
}

// admit installs a grant.
func (s *Server) admit(ctx context.Context, data json.RawMessage) (any, error) {
	cfg := s.settings()
	if !cfg.policy.required || cfg.policy.wrong != "" {
		return nil, failed(classAdmission, "grants are not enforced here, or their configuration is wrong")
	}
	g, err := readGrant(data)
	if err != nil {
		return nil, err
	}
	if g.Instance != s.pin.trusted() {
		return nil, failed(classPermission, "the grant's instance does not match the trusted instance")
	}
	ttl := time.Duration(cfg.policy.GrantTTLSec) * time.Second
	switch {
	case g.Generation < 1 || g.Expires == nil || g.Sessions == nil || g.Processes == nil || *g.Sessions < 0 || *g.Processes < 0:
		return nil, failed(classAdmission, "execution_generation, expires_at, max_sessions and max_managed_processes are needed")
	case !time.Now().Before(*g.Expires):
		return nil, failed(classAdmission, "the grant has expired")
	case time.Until(*g.Expires) > ttl:
		return nil, failed(classAdmission, "the grant lasts longer than %d seconds", cfg.policy.GrantTTLSec)
	case *g.Sessions > cfg.policy.Sessions || *g.Processes > cfg.policy.Processes:
		return nil, failed(classAdmission, "the grant is for more sessions or processes than the policy allows")
	}
	p := placement{g.Instance, g.Workspace, g.Generation}
	fresh, now, err := s.grant.install(p, g, cfg.limits.Records)
	if err != nil {
		return nil, err
	}
	_, land, _, err := s.fence.observe(ctx, p)
	if err != nil {
		return nil, err
	}
	land()
	canonical, _ := p.physical(globalSession)
	s.dropAll(ctx, func(x *session) bool {
		return x.place.durable() == p.durable() && (fresh || *now.Sessions == 0 || x.physical != canonical)
	})
	return map[string]any{
		"installed": true, "workspace_uuid": now.Workspace, "execution_generation": now.Generation, "entitlement_revision": now.Revision,
		"max_sessions": *now.Sessions, "max_managed_processes": *now.Processes, "expires_at": now.Expires.Format(time.RFC3339Nano),
	}, nil
}

// install keeps a grant that is not older than what was seen. fresh says that it is of
// a new workspace or generation.
func (g *grants) install(p placement, spec grantSpec, most int) (fresh bool, now grantSpec, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	have := g.all[p.durable()]
	if have == nil {
		if len(g.all) >= most {
			return false, now, failed(classAdmission, "there are %d grants, which is the most", most)
		}
		have = &granted{place: p}
		g.all[p.durable()] = have
	}
	switch old := have.now; {
	case spec.Revision <= have.revoked || spec.Revision < have.revision || spec.Generation < have.generation:
		return false, now, failed(classAdmission, "the grant is older than one that was seen, or was revoked")
	case old != nil && spec.Revision == old.Revision && (*spec.Sessions != *old.Sessions || *spec.Processes != *old.Processes):
		return false, now, failed(classAdmission, "a grant of this revision has other limits")
	case old != nil && spec.Revision == old.Revision && spec.Generation == old.Generation && spec.Expires.Before(*old.Expires):
		return false, *old, nil
	}
	fresh = have.now == nil || spec.Generation > have.generation
	have.now, have.revision, have.generation = &spec, spec.Revision, spec.Generation
	return fresh, spec, nil
}

// sessions is how many a workspace's grant allows now.
func (g *grants) sessions(p placement) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	have := g.all[p.durable()]
	if have == nil || have.now == nil || have.now.Generation != p.Generation || !time.Now().Before(*have.now.Expires) {
		return 0
	}
	return *have.now.Sessions
}

// revoke takes a grant back for good.
func (s *Server) revoke(ctx context.Context, data json.RawMessage) (any, error) {
	g, err := readGrant(data)
	if err != nil {
		return nil, err
	}
	if g.Instance != s.pin.trusted() {
		return nil, failed(classPermission, "the revocation's instance does not match the trusted instance")
	}
	p := placement{g.Instance, g.Workspace, 1}
	s.grant.mu.Lock()
	have := s.grant.all[p.durable()]
	if have == nil {
		if most := s.settings().limits.Records; len(s.grant.all) >= most {
			s.grant.mu.Unlock()
			return nil, failed(classAdmission, "there are %d grants, which is the most", most)
		}
		have = &granted{place: p}
		s.grant.all[p.durable()] = have
	}
	if g.Revision < have.revision || g.Revision < have.revoked {
		s.grant.mu.Unlock()
		return nil, failed(classAdmission, "the revocation is older than a grant that was seen")
	}
	have.now, have.revoked, have.revision = nil, g.Revision, g.Revision
	s.grant.mu.Unlock()
	s.dropAll(ctx, func(x *session) bool { return x.place.durable() == p.durable() })
	return map[string]any{"revoked": true, "workspace_uuid": g.Workspace, "entitlement_revision": g.Revision}, nil
}

// mayUse says whether a workspace may use sandboxes at all.
func (s *Server) mayUse(ctx context.Context, p placement) error {
	if !s.settings().policy.required {
		return nil
	}
	if r := s.readiness(ctx); !r.Ready {
		return r.notReady()
	}
	s.grant.mu.Lock()
	defer s.grant.mu.Unlock()
	have := s.grant.all[p.durable()]
	if have == nil || have.now == nil || have.now.Generation != p.Generation || !time.Now().Before(*have.now.Expires) || *have.now.Sessions < 1 {
		return failed(classAdmission, "the Workspace has no grant for a sandbox in this generation")
	}
	return nil
}

// mayRelay says whether a workspace may reach a process: where grants are needed there
// are none.
func (s *Server) mayRelay(ctx context.Context, p placement) error {
	if err := s.mayUse(ctx, p); err != nil {
		return err
	}
	if s.settings().policy.required {
		return failed(classAdmission, "the grant has no managed processes")
	}
	return nil
}

// onlyGlobal holds ids to the one that there is where grants are needed.
func (s *Server) onlyGlobal(logical string) error {
	if s.settings().policy.required && logical != globalSession {
		return failed(classAdmission, "there is no other session than %s where grants are needed", globalSession)
	}
	return nil
}

// normalise brings a spec to what the policy of grants allows.
func (s *Server) normalise(_ context.Context, p placement, spec boxSpec) (boxSpec, error) {
	cfg := s.settings()
	if !cfg.policy.required {
		return spec, nil
	}
	canonical := filepath.Join(cfg.workspace, "tenants", p.durable())
	switch {
	case spec.Network != "off":
		return spec, failed(classAdmission, "network: it is off where grants are needed")
	case spec.MountPath != usualMountPath || !below(usualMountPath, spec.Workdir):
		return spec, failed(classAdmission, "mount_path: it is %s where grants are needed", usualMountPath)
	case spec.HostPath != nil && resolved(*spec.HostPath) != canonical:
		return spec, failed(classAdmission, "host_path: it is the Workspace's own directory where grants are needed")
	}
	mounts, err := cfg.granted(p, spec.ExtraMounts)
	if err != nil {
		return spec, err
	}
	spec.ExtraMounts = mounts
	spec.SessionID, spec.Image, spec.HostPath, spec.HostPathMode, spec.Persistent = globalSession, defaultImage, &canonical, "rw", true
	spec.CPUs, spec.MemoryMB, spec.PidsLimit = cfg.policy.CPUs, whole(cfg.policy.MemoryMB), whole(cfg.policy.Pids)
	spec.ReadOnlyRoot, spec.QuotaMB = cfg.policy.ReadOnlyRoot, whole(cfg.policy.QuotaMB)
	spec.TimeoutSec = min(spec.TimeoutSec, whole(cfg.policy.TimeoutSec))
	return spec, nil
}

// expireGrants ends what expired grants were for.
func (s *Server) expireGrants(ctx context.Context, now time.Time) {
	gone := map[string]bool{}
	s.grant.mu.Lock()
	for key, have := range s.grant.all {
		if have.now != nil && !now.Before(*have.now.Expires) {
			have.now, gone[key] = nil, true
		}
	}
	s.grant.mu.Unlock()
	if len(gone) > 0 {
		s.dropAll(ctx, func(x *session) bool { return gone[x.place.durable()] })
	}
}
