package policy_test

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestEngineElsewhere: an engine that shares no files with the host has volumes, and
// what needs a file of the host is refused by its name, for every caller.
func TestEngineElsewhere(t *testing.T) {
	elsewhere := gvisor()
	elsewhere.Name, elsewhere.SharesHostFS = "far", false
	local := &api.WorkspaceInfo{Name: "data"}
	kept := &api.WorkspaceInfo{Name: "data", Engine: "far"}
	files := &api.Snapshot{ID: "sn-1", Name: "snap", Tenant: operator.Tenant, Scope: api.SnapshotWorkspace}
	far := func(change func(*api.SandboxSpec)) api.SandboxSpec {
		s := api.SandboxSpec{Engine: "far", Image: "debian:12", Workspace: &api.Workspace{}}
		change(&s)
		return s
	}
	none := func(*api.SandboxSpec) {}
	named := func(s *api.SandboxSpec) { s.Workspace.Name = "data" }
	for name, c := range map[string]struct {
		spec   api.SandboxSpec
		exists *api.WorkspaceInfo
		snap   *api.Snapshot
		volume bool
		want   want
	}{
		"private":                  {spec: far(none), volume: true},
		"named, which is made":     {spec: far(named), volume: true},
		"named, which it keeps":    {spec: far(named), exists: kept, volume: true},
		"what the caller says":     {spec: api.SandboxSpec{Workspace: &api.Workspace{Volume: true}}},
		"a mount":                  {spec: far(func(s *api.SandboxSpec) { s.Mounts = mount("/home/alice/project", true).Mounts }), want: want{code: api.CodeUnsupported, field: "mounts[0].source", says: "engine far"}},
		"a directory":              {spec: far(func(s *api.SandboxSpec) { s.Workspace.Dir = "/home/alice/project" }), want: want{code: api.CodeUnsupported, field: "workspace.dir", says: "engine far"}},
		"this host's tools":        {spec: far(func(s *api.SandboxSpec) { s.Image = "host" }), want: want{code: api.CodeUnsupported, field: "image", says: "engine far"}},
		"this host's by default":   {spec: far(func(s *api.SandboxSpec) { s.Image = "" }), want: want{code: api.CodeUnsupported, field: "image", says: "engine far"}},
		"a layer":                  {spec: far(func(s *api.SandboxSpec) { s.Workspace.Layered = true }), want: want{code: api.CodeUnsupported, field: "workspace.layered", says: "engine far"}},
		"a bound":                  {spec: far(func(s *api.SandboxSpec) { s.Workspace.SizeBytes = 1 << 30 }), want: want{code: api.CodeUnsupported, field: "workspace.size_bytes", says: "volume of engine far"}},
		"a bound that is measured": {spec: far(func(s *api.SandboxSpec) { s.Workspace.SizeBytes, s.Workspace.Quota = 1<<30, "measured" }), want: want{code: api.CodeUnsupported, field: "workspace.quota", says: "engine far"}},
		"files of a snapshot":      {spec: far(func(s *api.SandboxSpec) { s.Snapshot = "snap" }), snap: files, want: want{code: api.CodeUnsupported, field: "snapshot", says: "engine far"}},
		"one that is here":         {spec: far(named), exists: local, want: want{code: api.CodeConflict, field: "workspace.name", says: "engine far"}},
		"one that is there":        {spec: api.SandboxSpec{Workspace: &api.Workspace{Name: "data"}}, exists: kept, want: want{code: api.CodeConflict, field: "workspace.name", says: "engine far"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			f.Engines = append(f.Engines, elsewhere)
			f.HardQuota, f.Workspace, f.Snapshot = canHold, c.exists, c.snap
			p, err := policy.Decide(policy.Request{Spec: c.spec, Facts: f}, operator, rules.Rules{})
			if c.want.code != "" {
				c.want.check(t, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Spec().Workspace.Volume; got != c.volume {
				t.Errorf("the workspace is a volume: %t, want %t", got, c.volume)
			}
			again, err := policy.Decide(policy.Request{Spec: p.Spec(), Facts: f}, operator, rules.Rules{})
			if err != nil || again.Spec().Workspace.Volume != c.volume {
				t.Errorf("decided again: %v, %+v", err, again.Spec().Workspace)
			}
		})
	}
}
