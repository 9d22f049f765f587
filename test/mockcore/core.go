// Package mockcore is a core for the tests of everything that talks to the
// native API. It isolates nothing: its sandboxes are maps, and its programs are
// a few functions.
package mockcore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Core is an httpapi.Core in memory. Names in a spec's profile make it fail on
// request: see Create.
type Core struct {
	Ports
	Watches
	Code
	ImageStore
	mu        sync.Mutex
	sandboxes map[string]*sandbox
	serial    int
	programs  int
	removed   []string
	events    []api.Event
	snapshots []api.Snapshot
	// workspaces are the named ones, of all tenants.
	workspaces []api.WorkspaceInfo
	ring       keyring
	changed    chan struct{} // closed and replaced at every change
	// Unready is a string: why Ready says that no work can be taken.
	Unready atomic.Value
}

// New makes a Core without sandboxes. Its ids are sb-1, sb-2, … and ex-1, ex-2, …
func New() *Core {
	return &Core{sandboxes: map[string]*sandbox{}, changed: make(chan struct{})}
}

// Epoch is the time of everything that a Core makes.
func Epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

type sandbox struct {
	record api.Sandbox
	files  map[string]file
	procs  []*process
	// allowed was added to its egress.
	allowed []string
	// managed processes by id, and their order.
	managed map[string]*managed
	order   []string
}

// Live counts the sandboxes.
func (c *Core) Live() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sandboxes)
}

// Running counts the programs that have not ended.
func (c *Core) Running() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.programs
}

// Await waits until ok holds, which is asked again after every change.
func (c *Core) Await(ctx context.Context, ok func() bool) error {
	for {
		c.mu.Lock()
		ch := c.changed
		c.mu.Unlock()
		if ok() {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("await a change: %w", ctx.Err())
		}
	}
}

