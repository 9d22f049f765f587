package sandbox

import (
	"context"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// statsTimeout bounds each question to an engine or an agent: what does not answer is not measured.
const statsTimeout = 5 * time.Second

// Stats measures what a sandbox uses now.
func (m *Manager) Stats(ctx context.Context, caller policy.Caller, ref string) (api.SandboxStats, error) {
	s, err := m.find(caller, policy.VerbGet, ref)
	if err != nil {
		return api.SandboxStats{}, err
	}
	info := s.snapshot()
	out := api.SandboxStats{Sandbox: info.ID, Name: info.Name, State: info.State, Engine: info.Engine, ObservedAt: now().UTC(), Limits: info.Limits}
	if info.State != api.StateRunning && info.State != api.StatePaused {
		return out, nil
	}
	inst, _, in, outward := s.measurable()
	out.NetworkInBytes, out.NetworkOutBytes = in, outward
	if inst != nil {
		got := usage.StatIn(ctx, inst, statsTimeout)
		out.CPUMS, out.MemoryBytes = got.KnownCPUMS(), got.KnownMemory()
	}
	var agentBytes *int64
	if info.State == api.StateRunning {
		out.Processes, agentBytes = m.usageInside(ctx, s)
	}
	out.MemoryParts = engine.MemoryParts(inst, agentBytes)
	out.WorkspaceBytes, out.WorkspaceObservedAt = m.workspaces.workspaceBytes(s, info.Workspace)
	return out, nil
}

// measurable returns what can be measured of a sandbox, and the traffic of its link. Each can be nil.
func (s *live) measurable() (inst engine.Instance, engineName string, in, out *int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.network != nil {
		used := s.network.Used()
		in, out = &used.BytesIn, &used.BytesOut
	}
	return s.inst, s.info.Engine, in, out
}

// usageInside asks the agent for the number of processes and its own memory.
func (m *Manager) usageInside(ctx context.Context, s *live) (processes, agentBytes *int64) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return nil, nil
	}
	n, own, err := client.Usage(ctx)
	if err != nil {
		return nil, nil
	}
	return &n, engine.Known(own)
}

// workspaceBytes counts the files of a workspace that is Cloche's, or returns a count that was made a moment ago.
func (wk workspaces) workspaceBytes(s *live, ws api.Workspace) (*int64, *time.Time) {
	if ws.Volume || ws.Dir != "" {
		return nil, nil
	}
	return s.counted.Bytes(func() (int64, bool) {
		got, err := wk.take(s, workspace.Bounds{})
		return got.SizeBytes, err == nil && !got.Partial
	})
}

// maxMeasured is how many sandboxes are asked at once.
const maxMeasured = 8

// Uses measures all running sandboxes. What does not answer before ctx ends is not measured.
func (m *Manager) Uses(ctx context.Context) []usage.Use {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxMeasured)
	var out []usage.Use
	for _, s := range m.all() {
		if s.hasEnded() || s.over() {
			continue
		}
		inst, name, in, outward := s.measurable()
		if inst == nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			got := usage.StatIn(ctx, inst, statsTimeout)
			use := usage.Use{ID: s.id, Engine: name, CPU: got.CPU, MemoryBytes: got.MemoryBytes}
			if in != nil {
				use.NetworkInBytes, use.NetworkOutBytes = *in, *outward
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, use)
		})
	}
	wg.Wait()
	return out
}
