package policy_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

var (
	canHold    = api.Enforcement{OK: true}
	cannotHold = api.Enforcement{Reason: "only root can mount at /dev/loop-control"}
)

func TestWorkspaceBounds(t *testing.T) {
	const gib = 1 << 30
	bounded := &api.WorkspaceInfo{Name: "data", SizeBytes: gib, Inodes: 1000, Enforced: api.HeldByKernel, UsedBytes: new(int64(700 << 20))}
	plain := &api.WorkspaceInfo{Name: "data"}
	ruled := rules.Rules{Profiles: map[string]rules.ProfileRule{"agent": {
		Defaults: rules.LimitRule{Workspace: new(rules.Size(2 * gib))}, Ceilings: rules.LimitRule{Workspace: new(rules.Size(4 * gib))},
	}}}
	lifted := rules.Rules{Profiles: map[string]rules.ProfileRule{"agent": {Defaults: rules.LimitRule{Workspace: new(rules.Size(0))}}}}
	watched := func(size int64) api.Workspace {
		return api.Workspace{SizeBytes: size, Inodes: size / 16384, Enforced: "watched"}
	}
	for _, c := range []struct {
		name   string
		asked  api.Workspace
		exists *api.WorkspaceInfo
		hard   api.Enforcement
		// projects: the kernel does so by quotas of the home's filesystem.
		projects bool
		rules    rules.Rules
		got      api.Workspace // SizeBytes, Inodes and Enforced
		want     want
	}{
		{name: "nothing asked", hard: canHold, got: watched(4 * gib)},
		{name: "nothing asked without root", hard: cannotHold, got: watched(4 * gib)},
		{name: "nothing asked where there are projects", hard: canHold, projects: true, got: api.Workspace{SizeBytes: 4 * gib, Inodes: 262144, Enforced: "kernel"}},
		{name: "watched where there are projects", asked: api.Workspace{Quota: "watched", SizeBytes: gib}, hard: canHold, projects: true, got: watched(gib)},
		{name: "measured where there are projects", asked: api.Workspace{Quota: "measured"}, hard: canHold, projects: true, got: api.Workspace{SizeBytes: 4 * gib, Enforced: "measured"}},
		{name: "lifted where there are projects", hard: canHold, projects: true, rules: lifted},
		{name: "hard without a size", asked: api.Workspace{Quota: "hard"}, hard: canHold, got: api.Workspace{SizeBytes: 4 * gib, Inodes: 262144, Enforced: "kernel"}},
		{name: "hard without a size and without root", asked: api.Workspace{Quota: "hard"}, hard: cannotHold, want: want{code: api.CodeUnsupported, field: "workspace.size_bytes"}},
		{name: "watched with a size", asked: api.Workspace{Quota: "watched", SizeBytes: gib}, hard: cannotHold, got: watched(gib)},
		{name: "measured without a size", asked: api.Workspace{Quota: "measured"}, hard: cannotHold, got: api.Workspace{SizeBytes: 4 * gib, Enforced: "measured"}},
		{name: "watched and named", asked: api.Workspace{Name: "data", Quota: "watched"}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.quota"}},
		{name: "watched where a rule bounds", asked: api.Workspace{Quota: "watched"}, hard: canHold, rules: ruled, want: want{code: api.CodeDenied, field: "workspace.quota", rule: "profiles.agent.ceilings.workspace"}},
		{name: "lifted by a rule", hard: canHold, rules: lifted},
		{name: "read only", asked: api.Workspace{ReadOnly: true}, hard: canHold},
		{name: "private", asked: api.Workspace{SizeBytes: gib}, hard: canHold, got: api.Workspace{SizeBytes: gib, Inodes: 65536, Enforced: "kernel"}},
		{name: "small", asked: api.Workspace{SizeBytes: 1 << 20}, hard: canHold, got: api.Workspace{SizeBytes: 1 << 20, Inodes: 256, Enforced: "kernel"}},
		{name: "inodes", asked: api.Workspace{SizeBytes: gib, Inodes: 10, Quota: "hard"}, hard: canHold, got: api.Workspace{SizeBytes: gib, Inodes: 10, Enforced: "kernel"}},
		{name: "named", asked: api.Workspace{Name: "data", SizeBytes: gib}, hard: canHold, got: api.Workspace{SizeBytes: gib, Inodes: 65536, Enforced: "kernel"}},
		{name: "default of a rule", hard: canHold, rules: ruled, got: api.Workspace{SizeBytes: 2 * gib, Inodes: 131072, Enforced: "kernel"}},
		{name: "measured", asked: api.Workspace{SizeBytes: 1, Quota: "measured"}, hard: cannotHold, want: want{code: api.CodeInvalid, field: "workspace.size_bytes"}},
		{name: "measured directory", asked: api.Workspace{SizeBytes: gib, Inodes: 7, Quota: "measured"}, hard: cannotHold, got: api.Workspace{SizeBytes: gib, Inodes: 7, Enforced: "measured"}},
		{name: "measured where a rule bounds", asked: api.Workspace{Quota: "measured"}, hard: canHold, rules: ruled, want: want{code: api.CodeDenied, field: "workspace.quota", rule: "profiles.agent.ceilings.workspace"}},
		{name: "layered where a rule bounds", asked: api.Workspace{Layered: true}, hard: canHold, rules: ruled, got: api.Workspace{SizeBytes: 2 * gib, Inodes: 131072, Enforced: "kernel"}},
		{name: "measured directory where a rule bounds", asked: api.Workspace{Dir: "/home/alice/project", Quota: "measured"}, hard: canHold, rules: ruled},
		{name: "directory where a rule bounds", asked: api.Workspace{Dir: "/home/alice/project"}, hard: canHold, rules: ruled},
		{name: "exists", asked: api.Workspace{Name: "data"}, exists: bounded, hard: cannotHold, got: api.Workspace{SizeBytes: gib, Inodes: 1000, Enforced: "kernel"}},
		{name: "exists and is the same", asked: api.Workspace{Name: "data", SizeBytes: gib}, exists: bounded, hard: canHold, got: api.Workspace{SizeBytes: gib, Inodes: 1000, Enforced: "kernel"}},
		{name: "exists without bounds", asked: api.Workspace{Name: "data"}, exists: plain, rules: ruled, hard: canHold},

		{name: "exists and is larger", asked: api.Workspace{Name: "data", SizeBytes: gib / 2}, exists: bounded, hard: canHold, want: want{code: api.CodeConflict, field: "workspace.size_bytes", says: "1GiB, of which 700MiB are used"}},
		{name: "exists with other inodes", asked: api.Workspace{Name: "data", Inodes: 5}, exists: bounded, hard: canHold, want: want{code: api.CodeConflict, field: "workspace.inodes", says: "1000"}},
		{name: "bound for one without", asked: api.Workspace{Name: "data", SizeBytes: gib}, exists: plain, hard: canHold, want: want{code: api.CodeConflict, field: "workspace.size_bytes", says: "without a bound"}},
		{name: "no root", asked: api.Workspace{SizeBytes: gib}, hard: cannotHold, want: want{code: api.CodeUnsupported, field: "workspace.size_bytes", says: "only root"}},
		{name: "rule and no root", hard: cannotHold, rules: ruled, want: want{code: api.CodeUnsupported, field: "workspace.size_bytes", rule: "profiles.agent.ceilings.workspace"}},
		{name: "over the ceiling", asked: api.Workspace{SizeBytes: 8 * gib}, rules: ruled, hard: canHold, want: want{code: api.CodeDenied, field: "workspace.size_bytes", rule: "profiles.agent.ceilings.workspace"}},
		{name: "host directory", asked: api.Workspace{Dir: "/home/alice/project", SizeBytes: gib}, hard: canHold, want: want{code: api.CodeUnsupported, field: "workspace.size_bytes", says: "directory of the host"}},
		{name: "inodes alone", asked: api.Workspace{Inodes: 10}, hard: canHold, got: api.Workspace{SizeBytes: 4 * gib, Inodes: 10, Enforced: "kernel"}},
		{name: "inodes alone of a named one", asked: api.Workspace{Name: "data", Inodes: 10}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.size_bytes"}},
		{name: "too many inodes", asked: api.Workspace{SizeBytes: 1 << 20, Inodes: 257}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.inodes", says: "256"}},
		{name: "too small", asked: api.Workspace{SizeBytes: 4096}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.size_bytes"}},
		{name: "negative", asked: api.Workspace{SizeBytes: gib, Inodes: -1}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.inodes"}},
		{name: "mode", asked: api.Workspace{Quota: "soft"}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.quota"}},
		{name: "drop of a private one", asked: api.Workspace{Drop: true}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.drop"}},
		{name: "drop by a reader", asked: api.Workspace{Name: "data", ReadOnly: true, Drop: true}, hard: canHold, want: want{code: api.CodeInvalid, field: "workspace.drop"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := facts()
			f.HardQuota, f.Projects, f.Workspace = c.hard, c.projects, c.exists
			p, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Workspace: &c.asked}, Facts: f}, operator, c.rules)
			if c.want.code != "" {
				c.want.check(t, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			w := p.Spec().Workspace
			if w.SizeBytes != c.got.SizeBytes || w.Inodes != c.got.Inodes || w.Enforced != c.got.Enforced {
				t.Errorf("granted %+v, want %+v", w, c.got)
			}
			if g := p.Workspace(); w.Enforced != api.HeldByMeasure && w.Enforced != api.HeldByWatch && (g.SizeBytes != w.SizeBytes || g.Inodes != w.Inodes) {
				t.Errorf("the kernel is to hold %+v of %+v", g, w)
			}
			again, err := policy.Decide(policy.Request{Spec: p.Spec(), Facts: f}, operator, c.rules)
			if err != nil || !reflect.DeepEqual(again.Spec(), p.Spec()) {
				t.Errorf("decided again: %+v, %v", again.Spec().Workspace, err)
			}
		})
	}
	f := facts()
	f.HardQuota = cannotHold
	_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Workspace: &api.Workspace{SizeBytes: gib}}, Facts: f}, tenant, rules.Rules{})
	if err == nil || strings.Contains(err.Error(), "/dev") {
		t.Errorf("a tenant is told %v", err)
	}
}

// What a sandbox can fill the disk through is told by the field's name.
func TestUnboundedWorkspaces(t *testing.T) {
	const dir, gib = "/home/alice/project", 1 << 30
	bounded := &api.WorkspaceInfo{Name: "data", SizeBytes: gib, Inodes: 1000, Enforced: api.HeldByKernel}
	lifted := rules.Rules{Profiles: map[string]rules.ProfileRule{"agent": {Defaults: rules.LimitRule{Workspace: new(rules.Size(0))}}}}
	for name, c := range map[string]struct {
		asked  api.Workspace
		exists *api.WorkspaceInfo
		rules  rules.Rules
		says   string
	}{
		"private":                {},
		"private layered":        {asked: api.Workspace{Layered: true}},
		"private lifted":         {rules: lifted},
		"named":                  {asked: api.Workspace{Name: "data"}, says: "named workspace that has no size"},
		"named, and is there":    {asked: api.Workspace{Name: "data"}, exists: &api.WorkspaceInfo{Name: "data"}, says: "named workspace that has no size"},
		"named with a size":      {asked: api.Workspace{Name: "data", SizeBytes: gib}},
		"named that has a size":  {asked: api.Workspace{Name: "data"}, exists: bounded},
		"named to read":          {asked: api.Workspace{Name: "data", ReadOnly: true}},
		"layer over a named one": {asked: api.Workspace{Name: "data", Layered: true}, says: "the layer over a named workspace"},
		"layer over one bounded": {asked: api.Workspace{Name: "data", Layered: true}, exists: bounded},
		"directory":              {asked: api.Workspace{Dir: dir}},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			f.HardQuota, f.Workspace = canHold, c.exists
			p, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Workspace: &c.asked}, Facts: f}, operator, c.rules)
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, u := range p.Unenforced() {
				if u.Field == "workspace.size_bytes" {
					said = append(said, u.Reason)
				}
			}
			if len(said) > 1 || (len(said) == 1) != (c.says != "") || len(said) == 1 && !strings.Contains(said[0], c.says) {
				t.Errorf("unenforced %q, want %q", said, c.says)
			}
		})
	}
}

