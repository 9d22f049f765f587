package langbot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// session is one sandbox by the name that LangBot has for it. The server's mu guards
// what changes.
type session struct {
	physical, asked string
	place           placement
	spec            boxSpec
	// sandbox is its id in core, and engine what it runs on.
	sandbox, engine string
	created         time.Time
	// adjusted and unenforced are what the operator's rules and this machine made of it.
	adjusted   []api.Adjustment
	unenforced []api.Unenforced

	used time.Time
	// active counts what uses it now: an exec, a relay, a look at whether it lives.
	active    int
	processes map[string]*managed
}

// logical is its id as it is answered.
func (x *session) logical() string { return strings.TrimPrefix(x.physical, x.place.runtime()+"-") }

// sessionInfo is what is told of a session.
type sessionInfo struct {
	SessionID        string  `json:"session_id"`
	BackendName      string  `json:"backend_name"`
	BackendSessionID string  `json:"backend_session_id"`
	Image            string  `json:"image"`
	Network          string  `json:"network"`
	HostPath         *string `json:"host_path"`
	HostPathMode     string  `json:"host_path_mode"`
	MountPath        string  `json:"mount_path"`
	Persistent       bool    `json:"persistent"`
	CPUs             float64 `json:"cpus"`
	MemoryMB         whole   `json:"memory_mb"`
	PidsLimit        whole   `json:"pids_limit"`
	ReadOnlyRoot     bool    `json:"read_only_rootfs"`
	QuotaMB          whole   `json:"workspace_quota_mb"`
	CreatedAt        string  `json:"created_at"`
	LastUsedAt       string  `json:"last_used_at"`
	// Adjusted are values that a lock or a clamp of the operator changed, and
	// Unenforced limits that this machine cannot enforce.
	Adjusted   []api.Adjustment       `json:"adjusted,omitempty"`
	Unenforced []api.Unenforced       `json:"unenforced,omitempty"`
	Processes  map[string]processInfo `json:"managed_processes,omitempty"`
	Process    *processInfo           `json:"managed_process,omitempty"`
}

// stamp is a time as the client reads it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

func (s *Server) info(x *session) sessionInfo {
	s.mu.Lock()
	used := x.used
	s.mu.Unlock()
	return sessionInfo{
		SessionID: x.logical(), BackendName: x.engine, BackendSessionID: x.sandbox, Image: x.spec.Image, Network: x.spec.Network,
		HostPath: x.spec.HostPath, HostPathMode: x.spec.HostPathMode, MountPath: x.spec.MountPath, Persistent: x.spec.Persistent,
		CPUs: x.spec.CPUs, MemoryMB: x.spec.MemoryMB, PidsLimit: x.spec.PidsLimit, ReadOnlyRoot: x.spec.ReadOnlyRoot,
		QuotaMB: x.spec.QuotaMB, CreatedAt: stamp(x.created), LastUsedAt: stamp(used),
		Adjusted: x.adjusted, Unenforced: x.unenforced,
	}
}

// use keeps a session from being reaped until done is called.
func (s *Server) use(x *session) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.active++
	x.used = time.Now()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x.active--
		x.used = time.Now()
	}
}

// lookup finds a session that is there, by the id that it was asked for with or by the
// one that is answered.
func (s *Server) lookup(p placement, logical string) (*session, error) {
	physical, err := p.physical(logical)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.sessions[physical]
	if x == nil || x.asked != strings.TrimSpace(logical) && x.logical() != strings.TrimSpace(logical) {
		return nil, failed(classNotFound, "there is no session %s", clipped(logical))
	}
	return x, nil
}

