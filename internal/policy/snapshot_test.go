package policy_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func TestDecideSnapshot(t *testing.T) {
	for name, tc := range map[string]struct {
		req   api.SnapshotRequest
		facts policy.SnapshotFacts
		rules rules.Rules
		code  api.Code
		rule  string
	}{
		"the least":        {},
		"all":              {req: api.SnapshotRequest{Name: "a.b-c", Scope: api.SnapshotRoot, Labels: map[string]string{"k": "v"}}},
		"unknown scope":    {req: api.SnapshotRequest{Scope: "everything"}, code: api.CodeInvalid},
		"memory":           {req: api.SnapshotRequest{Scope: api.SnapshotMemory}},
		"bad name":         {req: api.SnapshotRequest{Name: "../x"}, code: api.CodeInvalid},
		"bad label":        {req: api.SnapshotRequest{Labels: map[string]string{"": "v"}}, code: api.CodeInvalid},
		"too many":         {facts: policy.SnapshotFacts{Count: 100}, code: api.CodeTooMany, rule: "max_snapshots_per_tenant"},
		"too much":         {facts: policy.SnapshotFacts{Bytes: 32 << 30}, code: api.CodeTooMany, rule: "max_snapshot_bytes_per_tenant"},
		"allowed more":     {facts: policy.SnapshotFacts{Count: 100, Bytes: 32 << 30}, rules: rules.Rules{MaxSnapshotsPerTenant: 101, MaxSnapshotBytesPerTenant: 33 << 30}},
		"allowed just one": {facts: policy.SnapshotFacts{Count: 1}, rules: rules.Rules{MaxSnapshotsPerTenant: 1}, code: api.CodeTooMany, rule: "max_snapshots_per_tenant"},
	} {
		p, err := policy.DecideSnapshot(tc.req, tc.facts, tc.rules)
		if api.CodeOf(err) != tc.code || p.Valid() != (tc.code == "") {
			t.Errorf("%s: %v, valid %v", name, err, p.Valid())
			continue
		}
		if e, ok := err.(*api.Error); ok && (e.Hint == "" || e.Rule != tc.rule) {
			t.Errorf("%s: rule %q, hint %q", name, e.Rule, e.Hint)
		}
		if _, most := p.Max(); err == nil && p.BytesLeft() != most-tc.facts.Bytes {
			t.Errorf("%s: %d bytes are left", name, p.BytesLeft())
		}
	}
}

