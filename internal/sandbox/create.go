package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// agentTarget is where the agent's image is seen inside.
	agentTarget = "/.cloche"
	// tmpBytes and shmBytes bound /tmp and /dev/shm, which are memory.
	tmpBytes = 512 << 20
	shmBytes = 64 << 20
	// maskBytes is the size of what hides a directory of the host.
	maskBytes = 64 << 10
	// createTimeout bounds a whole creation, whatever the caller allows.
	createTimeout = 2 * time.Minute
)

// creation is a create in progress.
type creation struct {
	m        *Manager
	permit   policy.Permit
	s        *live
	progress func(step string)

	plan   engine.Plan
	staged undoStack
	inst   engine.Instance
	client *agent.Client
}

// Create makes the sandbox that permit grants and returns when processes can be
// started in it. On error, or when ctx ends, nothing is left behind. progress,
// which may be nil, is told the name of each step as it begins.
func (m *Manager) Create(ctx context.Context, permit policy.Permit, progress func(step string)) (cloche.Sandbox, error) {
	s, err := m.create(ctx, permit, progress)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	return s.snapshot(), nil
}

func (m *Manager) create(ctx context.Context, permit policy.Permit, progress func(step string)) (*live, error) {
	if !permit.Valid() {
		return nil, cloche.Errorf(cloche.CodeDenied, "no policy has granted this sandbox")
	}
	if progress == nil {
		progress = func(string) {}
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	c := &creation{m: m, permit: permit, progress: progress, s: m.newLive(permit)}
	if err := m.admit(c.s, permit.Quota()); err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := c.run(ctx); err != nil {
		m.log.Warn("create failed", "sandbox", c.s.id, "error", err)
		return nil, m.abandon(ctx, c.s, err)
	}
	m.log.Info("sandbox created", "sandbox", c.s.id, "name", c.s.name, "took", time.Since(begun))
	inst := c.inst
	m.wg.Go(func() { m.watch(c.s, inst) })
	return c.s, nil
}

// newLive makes the record of a sandbox that is about to be created.
func (m *Manager) newLive(permit policy.Permit) *live {
	spec, id := permit.Spec(), cloche.NewID("sb-")
	name := cmp.Or(spec.Name, id)
	return &live{
		id: id, tenant: permit.Tenant(), name: name,
		dir:   filepath.Join(m.sandboxesDir(), id),
		ended: make(chan struct{}),
		info: cloche.Sandbox{
			ID: id, Name: name, State: cloche.StateCreating, Tenant: permit.Tenant(),
			Profile: permit.Profile(), Image: spec.Image, Engine: permit.Engine(), Tier: permit.Tier(),
			Network: spec.Network, Env: spec.Env, User: spec.User, Cwd: spec.Cwd, Mounts: spec.Mounts,
			Workspace: *spec.Workspace, Limits: permit.Limits(), ReadOnlyRoot: spec.ReadOnlyRoot != nil && *spec.ReadOnlyRoot,
			Labels: spec.Labels, Adjusted: permit.Adjusted(), Unenforced: permit.Unenforced(), CreatedAt: now(),
		},
	}
}

// run does the steps in order. Each pushes its own undo before the next begins.
func (c *creation) run(ctx context.Context) error {
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"directory", c.makeDir},
		{"image", c.resolveImage},
		{"workspace", c.openWorkspace},
		{"mounts", c.stageMounts},
		{"agent", c.prepareAgent},
		{"engine", c.startEngine},
		{"connect", c.connect},
		{"files", c.writeFiles},
		{"record", c.commit},
	}
	defer func() {
		// What was staged for the engine is of no use after its Create.
		if err := c.staged.run(ctx); err != nil {
			c.m.log.Error("staged mounts are left", "sandbox", c.s.id, "error", err)
		}
	}()
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return canceled(step.name, err)
		}
		c.progress(step.name)
		begun := time.Now()
		if err := step.do(ctx); err != nil {
			if ctx.Err() != nil {
				return canceled(step.name, err)
			}
			return classify(step.name, err)
		}
		c.m.log.Debug("create step", "sandbox", c.s.id, "step", step.name, "took", time.Since(begun))
	}
	return nil
}

// canceled is the error of a create whose caller went away or whose time was up.
func canceled(step string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return cloche.Errorf(cloche.CodeTimeout, "creating the sandbox took longer than %s, at step %s", createTimeout, step).WithCause(err)
	}
	return cloche.Errorf(cloche.CodeCanceled, "the create was canceled at step %s", step).WithCause(err)
}

