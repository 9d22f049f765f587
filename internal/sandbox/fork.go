package sandbox

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/template"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Forker makes sandboxes that continue from the memory of another. Use it through its [Manager].
type Forker struct {
	m       *Manager
	checked *template.Checked
}

// Template is a captured sandbox. It is safe for concurrent use.
type Template struct {
	m     *Manager
	files *template.Template
	// Memory is what the forks continue from.
	Memory engine.Memory
	// parent is the record of the captured sandbox.
	parent *record.Record
	// origin is what the events of the forks say.
	origin string
	// checked: an engine has checked the memory.
	checked *atomic.Bool
	// Paused is for how long the parent was paused for the capture; 0 for one that was suspended before.
	Paused time.Duration
	// copied is the size of the files of the workspace, and what was left out of them.
	copied workspace.CopyReport
}

// Release removes the files of the template. Forks that were created do not need them.
func (t *Template) Release() {
	if err := t.files.Remove(); err != nil {
		t.m.log.Error("remove the template of a fork; the next daemon does it", "sandbox", t.parent.Info.ID, "error", err)
	}
}

// kept is what a fork gets of the directory of its parent.
func kept() template.Kept {
	return template.Kept{process.Records, filepath.Join(networkDir, network.AuthorityFile)}
}

// ForkSpec returns the record of a sandbox and what a fork of it has to decide.
func (f Forker) ForkSpec(ctx context.Context, caller policy.Caller, ref string) (api.Sandbox, api.SandboxSpec, error) {
	s, err := f.m.find(caller, policy.VerbFork, ref)
	if err != nil {
		return api.Sandbox{}, api.SandboxSpec{}, err
	}
	s.awaitPause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.look()
	if err := s.mayFork(); err != nil {
		return info, api.SandboxSpec{}, err
	}
	spec := record.SpecNow(*s.spec, info)
	spec.Name = ""
	return info, *spec, nil
}

// mayFork says why a sandbox cannot be forked. The caller holds s.mu.
func (s *live) mayFork() error {
	if err := s.maySave(); err != nil {
		return err
	}
	return template.Refusal(s.info, s.secrets)
}

// Capture saves the memory and the files of a sandbox for forks. One that runs is paused for that, and runs on before Capture
// returns. The caller releases the template.
func (f Forker) Capture(ctx context.Context, caller policy.Caller, ref string) (*Template, error) {
	s, err := f.m.find(caller, policy.VerbFork, ref)
	if err != nil {
		return nil, err
	}
	files, err := template.Make(f.m.opts.Dir)
	if err != nil {
		return nil, diskError(s, "captured", err)
	}
	t, err := f.captureInto(ctx, s, files)
	if err != nil {
		t.Release()
		return nil, err
	}
	return t, nil
}

// captureInto is Capture with the files of the template, which are to be removed after an error.
func (f Forker) captureInto(ctx context.Context, s *live, files *template.Template) (*Template, error) {
	t := &Template{m: f.m, files: files, parent: &record.Record{Info: s.snapshot()}, origin: "forked from " + s.id, checked: new(atomic.Bool)}
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	s.lockOps(ctx)
	defer s.ops.Unlock()
	defer s.interruptible(cancel)()
	s.mu.Lock()
	inst, memory, err := s.inst, s.memory, s.mayFork()
	s.mu.Unlock()
	if err != nil {
		return t, err
	}
	if memory != nil {
		return t, errors.Join(t.keepFiles(ctx, s), t.keepMemory(s, *memory))
	}
	if _, ok := inst.(engine.Suspender); !ok {
		return t, api.Errorf(api.CodeUnsupported, "engine %s cannot save the memory of a sandbox", s.snapshot().Engine).
			WithHint("take a snapshot of its files, and create sandboxes from that")
	}
	return t, t.captureRunning(ctx, s, inst)
}