// TestBeginWithSnapshot judges what a sandbox asks of a snapshot and of a layer.
func TestBeginWithSnapshot(t *testing.T) {
	snap := func(scope api.SnapshotScope, tenant string) *api.Snapshot {
		return &api.Snapshot{ID: "sn-1", Name: "s", Tenant: tenant, Scope: scope, RootBytes: 100 << 20}
	}
	noLayers := api.Errorf(api.CodeUnsupported, "only root").WithHint("run it as root")
	for name, tc := range map[string]struct {
		spec api.SandboxSpec
		snap *api.Snapshot
		// operator sees the snapshots of all tenants.
		operator bool
		no       *api.Error
		has      *api.WorkspaceInfo
		code     api.Code
		field    string
	}{
		"own":            {spec: api.SandboxSpec{Snapshot: "s"}, snap: snap(api.SnapshotFiles, "red")},
		"none":           {spec: api.SandboxSpec{Snapshot: "s"}, code: api.CodeNotFound, field: "snapshot"},
		"another's":      {spec: api.SandboxSpec{Snapshot: "s"}, snap: snap(api.SnapshotFiles, "blue"), code: api.CodeNotFound, field: "snapshot"},
		"named":          {spec: api.SandboxSpec{Snapshot: "s", Workspace: &api.Workspace{Name: "w"}}, snap: snap(api.SnapshotFiles, "red")},
		"read-only":      {spec: api.SandboxSpec{Snapshot: "s", Workspace: &api.Workspace{Name: "w", ReadOnly: true}}, snap: snap(api.SnapshotFiles, "red"), code: api.CodeInvalid, field: "workspace.read_only"},
		"host directory": {spec: api.SandboxSpec{Snapshot: "s", Workspace: &api.Workspace{Dir: "/srv/x"}}, snap: snap(api.SnapshotFiles, "red"), code: api.CodeInvalid, field: "workspace.dir"},
		"read-only root": {spec: api.SandboxSpec{Snapshot: "s", ReadOnlyRoot: new(true)}, snap: snap(api.SnapshotRoot, "red"), code: api.CodeUnsupported, field: "read_only_root"},
		"its workspace":  {spec: api.SandboxSpec{Snapshot: "s", ReadOnlyRoot: new(true)}, snap: snap(api.SnapshotWorkspace, "red")},
		"memory":         {spec: api.SandboxSpec{Snapshot: "s", ReadOnlyRoot: new(true)}, snap: snap(api.SnapshotMemory, "red")},
		"its memory":     {spec: api.SandboxSpec{Snapshot: "s"}, snap: snap(api.SnapshotMemory, "blue"), operator: true, code: api.CodeUnsupported, field: "snapshot"},
		"little memory":  {spec: api.SandboxSpec{Snapshot: "s", Limits: api.Limits{MemoryBytes: 256 << 20}}, snap: snap(api.SnapshotRoot, "red"), code: api.CodeInvalid, field: "limits.memory_bytes"},
		"little disk":    {spec: api.SandboxSpec{Snapshot: "s", Limits: api.Limits{DiskBytes: 64 << 20}}, snap: snap(api.SnapshotRoot, "red"), code: api.CodeInvalid, field: "limits.disk_bytes"},

		"layered":                 {spec: api.SandboxSpec{Workspace: &api.Workspace{Name: "w", Layered: true}}},
		"layered private":         {spec: api.SandboxSpec{Workspace: &api.Workspace{Layered: true}}},
		"layered, impossible":     {spec: api.SandboxSpec{Workspace: &api.Workspace{Layered: true}}, no: noLayers, code: api.CodeUnsupported, field: "workspace.layered"},
		"layered read-only":       {spec: api.SandboxSpec{Workspace: &api.Workspace{Name: "w", Layered: true, ReadOnly: true}}, code: api.CodeInvalid, field: "workspace.layered"},
		"layered with a bound":    {spec: api.SandboxSpec{Workspace: &api.Workspace{Layered: true, SizeBytes: 1 << 30}}},
		"layered, one with bound": {spec: api.SandboxSpec{Workspace: &api.Workspace{Name: "w", Layered: true}}, has: &api.WorkspaceInfo{Name: "w", SizeBytes: 1 << 30}},
		"layered and measured":    {spec: api.SandboxSpec{Workspace: &api.Workspace{Layered: true, SizeBytes: 1 << 30, Quota: api.QuotaMeasured}}, code: api.CodeUnsupported, field: "workspace.layered"},
	} {
		f := facts()
		f.Snapshot, f.NoLayers, f.Workspace = tc.snap, tc.no, tc.has
		f.HardQuota = api.Enforcement{OK: true}
		p, err := policy.Decide(policy.Request{Spec: tc.spec, Facts: f}, policy.Caller{Tenant: "red", UID: -1, Operator: tc.operator}, rules.Rules{})
		e, _ := err.(*api.Error)
		switch {
		case tc.field == "workspace.dir" && e != nil && strings.HasPrefix(e.Field, "workspace"):
			// whichever rule is first
		case api.CodeOf(err) != tc.code, e != nil && (e.Field != tc.field || e.Hint == ""):
			t.Errorf("%s: %+v", name, err)
		}
		if got, ok := p.Snapshot(); err == nil && (ok != (tc.spec.Snapshot != "") || ok && (got.ID != "sn-1" || p.Spec().Snapshot != "sn-1")) {
			t.Errorf("%s: the permit has %+v", name, got)
		}
	}
}
