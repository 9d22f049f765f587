package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// handle is a sandbox as the packages below this one see it.
type handle struct {
	m *Manager
	s *live
}

func (h handle) Use() (release func())   { return h.s.use() }
func (h handle) Explain(err error) error { return h.s.explain(err) }
func (h handle) StoppedAt() *time.Time   { return h.s.snapshot().StoppedAt }
func (h handle) Info() api.Sandbox       { return h.s.snapshot() }

// Agent implements endpoints.Sandbox.
func (h handle) Agent(ctx context.Context) (*agent.Client, error) {
	return h.m.agentOf(ctx, h.s)
}

// SharedDirs implements endpoints.Sandbox.
func (h handle) SharedDirs() []string {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	dirs := []string{h.s.info.Workspace.Path}
	for _, m := range h.s.info.Mounts {
		dirs = append(dirs, m.Target)
	}
	return dirs
}

// Save implements endpoints.Sandbox.
func (h handle) Save(specs []api.Endpoint) error {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.info.Endpoints = specs
	return h.s.save()
}

// Changed implements endpoints.Sandbox.
func (h handle) Changed(name string, state api.EndpointState, reason string) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if !h.s.making.announced() {
		return // it belongs to the create
	}
	h.m.opts.Events(api.Event{
		Time: now(), Kind: api.EventKind("endpoint." + string(state)), Tenant: h.s.tenant, Sandbox: h.s.id, Name: h.s.name,
		Endpoint: name, Reason: reason,
	})
}

// Writing implements files.Sandbox.
func (h handle) Writing() (done func(error)) {
	h.s.writes.Add(1)
	return func(err error) {
		if err != nil {
			h.s.cut.Store(true)
		}
		h.s.writes.Add(-1)
	}
}

// removeCutWrites removes partial files of interrupted writes from the workspace of a sandbox
// without running processes. The writes were cut off by its end, or by an end that this daemon did
// not observe. A private workspace can be read after a stop.
func (m *Manager) removeCutWrites(ctx context.Context, s *live) {
	ws := s.snapshot().Workspace
	if !s.cut.Load() && s.writes.Load() == 0 || ws.Dir != "" || ws.Volume || ws.ReadOnly || ws.Layered || s.isRemoving() && ws.Name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	dir, err := m.workspaceOf(s)
	if err == nil {
		err = errors.Join(dir.RemoveCutWrites(ctx), dir.Close())
	}
	if err != nil {
		m.log.Warn("remove what writes left that were cut off", "sandbox", s.id, "error", err)
	}
	s.cut.Store(false)
}