// change is called with the lock held.
func (c *Core) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Create fails as the profile says: "full" has no capacity, "forbidden" is
// refused by a rule, "off" is disabled, "fault" is an error without a code,
// "panic" panics, "stuck" waits for the end of the context.
func (c *Core) Create(ctx context.Context, caller core.Caller, spec api.SandboxSpec, progress func(string)) (api.Sandbox, error) {
	switch spec.Profile {
	case "full":
		e := api.Errorf(api.CodeNoCapacity, "all 8 sandboxes are in use")
		e.Retryable, e.RetryAfterMS = true, 1500
		return api.Sandbox{}, e
	case "forbidden":
		e := api.Errorf(api.CodeDenied, "profile %q is not for this caller", spec.Profile).WithHint("allow it with profiles: [forbidden]")
		e.Rule = "profiles"
		return api.Sandbox{}, e
	case "off":
		return api.Sandbox{}, api.Errorf(api.CodeDisabled, "the operator switched sandboxes off")
	case "fault":
		return api.Sandbox{}, errors.New("mount /secret/host/path: no space")
	case "panic":
		panic("a defect")
	}
	for _, step := range []string{"image", "engine"} {
		if progress != nil {
			progress(step)
		}
	}
	if spec.Profile == "stuck" {
		<-ctx.Done()
		return api.Sandbox{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, sb := range c.sandboxes {
		if spec.Name != "" && sb.record.Name == spec.Name && sb.record.Tenant == caller.Tenant {
			return api.Sandbox{}, api.Errorf(api.CodeExists, "a sandbox named %q exists", spec.Name)
		}
	}
	c.serial++
	id := fmt.Sprintf("sb-%d", c.serial)
	rec := api.Sandbox{
		ID: id, Name: spec.Name, State: api.StateRunning, Tenant: caller.Tenant,
		Profile: api.DefaultProfile, Image: api.DefaultImage, Engine: "fake", Tier: api.TierNone,
		Network: "none", Cwd: api.DefaultWorkspacePath, Labels: maps.Clone(spec.Labels), Env: maps.Clone(spec.Env),
		Workspace: api.Workspace{Path: api.DefaultWorkspacePath}, IdempotencyKey: spec.IdempotencyKey,
		Limits: api.Limits{MemoryBytes: 2 << 30, Pids: 1024}, CreatedAt: Epoch(),
	}
	if rec.Name == "" {
		rec.Name = id
	}
	sb := &sandbox{record: rec, managed: map[string]*managed{}, files: map[string]file{"/": {dir: true, mode: 0o755}, rec.Cwd: {dir: true, mode: 0o755}}}
	for _, f := range spec.Files {
		sb.files[f.Path] = file{data: f.Content, mode: f.Mode}
	}
	c.sandboxes[id] = sb
	c.publish(sb, api.EventCreated, nil)
	return rec, nil
}

// find is called with the lock held.
func (c *Core) find(caller core.Caller, ref string) (*sandbox, error) {
	for _, sb := range c.sandboxes {
		if (sb.record.ID == ref || sb.record.Name == ref) && (sb.record.Tenant == caller.Tenant || caller.Operator) {
			return sb, nil
		}
	}
	return nil, api.Errorf(api.CodeNotFound, "there is no sandbox %q", ref).WithHint("list them with `cloche ls`")
}

// Get finds a sandbox.
func (c *Core) Get(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	return sb.record, nil
}

// Stats measures only a processor.
func (c *Core) Stats(ctx context.Context, caller core.Caller, ref string) (api.SandboxStats, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return api.SandboxStats{}, err
	}
	ms := int64(1500)
	return api.SandboxStats{Sandbox: sb.ID, Name: sb.Name, State: sb.State, Engine: sb.Engine, ObservedAt: Epoch(), CPUMS: &ms, Limits: sb.Limits}, nil
}

// List pages by id.
func (c *Core) List(_ context.Context, caller core.Caller, o api.ListOptions) (api.SandboxList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []api.Sandbox
	for _, sb := range c.sandboxes {
		r := sb.record
		fits := r.Tenant == caller.Tenant && (len(o.States) == 0 || slices.Contains(o.States, r.State))
		for k, v := range o.Labels {
			fits = fits && r.Labels[k] == v
		}
		if fits && r.ID > o.Cursor {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b api.Sandbox) int { return strings.Compare(a.ID, b.ID) })
	l := api.SandboxList{Sandboxes: all}
	if o.Limit > 0 && len(all) > o.Limit {
		l.Sandboxes, l.Next = all[:o.Limit], all[o.Limit-1].ID
	}
	return l, nil
}

// Delete ends every program and forgets the sandbox.
func (c *Core) Delete(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	_, err := c.end(caller, ref, api.StateStopped)
	if err != nil {
		return api.Sandbox{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	delete(c.sandboxes, sb.record.ID)
	c.removed = append(c.removed, sb.record.ID)
	c.publish(sb, api.EventRemoved, nil)
	gone := sb.record
	gone.State, gone.TerminalReason = api.StateDeleted, api.EndedDeleted
	return gone, nil
}

// Stop ends every program.
func (c *Core) Stop(_ context.Context, caller core.Caller, ref string, _ *time.Duration) (api.Sandbox, error) {
	return c.end(caller, ref, api.StateStopped)
}

// Kill ends every program.
func (c *Core) Kill(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.end(caller, ref, api.StateStopped)
}

func (c *Core) end(caller core.Caller, ref string, to api.State) (api.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	for _, p := range sb.procs {
		p.signal("KILL")
	}
	for _, p := range sb.managed {
		p.kill("KILL")
	}
	at := Epoch()
	sb.record.State, sb.record.StoppedAt = to, &at
	c.publish(sb, api.EventStopped, nil)
	return sb.record, nil
}

// Status is always well.
func (c *Core) Status(context.Context, core.Caller) api.Status {
	return api.Status{
		Version: "test", Enabled: true, Available: true,
		Engine: api.EngineStatus{Name: "fake", Available: true}, Sandboxes: c.Live(),
	}
}

// Ready says what Unready holds.
func (c *Core) Ready(context.Context) core.Unready {
	why, _ := c.Unready.Load().(string)
	return core.Unready(why)
}

// Info describes a daemon without rules.
func (c *Core) Info(_ context.Context, caller core.Caller) api.Info {
	return api.Info{
		Version: "test", API: api.APIVersion, Tenant: caller.Tenant, Operator: caller.Operator, ScopeEditable: true,
		NameTemplate: api.DefaultNameTemplate, Profiles: []string{api.DefaultProfile}, DefaultProfile: api.DefaultProfile,
	}
}

// ResolveName takes the launcher's id for the name.
func (c *Core) ResolveName(ctx context.Context, caller core.Caller, asked api.Naming) (api.ResolvedName, error) {
	if asked.Identity == nil || asked.Identity.LauncherID == "" {
		return api.ResolvedName{}, api.Invalid("identity", "nothing says for whom the request is").WithHint("set identity")
	}
	out := api.ResolvedName{Name: asked.Identity.LauncherID}
	if sb, err := c.Get(ctx, caller, out.Name); err == nil {
		out.Sandbox = sb.ID
	}
	return out, nil
}

// Doctor reports one engine.
func (c *Core) Doctor(context.Context, core.Caller) (api.Doctor, error) {
	return api.Doctor{
		Version: "test", Host: map[string]string{"kernel": "test"},
		Engines: []api.EngineReport{{
			Name: "fake", Tier: api.TierNone, Usable: true,
			Enforces: map[string]api.Enforcement{"pids": {OK: true}, "cpus": {Reason: "it isolates nothing"}},
			Problems: []api.Problem{{What: "no isolation", Mend: "use another"}},
		}},
	}, nil
}