// obtain finds the session of a spec, or makes it. The caller calls done when it has
// done with it.
func (s *Server) obtain(ctx context.Context, p placement, spec boxSpec) (x *session, done func(), err error) {
	physical, err := p.physical(spec.SessionID)
	if err != nil {
		return nil, nil, err
	}
	unlock, err := s.ops.lock(ctx, physical)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	s.mu.Lock()
	if s.shutting || s.done {
		s.mu.Unlock()
		return nil, nil, failed(classRuntime, "the runtime is shutting down")
	}
	x = s.sessions[physical]
	s.mu.Unlock()
	if x != nil {
		again, err := s.reuse(ctx, x, &spec)
		if err != nil {
			return nil, nil, err
		}
		if again {
			return x, s.use(x), nil
		}
		s.drop(ctx, x)
	}
	if x, err = s.create(ctx, p, physical, spec); err != nil {
		return nil, nil, err
	}
	return x, s.use(x), nil
}

// reuse says whether a session that is there is the one that is asked for. Where it is
// not, and that is no conflict, another takes its place.
func (s *Server) reuse(ctx context.Context, x *session, spec *boxSpec) (bool, error) {
	if x.asked != spec.SessionID { // also where it is the id that is answered: that may be another user's own
		return false, failed(classConflict, "Box session %s is another one's, whose id has the same letters and digits of ASCII", x.logical())
	}
	if field, has := x.spec.conflict(spec); field != "" {
		return false, failed(classConflict, "Box session %s already exists with %s=%s", x.physical, field, has)
	}
	if !slices.Equal(x.spec.mounts(), spec.mounts()) {
		return false, nil
	}
	return s.alive(ctx, x)
}

// alive reports whether the sandbox of a session can be used. A paused or suspended one is resumed. The sandbox of a
// persistent session that has ended, for example by a reboot, is started again with its workspace and its saved root.
// An error is one that may be gone at the next try: the sandbox is kept.
func (s *Server) alive(ctx context.Context, x *session) (bool, error) {
	caller := x.place.caller()
	sb, err := s.core.Get(ctx, caller, x.sandbox)
	if err != nil {
		return false, nil //nolint:nilerr // another sandbox takes its place
	}
	if sb.State.Held() {
		resumed, err := s.core.Resume(ctx, caller, x.sandbox)
		if err == nil {
			return resumed.State == api.StateRunning, nil
		}
		if sb.State == api.StatePaused || !core.MemoryRefused(err) {
			return false, err
		}
		// Its memory is of another version of the engine, or its files have changed. The workspace is kept.
		s.log.Warn("the memory of a suspended session can't be used: its processes are lost", "session", x.physical, "error", err)
		if sb, err = s.core.Stop(ctx, caller, x.sandbox, nil); err != nil {
			return false, err
		}
	}
	if !x.startable(sb.State) {
		return sb.State == api.StateRunning, nil
	}
	switch sb, err = s.core.StartSandbox(ctx, caller, x.sandbox, nil); api.CodeOf(err) {
	case "":
		return sb.State == api.StateRunning, nil
	case api.CodeState, api.CodeUnsupported, api.CodeNotFound: // it can't be started, now or later
		s.log.Warn("the sandbox of a persistent session can't be started again: a new one takes its place", "session", x.physical, "error", err)
		return false, nil
	}
	return false, err
}

// startable reports whether a session whose sandbox is in a state continues with a start of it.
func (x *session) startable(state api.State) bool {
	return x.spec.Persistent && (state == api.StateStopped || state == api.StateLost)
}