// captureRunning pauses a sandbox while its memory is saved and its files are copied. It runs on while what was saved is written to
// the disk. A daemon that dies meanwhile has a successor that makes it run. The caller holds s.ops.
func (t *Template) captureRunning(ctx context.Context, s *live, inst engine.Instance) error {
	pr, captured := t.m.pauser, make(chan struct{})
	s.mu.Lock()
	s.captured = captured
	s.mu.Unlock()
	begun := time.Now()
	err := s.settle(api.StateRunning, true)
	var complete engine.Completion
	if err == nil {
		complete, err = pr.saveMemory(context.WithoutCancel(ctx), s, inst, "", true)
	}
	if err == nil {
		s.procs.Suspend(ctx) // so that the output of its processes is complete
		err = t.keepFiles(ctx, s)
	}
	if rerr := pr.runOn(context.WithoutCancel(ctx), s, inst.(engine.Pauser)); rerr != nil {
		err = errors.Join(err, pauseError(s, "resumed", rerr))
	}
	s.procs.Resume()
	close(captured)
	t.Paused = time.Since(begun)
	pr.m.reaper.poke()
	if complete != nil {
		memory, cerr := complete(context.WithoutCancel(ctx))
		if err = errors.Join(err, cerr); err == nil {
			err = t.keepMemory(s, memory)
		}
	}
	pr.removeMemory(s)
	t.checked.Store(true) // it was just written
	return err
}

// keepFiles gives the template the record and the files of a sandbox of which nothing runs now.
func (t *Template) keepFiles(ctx context.Context, s *live) error {
	s.mu.Lock()
	t.parent = s.record()
	t.parent.Info, t.parent.EngineState = s.look(), nil
	s.mu.Unlock()
	if err := t.copyFiles(ctx, s); err != nil {
		return diskError(s, "captured", err)
	}
	return nil
}

// keepMemory gives the template links to the files of a memory.
func (t *Template) keepMemory(s *live, memory engine.Memory) (err error) {
	t.Memory, t.parent.Memory = memory, memory.Note
	defer s.memoryFiles.Hold()()
	if t.Memory.Dir, err = t.files.LinkMemory(memory.Dir); err != nil {
		return diskError(s, "captured", err)
	}
	return nil
}

// copyFiles copies the private workspace of a sandbox of which nothing runs now, and the records of its processes.
func (t *Template) copyFiles(ctx context.Context, s *live) error {
	if err := t.files.Keep(s.dir, kept()); err != nil || t.parent.Info.Workspace.Dir != "" {
		return err
	}
	dir, err := t.m.workspaces.open(s)
	if err != nil {
		return err
	}
	defer dir.Close()
	t.copied, err = dir.CopyTo(ctx, nil, t.files.Files(), workspace.CopyLimits{Entries: maxSnapshotFiles})
	return err
}

// CreateFork creates the sandbox that a permit grants from a template. Its processes are those that the parent had, with
// their IDs and their output. It has a token, a lease and a network of its own, and no open ports. On error nothing is left.
// progress can be nil.
func (f Forker) CreateFork(ctx context.Context, t *Template, o StartOptions, progress func(step string)) (api.Sandbox, error) {
	s, err := f.m.create(ctx, o.Permit, progress, func(c *creation) {
		memory, parent := t.Memory, t.parent
		memory.Checked = t.checked.Load()
		c.fork, c.memory, c.origin = t, &memory, t.origin
		c.s.token, c.s.image, c.s.secrets, c.s.trusts, c.s.grant = parent.AgentToken, parent.Image, parent.Secrets, parent.Trusts, o.Egress
		c.s.info.ImageDigest, c.s.info.ForkedFrom = parent.Info.ImageDigest, parent.Info.ID
	})
	if err != nil {
		return api.Sandbox{}, err
	}
	t.checked.Store(true)
	s.procs.Adopt()
	return s.snapshot(), nil
}