// classify names the step in an error that no room has classified.
func classify(step string, err error) error {
	if _, ok := errors.AsType[*cloche.Error](err); ok {
		return err
	}
	return cloche.Errorf(cloche.CodeInternal, "creating the sandbox failed at step %s", step).WithCause(err)
}

func (c *creation) makeDir(context.Context) error {
	if err := os.MkdirAll(filepath.Dir(c.s.dir), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(c.s.dir, 0o700); err != nil {
		return err
	}
	c.s.undo.push("directory", func(context.Context) error { return workspace.RemoveTree(c.s.dir) })
	for _, sub := range []string{"engine", "staging"} {
		if err := os.Mkdir(filepath.Join(c.s.dir, sub), 0o700); err != nil {
			return err
		}
	}
	return nil
}

func (c *creation) resolveImage(ctx context.Context) error {
	root, err := c.m.opts.Images.Resolve(ctx, c.s.info.Image, image.Need{
		MountPoints: c.mountPoints(), ReadOnlyRoot: c.s.info.ReadOnlyRoot,
	})
	if err != nil {
		return err
	}
	for _, dir := range root.Masks {
		c.plan.Tmpfs = append(c.plan.Tmpfs, engine.Tmpfs{Target: dir, SizeBytes: maskBytes, Mode: 0o755})
	}
	for _, m := range root.Mounts {
		c.plan.Mounts = append(c.plan.Mounts, engine.Mount{Source: m.Source, Target: m.Target, ReadOnly: true, Static: true})
	}
	c.plan.Root = engine.Root{Image: root.Image, ReadOnly: c.s.info.ReadOnlyRoot}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.info.ImageDigest = root.Digest
	c.s.info.User = cmp.Or(c.s.info.User, root.User)
	c.s.image = imageFacts{Env: root.Env, MissingHint: root.MissingHint}
	return nil
}

// mountPoints are the paths at which the request puts something.
func (c *creation) mountPoints() []string {
	points := []string{c.s.info.Workspace.Path}
	for _, m := range c.permit.Mounts() {
		points = append(points, m.Target)
	}
	return points
}

// openWorkspace finds or makes the workspace and stages it as the first mount
// after the image's.
func (c *creation) openWorkspace(context.Context) error {
	ws := c.s.info.Workspace
	if host, ok := c.permit.WorkspaceDir(); ok {
		return c.stage(host)
	}
	var dir *workspace.Dir
	var err error
	if ws.Name != "" {
		if _, err = c.m.opts.Workspaces.Create(workspace.Wish{Tenant: c.s.tenant, Name: ws.Name}); err == nil || errors.Is(err, cloche.ErrExists) {
			dir, err = c.m.opts.Workspaces.Open(c.s.tenant, ws.Name, "")
		}
	} else {
		dir, err = workspace.Private(filepath.Join(c.s.dir, "workspace"))
	}
	if err != nil {
		return err
	}
	return c.stageDir(dir, ws.Path, ws.ReadOnly)
}

func (c *creation) stageMounts(context.Context) error {
	for _, host := range c.permit.Mounts() {
		if err := c.stage(host); err != nil {
			return err
		}
	}
	return nil
}

// stage mounts a granted host directory into the staging directory, if it is
// still the one that policy judged.
func (c *creation) stage(host policy.HostDir) error {
	dir, err := workspace.OpenDir(host.Real)
	if err != nil {
		return err
	}
	if dev, ino := dir.ID(); dev != host.Dev || ino != host.Ino {
		dir.Close()
		return cloche.Errorf(cloche.CodeDenied, "the directory %s was replaced while the request was being decided", host.Asked).
			WithHint("ask again")
	}
	return c.stageDir(dir, host.Target, host.ReadOnly)
}

// stageDir takes over dir.
func (c *creation) stageDir(dir *workspace.Dir, target string, readOnly bool) error {
	defer dir.Close()
	staged, err := dir.Stage(filepath.Join(c.s.dir, "staging"), readOnly)
	if err != nil {
		return err
	}
	c.staged.push("staged mount", func(context.Context) error { return staged.Close() })
	c.plan.Mounts = append(c.plan.Mounts, engine.Mount{Source: staged.Path, Target: target, ReadOnly: readOnly})
	return nil
}

func (c *creation) prepareAgent(ctx context.Context) error {
	img, err := c.m.opts.AgentImage(ctx)
	if err != nil {
		return err
	}
	c.s.token = agent.NewToken()
	limits := c.s.info.Limits
	config, err := json.Marshal(agent.Config{
		Token: c.s.token, Port: agent.Port, PidsMax: limits.Pids, SingleUser: os.Geteuid() != 0, User: c.s.info.User,
	})
	if err != nil {
		return fmt.Errorf("encode the agent's configuration: %w", err)
	}
	c.plan.ID, c.plan.Owner = c.s.id, c.m.opts.Owner
	c.plan.Dir = filepath.Join(c.s.dir, "engine")
	c.plan.Hostname = hostname(c.s.name)
	c.plan.DieWithParent = c.m.opts.Ephemeral
	c.plan.Tmpfs = append(c.plan.Tmpfs,
		engine.Tmpfs{Target: "/tmp", SizeBytes: within(tmpBytes, limits.MemoryBytes), Mode: 0o1777},
		engine.Tmpfs{Target: "/dev/shm", SizeBytes: within(shmBytes, limits.MemoryBytes), Mode: 0o1777},
	)
	c.plan.Limits = engine.Limits{CPUs: limits.CPUs, MemoryBytes: limits.MemoryBytes, Pids: limits.Pids, DiskBytes: limits.DiskBytes}
	c.plan.Agent = engine.Agent{
		Image: img, Target: agentTarget, Argv: []string{agentTarget + "/" + agent.Argv0}, UID: agent.UID, Config: config, Port: agent.Port,
	}
	return nil
}

// within is the size of a memory filesystem: small enough that filling it is an
// error in the sandbox and not its end.
func within(size, memory int64) int64 {
	if memory > 0 {
		return min(size, memory/3)
	}
	return size
}

func (c *creation) startEngine(ctx context.Context) error {
	eng := c.m.engineNamed(c.permit.Engine())
	if eng == nil {
		return cloche.Errorf(cloche.CodeUnavailable, "engine %q is not in this build", c.permit.Engine())
	}
	inst, err := eng.Create(ctx, c.plan)
	if err != nil {
		return err
	}
	c.inst = inst
	c.s.mu.Lock()
	c.s.inst = inst
	c.s.mu.Unlock()
	c.s.undo.push("engine", func(ctx context.Context) error {
		if err := inst.Close(ctx); err != nil {
			return err
		}
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.s.finish(ending{reason: "the sandbox was ended"})
		return nil
	})
	return nil
}

func (c *creation) connect(ctx context.Context) error {
	conn := &agentConn{inst: c.inst, token: c.s.token}
	c.s.mu.Lock()
	c.s.agent = conn
	c.s.mu.Unlock()
	client, err := conn.get(ctx)
	c.client = client
	return err
}

// writeFiles writes what the request brought with it, and makes sure that the
// working directory exists.
func (c *creation) writeFiles(ctx context.Context) error {
	for i, f := range c.permit.Spec().Files {
		o := agent.WriteOptions{Mode: cmp.Or(f.Mode, 0o644), User: c.s.info.User, Parents: true}
		if _, err := c.client.WriteFile(ctx, f.Path, o, bytes.NewReader(f.Content)); err != nil {
			if e, ok := errors.AsType[*cloche.Error](err); ok {
				e.Field = fmt.Sprintf("files[%d].path", i)
			}
			return err
		}
	}
	return nil
}

// commit makes the sandbox one that the next daemon will find.
func (c *creation) commit(context.Context) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err := c.s.move(cloche.StateRunning, ""); err != nil {
		return err
	}
	return c.s.save()
}

// save writes the record. The caller holds s.mu.
func (s *live) save() error {
	r := record{Version: recordVersion, Info: s.info, AgentToken: s.token, Image: s.image}
	if s.inst != nil {
		r.EngineState = s.inst.State()
	}
	return r.write(s.dir)
}

// abandon undoes a failed creation. What cannot be undone now is retried; the
// caller gets the first error either way.
func (m *Manager) abandon(ctx context.Context, s *live, cause error) error {
	s.mu.Lock()
	s.info.State, s.info.Reason = cloche.StateFailed, cause.Error()
	conn := s.agent
	s.mu.Unlock()
	if conn != nil {
		conn.close()
	}
	if err := s.undo.run(ctx); err != nil {
		m.log.Error("undo of a failed create", "sandbox", s.id, "error", err)
		m.retry(s, true)
		return cause
	}
	m.forget(s)
	return cause
}