// create makes a sandbox for a session. The caller holds the lock of its id.
func (s *Server) create(ctx context.Context, p placement, physical string, spec boxSpec) (*session, error) {
	cfg := s.settings()
	made, err := s.reserveSession(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer made()
	c := s.choice(ctx)
	if !c.available {
		return nil, failed(classUnavailable, "%s", c.reason)
	}
	asked, err := cfg.translate(p, spec, c, skillVerbs{s}.shelf(p))
	if err != nil {
		return nil, err
	}
	if spec.Network == "on" {
		s.operator.networked(&asked)
	}
	if err := cfg.makeDirectory(asked.Workspace.Dir, s.operator.box.Local.DirectoryMode); err != nil {
		return nil, err
	}
	if s.core.Info(ctx, p.caller()).ScopeForced {
		asked.Identity = identityOf(p, strings.TrimPrefix(physical, p.runtime()+"-"))
	}
	sb, err := s.core.Create(ctx, p.caller(), asked, nil)
	for err != nil { // each round takes something out
		e, ok := errors.AsType[*api.Error](err)
		if !ok || !s.without(&asked, e) {
			break
		}
		sb, err = s.core.Create(ctx, p.caller(), asked, nil)
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	x := &session{
		physical: physical, asked: spec.SessionID, place: p, spec: spec, sandbox: sb.ID, engine: sb.Engine,
		created: now, used: now, processes: map[string]*managed{}, adjusted: sb.Adjusted, unenforced: slices.Concat(sb.Unenforced, s.leftOut(spec, asked)),
	}
	if err := s.keep(x); err != nil {
		return nil, errors.Join(err, s.core.Remove(context.WithoutCancel(ctx), p.caller(), sb.ID))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[physical] = x
	return x, nil
}

// makeDirectory makes the directory of a workspace below the default one where it is
// missing, with the operator's mode. Without a mode core makes it, for its owner alone.
// No link leads out of the default workspace.
func (s *settings) makeDirectory(dir string, mode dirMode) error {
	if mode == 0 || s.workspace == "" || dir == "" || !belowHost(runtime.GOOS, s.workspace, dir) {
		return nil
	}
	rel, err := filepath.Rel(s.workspace, dir)
	if err != nil {
		return failed(classValidation, "host_path: %s cannot be made: %w", clipped(dir), err)
	}
	root, err := os.OpenRoot(s.workspace)
	if err != nil {
		return failed(classValidation, "local.default_workspace: it cannot be opened: %w", err)
	}
	defer root.Close()
	at := ""
	for part := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		at = filepath.Join(at, part)
		switch err := root.Mkdir(at, 0o700); {
		case errors.Is(err, fs.ErrExist):
			continue
		case err == nil:
			err = root.Chmod(at, mode.fileMode()) // the umask has no say
			if err == nil {
				continue
			}
			return failed(classValidation, "host_path: %s cannot be given its mode: %w", clipped(dir), err)
		default:
			return failed(classValidation, "host_path: %s cannot be made: %w", clipped(dir), err)
		}
	}
	return nil
}

// without takes out of asked what this machine was found unable to hold, and reports
// whether it did.
func (s *Server) without(asked *api.SandboxSpec, e *api.Error) bool {
	switch {
	case e.Code != api.CodeUnsupported:
		return false
	case e.Field == "on_expiry" || e.Field == "auto_resume":
		asked.OnExpiry, asked.AutoResume, asked.Limits.IdleMS = api.ExpiryStop, false, 0 // the engine can't save memory
		return true
	case e.Field == "workspace.size_bytes" && asked.Workspace.Quota != api.QuotaMeasured:
		asked.Workspace.Quota = api.QuotaMeasured // the kernel cannot hold it here
		return true
	case !bool(s.operator.box.Compat.AllowUnenforced):
		return false
	}
	before := asked.Limits
	switch e.Field {
	case limitCPUs:
		asked.Limits.CPUs = 0
	case limitMemory:
		asked.Limits.MemoryBytes = 0
	case limitPids:
		asked.Limits.Pids = 0
	case limitRoot:
		asked.ReadOnlyRoot = new(false)
		return true
	}
	return asked.Limits != before
}

// The limits that a session may run without, as policy names them.
const (
	limitCPUs   = "limits.cpus"
	limitMemory = "limits.memory_bytes"
	limitPids   = "limits.pids"
	limitRoot   = "read_only_root"
)

// leftOut are the limits of a spec that its sandbox was not asked for.
func (s *Server) leftOut(spec boxSpec, asked api.SandboxSpec) (out []api.Unenforced) {
	for _, l := range []struct {
		field string
		gone  bool
	}{{limitCPUs, asked.Limits.CPUs == 0}, {limitMemory, asked.Limits.MemoryBytes == 0}, {limitPids, asked.Limits.Pids == 0}, {limitRoot, spec.ReadOnlyRoot && !*asked.ReadOnlyRoot}} {
		if l.gone {
			out = append(out, api.Unenforced{Field: l.field, Reason: "this machine cannot enforce it, and compat.allow_unenforced_limits lets the session run without it"})
		}
	}
	if len(out) > 0 {
		s.log.Warn("a session runs without limits that this machine cannot enforce", "session", clipped(spec.SessionID), "limits", out)
	}
	return out
}

// networked has a sandbox with a network get what the operator says that is.
func (s *settings) networked(asked *api.SandboxSpec) {
	n := s.box.Network
	asked.Profile = n.Profile
	switch {
	case len(n.Allow) > 0:
		asked.Egress = &api.Egress{Allow: n.Allow}
	case n.Profile != "":
		asked.Egress = nil
	}
	if len(n.Deny) > 0 {
		if asked.Egress == nil {
			asked.Egress = &api.Egress{}
		}
		asked.Egress.Deny = n.Deny
	}
}

// identityOf is for whom a session's requests are, where the operator's template names
// every sandbox: a session is the conversation, and one of another generation another.
func identityOf(p placement, logical string) *api.Identity {
	id := placementLabel(p) + "-" + logical
	return &api.Identity{LauncherType: "langbot", LauncherID: id, SenderID: id, QueryID: id}
}

// reserveSession counts a session that is about to be made, against the most that there may be. Sessions
// that were not used for too long are ended for it before they are reaped.
func (s *Server) reserveSession(ctx context.Context, cfg *settings) (made func(), err error) {
	for again := true; ; again = false {
		s.mu.Lock()
		n := len(s.sessions) + s.creating + s.closing
		if n < cfg.limits.Sessions {
			s.creating++
			s.mu.Unlock()
			return s.made, nil
		}
		s.mu.Unlock()
		if !again {
			return nil, failed(classCapacity, "there are %d sessions, which is the most", n)
		}
		s.dropIdle(ctx, cfg)
	}
}

// made counts a session no longer among those that are being made.
func (s *Server) made() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creating--
	if s.creating == 0 && s.quiet != nil {
		close(s.quiet)
		s.quiet = nil
	}
}

// allMade waits until no session is being made.
func (s *Server) allMade(ctx context.Context) {
	s.mu.Lock()
	if s.creating == 0 {
		s.mu.Unlock()
		return
	}
	if s.quiet == nil {
		s.quiet = make(chan struct{})
	}
	quiet := s.quiet
	s.mu.Unlock()
	select {
	case <-quiet:
	case <-ctx.Done():
	}
}

// keep writes the record of a session.
func (s *Server) keep(x *session) error {
	s.mu.Lock()
	r := record{
		Physical: x.physical, Place: x.place, Asked: x.asked, Spec: x.spec, Sandbox: x.sandbox, Engine: x.engine, Created: x.created,
		Adjusted: x.adjusted, Unenforced: x.unenforced,
	}
	for _, m := range x.processes {
		r.Processes = append(r.Processes, m.rec)
	}
	s.mu.Unlock()
	r.Spec.Cmd, r.Spec.Env = "", nil
	return s.store.put(r)
}

// maxQuotaMB is more than any workspace can have.
const maxQuotaMB = 1 << 40

// translate turns a spec into a sandbox that core is asked for.
func (s *settings) translate(p placement, spec boxSpec, c choice, shelf string) (api.SandboxSpec, error) {
	out := api.SandboxSpec{
		Engine: c.engine, Image: spec.Image, Network: api.NetworkNone, ReadOnlyRoot: &spec.ReadOnlyRoot, Persistent: new(true),
		OnExpiry: api.ExpiryStop,
		Limits:   api.Limits{CPUs: spec.CPUs, MemoryBytes: int64(spec.MemoryMB) << 20, Pids: int64(spec.PidsLimit)},
		Labels:   map[string]string{"langbot.session": clipped(spec.SessionID), "langbot.generation": placementLabel(p)},
	}
	if spec.Image == defaultImage {
		out.Image = ""
	}
	if after := s.suspendAfter(); spec.Persistent && after > 0 {
		out.OnExpiry, out.AutoResume, out.Limits.IdleMS = api.ExpirySuspend, true, after.Milliseconds()
	}
	if c.name == "docker" && s.box.Docker.CPULimit != nil && !bool(*s.box.Docker.CPULimit) {
		out.Limits.CPUs = 64
	}
	if spec.Network == "on" {
		out.Network, out.Egress = api.NetworkOn, &api.Egress{Allow: []string{"*"}}
	}
	out.Workspace = &api.Workspace{Path: spec.MountPath}
	switch {
	case spec.HostPathMode == "none":
	case spec.HostPath != nil:
		dir, err := s.mountable("host_path", *spec.HostPath)
		if err != nil {
			return out, err
		}
		out.Workspace.Dir, out.Workspace.ReadOnly = dir, spec.HostPathMode == "ro"
	case s.workspace != "":
		out.Workspace.Dir = filepath.Join(s.workspace, "tenants", p.durable())
		out.Workspace.ReadOnly = spec.HostPathMode == "ro"
	}
	if spec.QuotaMB > 0 && !out.Workspace.ReadOnly {
		out.Workspace.SizeBytes = int64(min(spec.QuotaMB, maxQuotaMB)) << 20
		if out.Workspace.Dir != "" {
			out.Workspace.Quota = api.QuotaMeasured // nothing holds a directory of the host
		}
	}
	if spec.SkillName != nil {
		out.Skills = append(out.Skills, api.SkillUse{Name: *spec.SkillName})
	}
	for _, m := range spec.mounts() {
		// A skill is where core has it, whatever the caller's path of it leads to.
		if name, ok := strings.CutPrefix(m.MountPath, strings.TrimSuffix(spec.MountPath, "/")+"/"+api.SkillsDir+"/"); ok && belowHost(runtime.GOOS, shelf, m.HostPath) {
			use := api.SkillUse{Name: name, Access: api.AccessRead}
			if m.Mode == "rw" {
				use.Access = api.AccessWrite
			}
			if err := s.sealed(m, m.HostPath); err != nil {
				return out, err
			}
			out.Skills = append(out.Skills, use)
			continue
		}
		dir, err := s.mountable("extra_mounts", m.HostPath)
		if err == nil {
			err = s.sealed(m, dir)
		}
		if err != nil {
			return out, err
		}
		out.Mounts = append(out.Mounts, api.Mount{Source: dir, Target: m.MountPath, ReadOnly: m.Mode == "ro"})
	}
	return out, nil
}

func placementLabel(p placement) string { return strings.TrimPrefix(p.runtime(), p.durable()+"-") }

// mountable is where a directory really is, if it lies below an allowed root. What is
// mounted is that path, which core looks at again.
func (s *settings) mountable(field, dir string) (string, error) {
	if !ofHost(runtime.GOOS, dir) {
		return "", failed(classValidation, "%s: %s is a path of another system", field, clipped(dir))
	}
	if len(s.roots) == 0 {
		return "", failed(classValidation, "%s: %s cannot be used, for the operator granted no directory of this host: see BOX__LOCAL__ALLOWED_MOUNT_ROOTS", field, clipped(dir))
	}
	real := resolved(dir)
	if !s.allowed(real) {
		return "", failed(classValidation, "%s: %s is not below one of the allowed_mount_roots: %s", field, clipped(dir), s.rootsText())
	}
	return real, nil
}

// rootsText names the roots, and how relative paths became one of them or did not.
func (s *settings) rootsText() string {
	text := strings.Join(s.roots, ", ")
	if s.base != "" {
		text += "; relative roots are resolved in " + s.base + ", the working directory of cloche"
	}
	if len(s.relative) > 0 {
		text += "; LangBot's own " + strings.Join(s.relative, ", ") + " are relative to its working directory, and not resolved here: set BOX__LOCAL__HOST_ROOT to the directory that is meant"
	}
	return text
}
