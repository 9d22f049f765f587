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
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Forker makes sandboxes that continue from the memory of another. Use it through its [Manager].
type Forker struct{ m *Manager }

// Template is a captured sandbox. It is safe for concurrent use.
type Template struct {
	m     *Manager
	files *template.Template
	// Memory is what the forks continue from.
	Memory  engine.Memory
	parent  api.Sandbox
	token   []byte
	image   record.Image
	secrets []record.Secret
	trusts  bool
	// over ends the wait of calls on a parent that was suspended for the capture.
	over func()
	// checked: an engine has checked the memory.
	checked atomic.Bool
	// Paused is for how long the parent was suspended for the capture; 0 for one that was suspended before.
	Paused time.Duration
}

// Release removes the files of the template. Forks that were created do not need them.
func (t *Template) Release() {
	if err := t.files.Remove(); err != nil {
		t.m.log.Error("remove the template of a fork; the next daemon does it", "sandbox", t.parent.ID, "error", err)
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
	spec := s.specNow(info)
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

// Capture saves the memory and the files of a sandbox for forks. One that runs is suspended for that, and resumed by resume
// before Capture returns: if resume fails, it stays suspended, and that is the error. The caller releases the template.
func (f Forker) Capture(ctx context.Context, caller policy.Caller, ref string, resume func(context.Context) error) (t *Template, err error) {
	s, err := f.m.find(caller, policy.VerbFork, ref)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	t, suspended, err := f.capture(ctx, s)
	if suspended {
		if rerr := resume(context.WithoutCancel(ctx)); rerr != nil {
			err = errors.Join(rerr, err)
		}
		t.over()
		t.Paused = time.Since(begun)
	}
	if err != nil && t != nil {
		t.Release()
	}
	return t, err
}

// capture is Capture without the resume: suspended says that it is due. The template is not nil then.
func (f Forker) capture(ctx context.Context, s *live) (t *Template, suspended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	s.lockOps(ctx)
	defer s.ops.Unlock()
	defer s.interruptible(cancel)()
	s.mu.Lock()
	err = s.mayFork()
	inst, running := s.inst, s.info.State == api.StateRunning
	s.mu.Unlock()
	if err != nil {
		return nil, false, err
	}
	if _, ok := inst.(engine.Suspender); !ok && running {
		return nil, false, api.Errorf(api.CodeUnsupported, "engine %s cannot save the memory of a sandbox", s.snapshot().Engine).
			WithHint("take a snapshot of its files, and create sandboxes from that")
	}
	files, err := template.Make(f.m.opts.Dir)
	if err != nil {
		return nil, false, diskError(s, "captured", err)
	}
	t = &Template{m: f.m, files: files}
	if running {
		captured := make(chan struct{})
		t.over = func() { close(captured) }
		s.mu.Lock()
		s.captured = captured
		s.mu.Unlock()
		if err := f.m.pauser.suspend(context.WithoutCancel(ctx), s, inst, ""); err != nil {
			t.over()
			return t, false, err
		}
	}
	s.mu.Lock()
	t.Memory, t.parent, t.token, t.image, t.secrets, t.trusts = *s.memory, s.look(), s.token, s.image, s.secrets, s.trusts
	s.mu.Unlock()
	if t.Memory.Dir, err = files.LinkMemory(t.Memory.Dir); err == nil {
		err = f.copyFiles(ctx, s, t)
	}
	if err != nil {
		err = diskError(s, "captured", err)
	}
	t.Memory.Checked = running // it was just written
	return t, running, err
}

// copyFiles copies the private workspace of a sandbox of which nothing runs now, and the records of its processes.
func (f Forker) copyFiles(ctx context.Context, s *live, t *Template) error {
	if err := t.files.Keep(s.dir, kept()); err != nil || t.parent.Workspace.Dir != "" {
		return err
	}
	dir, err := f.m.workspaces.open(s)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, err = dir.CopyTo(ctx, nil, t.files.Files(), workspace.CopyLimits{Entries: maxSnapshotFiles})
	return err
}

// CreateFork creates the sandbox that a permit grants from a template. Its processes are those that the parent had, with
// their IDs and their output. It has a token, a lease and a network of its own, and no open ports. On error nothing is left.
func (f Forker) CreateFork(ctx context.Context, t *Template, o StartOptions) (api.Sandbox, error) {
	s, err := f.m.create(ctx, o.Permit, nil, func(c *creation) {
		memory := t.Memory
		memory.Checked = memory.Checked || t.checked.Load()
		c.fork, c.memory, c.origin = t, &memory, "forked from "+t.parent.ID
		c.s.token, c.s.image, c.s.secrets, c.s.trusts, c.s.grant = t.token, t.image, t.secrets, t.trusts, o.Egress
		c.s.info.ImageDigest, c.s.info.ForkedFrom = t.parent.ImageDigest, t.parent.ID
	})
	if err != nil {
		return api.Sandbox{}, err
	}
	t.checked.Store(true)
	s.procs.Adopt()
	return s.snapshot(), nil
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
