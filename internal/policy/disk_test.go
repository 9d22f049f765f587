package policy_test

import (
	"reflect"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// What a sandbox writes to its root and to its own workspace comes to limits.disk_bytes
// in all, whichever component divides it.
func TestDiskIsOfRootAndWorkspace(t *testing.T) {
	const mib, gib = int64(1 << 20), int64(1 << 30)
	rule := func(r rules.LimitRule) rules.Rules {
		return rules.Rules{Profiles: map[string]rules.ProfileRule{"agent": {Defaults: r}}}
	}
	own := func(size int64) *api.Workspace { return &api.Workspace{SizeBytes: size} }
	size := func(n int64) *rules.Size { return new(rules.Size(n)) }
	for _, c := range []struct {
		name             string
		spec             api.SandboxSpec
		rules            rules.Rules
		disk, root, work int64
		want             want
	}{
		{name: "nothing", disk: 6 * gib, root: 2 * gib, work: 4 * gib},
		{name: "disk", spec: api.SandboxSpec{Limits: api.Limits{DiskBytes: 100 * mib}}, disk: 100 * mib, root: 50 * mib, work: 50 * mib},
		{name: "disk beyond the memory", spec: api.SandboxSpec{Limits: api.Limits{DiskBytes: 20 * gib, MemoryBytes: gib}}, disk: 20 * gib, root: gib, work: 19 * gib},
		{name: "the least", spec: api.SandboxSpec{Limits: api.Limits{DiskBytes: 2 * mib}}, disk: 2 * mib, root: mib, work: mib},
		{name: "read-only root", spec: api.SandboxSpec{Limits: api.Limits{DiskBytes: 100 * mib}, ReadOnlyRoot: new(true)}, disk: 100 * mib, work: 100 * mib},
		{name: "box profile", spec: api.SandboxSpec{Profile: "default"}, disk: 6 * gib, work: 6 * gib},
		{name: "read-only workspace", spec: api.SandboxSpec{Workspace: &api.Workspace{ReadOnly: true}}, disk: 6 * gib, root: 6 * gib},
		{name: "named", spec: api.SandboxSpec{Workspace: &api.Workspace{Name: "data"}}, disk: 6 * gib, root: 6 * gib},
		{name: "directory", spec: api.SandboxSpec{Workspace: &api.Workspace{Dir: "/home/alice/project"}}, disk: 6 * gib, root: 6 * gib},
		{name: "size", spec: api.SandboxSpec{Workspace: own(8 * mib)}, disk: 2*gib + 8*mib, root: 2 * gib, work: 8 * mib},
		{name: "size beyond the default", spec: api.SandboxSpec{Workspace: own(20 * gib)}, disk: 22 * gib, root: 2 * gib, work: 20 * gib},
		{name: "both", spec: api.SandboxSpec{Workspace: own(90 * mib), Limits: api.Limits{DiskBytes: 100 * mib}}, disk: 100 * mib, root: 10 * mib, work: 90 * mib},
		{name: "both, and all of it", spec: api.SandboxSpec{Workspace: own(100 * mib), Limits: api.Limits{DiskBytes: 100 * mib}}, want: want{code: api.CodeInvalid, field: "limits.disk_bytes", says: "the workspace alone takes 100MiB"}},
		{name: "over the ceiling", spec: api.SandboxSpec{Workspace: own(300 * gib)}, want: want{code: api.CodeDenied, field: "workspace.size_bytes", rule: "profiles.agent.ceilings.disk", says: "256GiB in all"}},
		{name: "rule on the disk", rules: rule(rules.LimitRule{Disk: size(gib)}), disk: gib, root: gib / 2, work: gib / 2},
		{name: "rule on both", rules: rule(rules.LimitRule{Disk: size(gib), Workspace: size(4 * gib)}), disk: 4*gib + gib/2, root: gib / 2, work: 4 * gib},
		{name: "rule that lifts the workspace", rules: rule(rules.LimitRule{Workspace: size(0)}), disk: 6 * gib, root: 6 * gib},
		{name: "a size where rules lift it", rules: rule(rules.LimitRule{Workspace: size(0)}), spec: api.SandboxSpec{Workspace: own(gib)}, disk: 3 * gib, root: 2 * gib, work: gib},
		{
			name:  "rules that lift all",
			rules: rules.Rules{Profiles: map[string]rules.ProfileRule{"agent": {Defaults: rules.LimitRule{Disk: size(0)}, Ceilings: rules.LimitRule{Disk: size(0)}}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := facts()
			f.HardQuota = canHold
			p, err := policy.Decide(policy.Request{Spec: c.spec, Facts: f}, operator, c.rules)
			if c.want.code != "" {
				c.want.check(t, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if disk, work := p.Limits().DiskBytes, p.Spec().Workspace.SizeBytes; disk != c.disk || p.RootBytes() != c.root || work != c.work {
				t.Errorf("%d in all, %d for the root, %d for the workspace; want %d, %d, %d", disk, p.RootBytes(), work, c.disk, c.root, c.work)
			}
			again, err := policy.Decide(policy.Request{Spec: p.Spec(), Facts: f}, operator, c.rules)
			if err != nil || !reflect.DeepEqual(again.Spec(), p.Spec()) || again.RootBytes() != p.RootBytes() {
				t.Errorf("decided again: %+v, %v", again.Spec(), err)
			}
		})
	}
}

// An engine that does not bound the layer of a root is not asked to without one,
// and otherwise reports the default as not enforced; the workspace keeps its part.
func TestDiskThatTheEngineDoesNotHold(t *testing.T) {
	f := facts()
	f.Engines[0].Enforces["disk_bytes"] = api.Enforcement{Reason: "overlay2"}
	p, err := policy.Decide(policy.Request{Facts: f}, operator, rules.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	if u := p.Unenforced(); len(u) != 1 || u[0].Field != "limits.disk_bytes" || p.RootBytes() != 0 || p.Spec().Workspace.SizeBytes != 4<<30 {
		t.Errorf("unenforced %+v, root %d, workspace %+v", u, p.RootBytes(), p.Spec().Workspace)
	}
	again, err := policy.Decide(policy.Request{Spec: p.Spec(), Facts: f}, operator, rules.Rules{})
	if err != nil || !reflect.DeepEqual(again.Spec(), p.Spec()) {
		t.Errorf("decided again: %+v, %v", again.Spec(), err)
	}
	disk := api.SandboxSpec{Limits: api.Limits{DiskBytes: 1 << 30}}
	_, err = policy.Decide(policy.Request{Spec: disk, Facts: f}, operator, rules.Rules{})
	want{code: api.CodeUnsupported, field: "limits.disk_bytes"}.check(t, err)
	disk.ReadOnlyRoot = new(true)
	if p, err = policy.Decide(policy.Request{Spec: disk, Facts: f}, operator, rules.Rules{}); err != nil || len(p.Unenforced()) != 0 {
		t.Errorf("with a root that is not written to: %+v, %v", p.Unenforced(), err)
	}
}
