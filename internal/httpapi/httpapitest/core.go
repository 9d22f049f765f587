// Package httpapitest is a core for the tests of everything that talks to the
// native API. It isolates nothing: its sandboxes are maps, and its programs are
// a few functions.
package httpapitest

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

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Core is an httpapi.Core in memory. Names in a spec's profile make it fail on
// request: see Create.
type Core struct {
	mu        sync.Mutex
	sandboxes map[string]*sandbox
	serial    int
	programs  int
	removed   []string
	events    []cloche.Event
	snapshots []cloche.Snapshot
	images    []cloche.Image // but the host
	// workspaces are the named ones, of all tenants.
	workspaces []cloche.WorkspaceInfo
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
	record cloche.Sandbox
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
func (c *Core) Create(ctx context.Context, caller core.Caller, spec cloche.SandboxSpec, progress func(string)) (cloche.Sandbox, error) {
	switch spec.Profile {
	case "full":
		e := cloche.Errorf(cloche.CodeNoCapacity, "all 8 sandboxes are in use")
		e.Retryable, e.RetryAfterMS = true, 1500
		return cloche.Sandbox{}, e
	case "forbidden":
		e := cloche.Errorf(cloche.CodeDenied, "profile %q is not for this caller", spec.Profile).WithHint("allow it with profiles: [forbidden]")
		e.Rule = "profiles"
		return cloche.Sandbox{}, e
	case "off":
		return cloche.Sandbox{}, cloche.Errorf(cloche.CodeDisabled, "the operator switched sandboxes off")
	case "fault":
		return cloche.Sandbox{}, errors.New("mount /secret/host/path: no space")
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
		return cloche.Sandbox{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, sb := range c.sandboxes {
		if spec.Name != "" && sb.record.Name == spec.Name && sb.record.Tenant == caller.Tenant {
			return cloche.Sandbox{}, cloche.Errorf(cloche.CodeExists, "a sandbox named %q exists", spec.Name)
		}
	}
	c.serial++
	id := fmt.Sprintf("sb-%d", c.serial)
	rec := cloche.Sandbox{
		ID: id, Name: spec.Name, State: cloche.StateRunning, Tenant: caller.Tenant,
		Profile: cloche.DefaultProfile, Image: cloche.DefaultImage, Engine: "fake", Tier: cloche.TierNone,
		Network: "none", Cwd: cloche.DefaultWorkspacePath, Labels: maps.Clone(spec.Labels), Env: maps.Clone(spec.Env),
		Workspace: cloche.Workspace{Path: cloche.DefaultWorkspacePath}, IdempotencyKey: spec.IdempotencyKey,
		Limits: cloche.Limits{MemoryBytes: 2 << 30, Pids: 1024}, CreatedAt: Epoch(),
	}
	if rec.Name == "" {
		rec.Name = id
	}
	sb := &sandbox{record: rec, managed: map[string]*managed{}, files: map[string]file{"/": {dir: true, mode: 0o755}, rec.Cwd: {dir: true, mode: 0o755}}}
	for _, f := range spec.Files {
		sb.files[f.Path] = file{data: f.Content, mode: f.Mode}
	}
	c.sandboxes[id] = sb
	c.publish(sb, cloche.EventCreated, nil)
	return rec, nil
}

// find is called with the lock held.
func (c *Core) find(caller core.Caller, ref string) (*sandbox, error) {
	for _, sb := range c.sandboxes {
		if (sb.record.ID == ref || sb.record.Name == ref) && (sb.record.Tenant == caller.Tenant || caller.Operator) {
			return sb, nil
		}
	}
	return nil, cloche.Errorf(cloche.CodeNotFound, "there is no sandbox %q", ref).WithHint("list them with `cloche ls`")
}

// Get finds a sandbox.
func (c *Core) Get(_ context.Context, caller core.Caller, ref string) (cloche.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	return sb.record, nil
}

// Stats measures nothing but a processor.
func (c *Core) Stats(ctx context.Context, caller core.Caller, ref string) (cloche.SandboxStats, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return cloche.SandboxStats{}, err
	}
	ms := int64(1500)
	return cloche.SandboxStats{Sandbox: sb.ID, Name: sb.Name, State: sb.State, Engine: sb.Engine, ObservedAt: Epoch(), CPUMS: &ms, Limits: sb.Limits}, nil
}

// List pages by id.
func (c *Core) List(_ context.Context, caller core.Caller, o cloche.ListOptions) (cloche.SandboxList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []cloche.Sandbox
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
	slices.SortFunc(all, func(a, b cloche.Sandbox) int { return strings.Compare(a.ID, b.ID) })
	l := cloche.SandboxList{Sandboxes: all}
	if o.Limit > 0 && len(all) > o.Limit {
		l.Sandboxes, l.Next = all[:o.Limit], all[o.Limit-1].ID
	}
	return l, nil
}

// Delete ends every program and forgets the sandbox.
func (c *Core) Delete(_ context.Context, caller core.Caller, ref string) (cloche.Sandbox, error) {
	_, err := c.end(caller, ref, cloche.StateStopped)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	delete(c.sandboxes, sb.record.ID)
	c.removed = append(c.removed, sb.record.ID)
	c.publish(sb, cloche.EventRemoved, nil)
	gone := sb.record
	gone.State, gone.TerminalReason = cloche.StateDeleted, cloche.EndedDeleted
	return gone, nil
}

// Stop ends every program.
func (c *Core) Stop(_ context.Context, caller core.Caller, ref string, _ *time.Duration) (cloche.Sandbox, error) {
	return c.end(caller, ref, cloche.StateStopped)
}

// Kill ends every program.
func (c *Core) Kill(_ context.Context, caller core.Caller, ref string) (cloche.Sandbox, error) {
	return c.end(caller, ref, cloche.StateStopped)
}

func (c *Core) end(caller core.Caller, ref string, to cloche.State) (cloche.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	for _, p := range sb.procs {
		p.signal("KILL")
	}
	for _, p := range sb.managed {
		p.kill("KILL")
	}
	at := Epoch()
	sb.record.State, sb.record.StoppedAt = to, &at
	c.publish(sb, cloche.EventStopped, nil)
	return sb.record, nil
}

// Status is always well.
func (c *Core) Status(context.Context, core.Caller) cloche.Status {
	return cloche.Status{
		Version: "test", Enabled: true, Available: true,
		Engine: cloche.EngineStatus{Name: "fake", Available: true}, Sandboxes: c.Live(),
	}
}

// Ready says what Unready holds.
func (c *Core) Ready(context.Context) core.Unready {
	why, _ := c.Unready.Load().(string)
	return core.Unready(why)
}

// Info is that of a daemon without rules.
func (c *Core) Info(_ context.Context, caller core.Caller) cloche.Info {
	return cloche.Info{
		Version: "test", API: cloche.APIVersion, Tenant: caller.Tenant, Operator: caller.Operator, ScopeEditable: true,
		NameTemplate: cloche.DefaultNameTemplate, Profiles: []string{cloche.DefaultProfile}, DefaultProfile: cloche.DefaultProfile,
	}
}

// ResolveName takes the launcher's id for the name.
func (c *Core) ResolveName(ctx context.Context, caller core.Caller, asked cloche.Naming) (cloche.ResolvedName, error) {
	if asked.Identity == nil || asked.Identity.LauncherID == "" {
		return cloche.ResolvedName{}, cloche.Invalid("identity", "nothing says for whom the request is").WithHint("set identity")
	}
	out := cloche.ResolvedName{Name: asked.Identity.LauncherID}
	if sb, err := c.Get(ctx, caller, out.Name); err == nil {
		out.Sandbox = sb.ID
	}
	return out, nil
}

// Doctor reports one engine.
func (c *Core) Doctor(context.Context, core.Caller) (cloche.Doctor, error) {
	return cloche.Doctor{
		Version: "test", Host: map[string]string{"kernel": "test"},
		Engines: []cloche.EngineReport{{
			Name: "fake", Tier: cloche.TierNone, Usable: true,
			Enforces: map[string]cloche.Enforcement{"pids": {OK: true}, "cpus": {Reason: "it isolates nothing"}},
			Problems: []cloche.Problem{{What: "no isolation", Mend: "use another"}},
		}},
	}, nil
}