// SnapshotMemory makes a snapshot of a sandbox with its memory, as Capture does. On error nothing is left of it.
func (f Forker) SnapshotMemory(ctx context.Context, caller policy.Caller, ref string, permit policy.SnapshotPermit) (api.Snapshot, error) {
	if !permit.Valid() {
		return api.Snapshot{}, api.Errorf(api.CodeDenied, "no policy has granted this snapshot")
	}
	s, err := f.m.find(caller, policy.VerbFork, ref)
	if err != nil {
		return api.Snapshot{}, err
	}
	draft, abort, err := beginSnapshot(f.m, s)
	if err != nil {
		return api.Snapshot{}, err
	}
	defer abort()
	dir, err := draft.Template()
	if err != nil {
		return api.Snapshot{}, diskError(s, "captured", err)
	}
	t, err := f.captureInto(ctx, s, template.In(dir))
	if err != nil {
		return api.Snapshot{}, err
	}
	snap := template.Snapshot(draft.ID, t.parent.Info, t.Memory, t.copied, permit.Request())
	if snap.SizeBytes > permit.BytesLeft() {
		return api.Snapshot{}, snapshot.OverRation()
	}
	if err = errors.Join(t.files.WriteRecord(t.parent, kept()), f.m.at(ctx, "before snapshot")); err == nil {
		count, bytes := permit.Max()
		err = draft.Commit(snap, snapshot.Quota{Count: count, Bytes: bytes})
	}
	if err != nil {
		return api.Snapshot{}, diskError(s, "captured", err)
	}
	f.checked.Of(snap.ID).Store(t.checked.Load())
	return snap, nil
}

// MemorySpec returns the record of the sandbox that a snapshot with memory was made of, as it was then, what a sandbox has to
// decide that starts from it, and the rules of its network, if it has one.
func (f Forker) MemorySpec(snap api.Snapshot) (api.Sandbox, api.SandboxSpec, *policy.EgressGrant, error) {
	use, t, err := f.stored(snap)
	if err != nil {
		return api.Sandbox{}, api.SandboxSpec{}, nil, err
	}
	use.Release()
	return t.parent.Info, *record.SpecNow(*t.parent.Spec, t.parent.Info), t.parent.Egress, nil
}

// stored returns the template that a snapshot has. The caller releases the use of the snapshot.
func (f Forker) stored(snap api.Snapshot) (*snapshot.Use, *Template, error) {
	use, err := snapshotOf(f.m, snap)
	if err != nil {
		return nil, nil, err
	}
	t := &Template{m: f.m, files: template.In(use.Template()), origin: "from the memory of snapshot " + snap.ID}
	t.parent, t.Memory, err = t.files.Read(snap)
	if err != nil {
		use.Release()
		f.m.log.Error("read the memory of a snapshot", "snapshot", snap.ID, "error", err)
		return nil, nil, api.Errorf(api.CodeState, "the memory of snapshot %s is damaged", snap.Name).WithHint("the daemon's log has the details; remove it with: cloche snapshot rm %s", snap.ID).WithCause(err)
	}
	t.checked = f.checked.Of(snap.ID)
	return use, t, nil
}

// CreateFromMemory is CreateFork from the snapshot with memory that the permit has.
func (f Forker) CreateFromMemory(ctx context.Context, o StartOptions, progress func(step string)) (api.Sandbox, error) {
	snap, _ := o.Permit.Snapshot()
	use, t, err := f.stored(snap)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer use.Release()
	return f.CreateFork(ctx, t, o, progress)
}

// forking are the steps of a creation from a template, in order.
func (c *creation) forking() []creationStep {
	return slices.Concat([]creationStep{
		{"directory", c.makeDir},
		{"state", func(context.Context) error { return c.fork.files.Give(c.s.dir, kept()) }},
	}, c.restoration(), []creationStep{
		{"endpoints", c.openEndpoints},
		{"record", c.commit},
	})
}