func TestMemoryFilesystemsFitTheMemory(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ tmp, shm, memory, wantTmp, wantShm int64 }{
		{0, 0, 96 * mib, 32 * mib, 32 * mib},
		{0, 0, 4096 * mib, 512 * mib, 64 * mib},
		{90 * mib, 1 * mib, 96 * mib, 90 * mib, 1 * mib},
	} {
		p := decide(t, api.SandboxSpec{Limits: api.Limits{TmpBytes: c.tmp, ShmBytes: c.shm, MemoryBytes: c.memory}}, operator, rules.Rules{})
		if l := p.Limits(); l.TmpBytes != c.wantTmp || l.ShmBytes != c.wantShm {
			t.Errorf("%+v: %+v", c, l)
		}
	}
	_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Limits: api.Limits{ShmBytes: 97 * mib, MemoryBytes: 96 * mib}}, Facts: facts()}, operator, rules.Rules{})
	want{code: api.CodeInvalid, field: "limits.shm_bytes", says: "memory"}.check(t, err)
}

func TestDecideWorkspace(t *testing.T) {
	p, err := policy.DecideWorkspace(api.WorkspaceSpec{Name: "data", SizeBytes: 1 << 30, Labels: map[string]string{"a": "b"}}, canHold, tenant, rules.Rules{MaxWorkspacesPerTenant: 3})
	if err != nil {
		t.Fatal(err)
	}
	want1 := api.WorkspaceSpec{Name: "data", SizeBytes: 1 << 30, Inodes: 65536, Labels: map[string]string{"a": "b"}}
	if !p.Valid() || p.Tenant() != "tcp" || p.Max() != 3 || !reflect.DeepEqual(p.Spec(), want1) {
		t.Errorf("granted %+v", p)
	}
	for _, c := range []struct {
		spec api.WorkspaceSpec
		hard api.Enforcement
		r    rules.Rules
		w    want
	}{
		{spec: api.WorkspaceSpec{}, hard: canHold, w: want{code: api.CodeInvalid, field: "name"}},
		{spec: api.WorkspaceSpec{Name: "A b"}, hard: canHold, w: want{code: api.CodeInvalid, field: "name"}},
		{spec: api.WorkspaceSpec{Name: "a", SizeBytes: -1}, hard: canHold, w: want{code: api.CodeInvalid, field: "size_bytes"}},
		{spec: api.WorkspaceSpec{Name: "a", SizeBytes: 1 << 30}, hard: cannotHold, w: want{code: api.CodeUnsupported, field: "size_bytes"}},
		{spec: api.WorkspaceSpec{Name: "a", Labels: map[string]string{"": ""}}, hard: canHold, w: want{code: api.CodeInvalid, field: "labels."}},
		{spec: api.WorkspaceSpec{Name: "a"}, hard: canHold, r: rules.Rules{Enabled: new(false)}, w: want{code: api.CodeDisabled}},
	} {
		p, err := policy.DecideWorkspace(c.spec, c.hard, tenant, c.r)
		c.w.check(t, err)
		if p.Valid() {
			t.Errorf("%+v: refused, and valid", c.spec)
		}
	}
	if _, err := policy.DecideWorkspace(api.WorkspaceSpec{Name: "a"}, cannotHold, tenant, rules.Rules{}); err != nil {
		t.Errorf("one without bounds: %v", err)
	}
	if (policy.WorkspacePermit{}).Valid() {
		t.Error("a zero permit is valid")
	}
}
