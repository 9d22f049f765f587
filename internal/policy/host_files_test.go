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

// TestEngineAtAService: an engine whose sandboxes have copies of files takes what this host has, and what
// its service cannot do is refused by its name. Only its name chooses it.
func TestEngineAtAService(t *testing.T) {
	service := gvisor()
	service.Name, service.Tier, service.SharesHostFS, service.CopiesFiles, service.OwnImages = "service", api.TierRemote, false, true, true
	not := api.Enforcement{Reason: "the template's"}
	service.Enforces = map[string]api.Enforcement{"cpus": not, "memory_bytes": not, "disk_bytes": not, "pids": not, "egress": not}
	at := func(change func(*api.SandboxSpec)) api.SandboxSpec {
		s := api.SandboxSpec{Engine: "service", Workspace: &api.Workspace{}}
		change(&s)
		return s
	}
	none := func(*api.SandboxSpec) {}
	refused := func(field, says string) want { return want{code: api.CodeUnsupported, field: field, says: says} }
	for name, c := range map[string]struct {
		spec  api.SandboxSpec
		rules rules.Rules
		want  want
	}{
		"private":          {spec: at(none)},
		"named":            {spec: at(func(s *api.SandboxSpec) { s.Workspace.Name = "data" })},
		"a mount":          {spec: at(func(s *api.SandboxSpec) { s.Mounts = mount("/home/alice/project", true).Mounts })},
		"a directory":      {spec: at(func(s *api.SandboxSpec) { s.Workspace.Dir = "/home/alice/project" })},
		"a template":       {spec: at(func(s *api.SandboxSpec) { s.Image = "mine" })},
		"a layer":          {spec: at(func(s *api.SandboxSpec) { s.Workspace.Name, s.Workspace.Layered = "data", true }), want: refused("workspace.layered", "engine service")},
		"a read-only root": {spec: at(func(s *api.SandboxSpec) { s.ReadOnlyRoot = new(true) }), want: refused("read_only_root", "engine service")},
		"a limit":          {spec: at(func(s *api.SandboxSpec) { s.Limits.CPUs = 1 }), want: refused("limits.cpus", "the template's")},
		"a size of /tmp":   {spec: at(func(s *api.SandboxSpec) { s.Limits.TmpBytes = 1 << 20 }), want: refused("limits.tmp_bytes", "its service")},
		"a network":        {spec: at(func(s *api.SandboxSpec) { s.Network, s.Egress = api.NetworkOn, &api.Egress{Allow: []string{"*"}} }), want: refused("network", "engine service")},
		"a minimum":        {spec: at(none), rules: rules.Rules{MinTier: api.TierNamespace}, want: want{code: api.CodeDenied, field: "engine", rule: "min_tier", says: "tier remote"}},
		"a blocked image":  {spec: at(func(s *api.SandboxSpec) { s.Image = "mine" }), rules: rules.Rules{BlockedImages: []string{"mine*"}}, want: want{code: api.CodeDenied, field: "image"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			f.Engines = append(f.Engines, service)
			p, err := policy.Decide(policy.Request{Spec: c.spec, Facts: f}, operator, c.rules)
			if c.want.code != "" {
				c.want.check(t, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Spec().Workspace.Volume || p.Limits().TmpBytes != 0 || p.Tier() != api.TierRemote {
				t.Errorf("granted %+v with %+v", p.Spec().Workspace, p.Limits())
			}
			told := map[string]bool{}
			for _, u := range p.Unenforced() {
				told[u.Field] = true
			}
			for _, field := range []string{"limits.tmp_bytes", "limits.shm_bytes", "limits.memory_bytes", "limits.pids"} {
				if !told[field] {
					t.Errorf("%s is not told as not enforced", field)
				}
			}
		})
	}
	t.Run("auto", func(t *testing.T) {
		f := facts()
		f.Engines = []api.EngineReport{service}
		_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{}, Facts: f}, operator, rules.Rules{})
		want{code: api.CodeUnavailable, field: "engine", says: "no engine is usable"}.check(t, err)
	})
}
