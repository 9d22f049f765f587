package policy_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
)

func TestDecideSnapshot(t *testing.T) {
	for name, tc := range map[string]struct {
		req   cloche.SnapshotRequest
		facts policy.SnapshotFacts
		rules policy.Rules
		code  cloche.Code
		rule  string
	}{
		"the least":        {},
		"all":              {req: cloche.SnapshotRequest{Name: "a.b-c", Scope: cloche.SnapshotRoot, Labels: map[string]string{"k": "v"}}},
		"unknown scope":    {req: cloche.SnapshotRequest{Scope: "memory"}, code: cloche.CodeInvalid},
		"bad name":         {req: cloche.SnapshotRequest{Name: "../x"}, code: cloche.CodeInvalid},
		"bad label":        {req: cloche.SnapshotRequest{Labels: map[string]string{"": "v"}}, code: cloche.CodeInvalid},
		"too many":         {facts: policy.SnapshotFacts{Count: 100}, code: cloche.CodeTooMany, rule: "max_snapshots_per_tenant"},
		"too much":         {facts: policy.SnapshotFacts{Bytes: 32 << 30}, code: cloche.CodeTooMany, rule: "max_snapshot_bytes_per_tenant"},
		"allowed more":     {facts: policy.SnapshotFacts{Count: 100, Bytes: 32 << 30}, rules: policy.Rules{MaxSnapshotsPerTenant: 101, MaxSnapshotBytesPerTenant: 33 << 30}},
		"allowed just one": {facts: policy.SnapshotFacts{Count: 1}, rules: policy.Rules{MaxSnapshotsPerTenant: 1}, code: cloche.CodeTooMany, rule: "max_snapshots_per_tenant"},
	} {
		p, err := policy.DecideSnapshot(tc.req, tc.facts, tc.rules)
		if cloche.CodeOf(err) != tc.code || p.Valid() != (tc.code == "") {
			t.Errorf("%s: %v, valid %v", name, err, p.Valid())
			continue
		}
		if e, ok := err.(*cloche.Error); ok && (e.Hint == "" || e.Rule != tc.rule) {
			t.Errorf("%s: rule %q, hint %q", name, e.Rule, e.Hint)
		}
		if _, most := p.Max(); err == nil && p.BytesLeft() != most-tc.facts.Bytes {
			t.Errorf("%s: %d bytes are left", name, p.BytesLeft())
		}
	}
}

// TestBeginWithSnapshot judges what a sandbox asks of a snapshot and of a layer.
func TestBeginWithSnapshot(t *testing.T) {
	snap := func(scope cloche.SnapshotScope, tenant string) *cloche.Snapshot {
		return &cloche.Snapshot{ID: "sn-1", Name: "s", Tenant: tenant, Scope: scope, RootBytes: 100 << 20}
	}
	noLayers := cloche.Errorf(cloche.CodeUnsupported, "only root").WithHint("run it as root")
	for name, tc := range map[string]struct {
		spec  cloche.SandboxSpec
		snap  *cloche.Snapshot
		no    *cloche.Error
		has   *cloche.WorkspaceInfo
		code  cloche.Code
		field string
	}{
		"own":            {spec: cloche.SandboxSpec{Snapshot: "s"}, snap: snap(cloche.SnapshotFiles, "red")},
		"none":           {spec: cloche.SandboxSpec{Snapshot: "s"}, code: cloche.CodeNotFound, field: "snapshot"},
		"another's":      {spec: cloche.SandboxSpec{Snapshot: "s"}, snap: snap(cloche.SnapshotFiles, "blue"), code: cloche.CodeNotFound, field: "snapshot"},
		"named":          {spec: cloche.SandboxSpec{Snapshot: "s", Workspace: &cloche.Workspace{Name: "w"}}, snap: snap(cloche.SnapshotFiles, "red")},
		"read-only":      {spec: cloche.SandboxSpec{Snapshot: "s", Workspace: &cloche.Workspace{Name: "w", ReadOnly: true}}, snap: snap(cloche.SnapshotFiles, "red"), code: cloche.CodeInvalid, field: "workspace.read_only"},
		"host directory": {spec: cloche.SandboxSpec{Snapshot: "s", Workspace: &cloche.Workspace{Dir: "/srv/x"}}, snap: snap(cloche.SnapshotFiles, "red"), code: cloche.CodeInvalid, field: "workspace.dir"},
		"read-only root": {spec: cloche.SandboxSpec{Snapshot: "s", ReadOnlyRoot: new(true)}, snap: snap(cloche.SnapshotRoot, "red"), code: cloche.CodeUnsupported, field: "read_only_root"},
		"its workspace":  {spec: cloche.SandboxSpec{Snapshot: "s", ReadOnlyRoot: new(true)}, snap: snap(cloche.SnapshotWorkspace, "red")},
		"little memory":  {spec: cloche.SandboxSpec{Snapshot: "s", Limits: cloche.Limits{MemoryBytes: 256 << 20}}, snap: snap(cloche.SnapshotRoot, "red"), code: cloche.CodeInvalid, field: "limits.memory_bytes"},
		"little disk":    {spec: cloche.SandboxSpec{Snapshot: "s", Limits: cloche.Limits{DiskBytes: 64 << 20}}, snap: snap(cloche.SnapshotRoot, "red"), code: cloche.CodeInvalid, field: "limits.disk_bytes"},

		"layered":                 {spec: cloche.SandboxSpec{Workspace: &cloche.Workspace{Name: "w", Layered: true}}},
		"layered private":         {spec: cloche.SandboxSpec{Workspace: &cloche.Workspace{Layered: true}}},
		"layered, impossible":     {spec: cloche.SandboxSpec{Workspace: &cloche.Workspace{Layered: true}}, no: noLayers, code: cloche.CodeUnsupported, field: "workspace.layered"},
		"layered read-only":       {spec: cloche.SandboxSpec{Workspace: &cloche.Workspace{Name: "w", Layered: true, ReadOnly: true}}, code: cloche.CodeInvalid, field: "workspace.layered"},
		"layered with a bound":    {spec: cloche.SandboxSpec{Workspace: &cloche.Workspace{Layered: true, SizeBytes: 1 << 30}}},
		"layered, one with bound": {spec: cloche.SandboxSpec{Workspace: &cloche.Workspace{Name: "w", Layered: true}}, has: &cloche.WorkspaceInfo{Name: "w", SizeBytes: 1 << 30}},
		"layered and measured":    {spec: cloche.SandboxSpec{Workspace: &cloche.Workspace{Layered: true, SizeBytes: 1 << 30, Quota: cloche.QuotaMeasured}}, code: cloche.CodeUnsupported, field: "workspace.layered"},
	} {
		f := facts()
		f.Snapshot, f.NoLayers, f.Workspace = tc.snap, tc.no, tc.has
		f.HardQuota = cloche.Enforcement{OK: true}
		p, err := policy.Decide(policy.Request{Spec: tc.spec, Facts: f}, policy.Caller{Tenant: "red", UID: -1}, policy.Rules{})
		e, _ := err.(*cloche.Error)
		switch {
		case tc.field == "workspace.dir" && e != nil && strings.HasPrefix(e.Field, "workspace"):
			// whichever rule is first
		case cloche.CodeOf(err) != tc.code, e != nil && (e.Field != tc.field || e.Hint == ""):
			t.Errorf("%s: %+v", name, err)
		}
		if got, ok := p.Snapshot(); err == nil && (ok != (tc.spec.Snapshot != "") || ok && (got.ID != "sn-1" || p.Spec().Snapshot != "sn-1")) {
			t.Errorf("%s: the permit has %+v", name, got)
		}
	}
}
