//go:build linux

package langbot

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const upsertGrant, revokeGrant = "box_upsert_sandbox_admission_grant", "box_revoke_sandbox_admission_grant"

// grantFor is a grant of one session for a placement, for some minutes.
func grantFor(p *placement, revision int) obj {
	return obj{
		"instance_uuid": p.Instance, "workspace_uuid": p.Workspace, "execution_generation": p.Generation, "entitlement_revision": revision,
		"expires_at": time.Now().Add(4 * time.Minute).Format(time.RFC3339), "max_sessions": 1, "max_managed_processes": 0,
	}
}

// strict is the report of an engine that holds all that a policy of grants demands.
func strict() api.EngineReport {
	ok := api.Enforcement{OK: true}
	return api.EngineReport{
		Name: "nsjail", Usable: true, Tier: api.TierNamespace,
		Enforces: map[string]api.Enforcement{"memory_bytes": ok, "pids": ok, "cpus": ok, "disk_bytes": ok},
	}
}

// needsGrants is an API server where grants are needed, with an engine that holds what the
// unsafe switch does not forgive, and the directory that relative paths begin at.
func needsGrants(t *testing.T, change func(*Options)) (*server, string) {
	t.Helper()
	work := t.TempDir()
	d := newServer(t, func(o *Options) {
		o.WorkDir, o.UnsafeStorage, o.Config = work, true, `{"backend":"nsjail","local":{"host_root":"b"},"admission":{"required":true}}`
		if change != nil {
			change(o)
		}
	})
	d.core.engines = []api.EngineReport{strict()}
	return d, work
}

// Where grants are needed a session has more mounts only to read, few, below the
// workspace, and of no other tenant.
func TestMountsOfAGrantedSession(t *testing.T) {
	d, work := needsGrants(t, nil)
	p, other := &placement{"inst-1", "ws-1", 1}, &placement{"inst-1", "ws-2", 1}
	root := filepath.Join(work, "b")
	tenants := filepath.Join(root, "default", "tenants")
	for _, dir := range []string{"skill", "lib", "skills/tenants/" + p.durable() + "/own", "skills/tenants/" + other.durable() + "/theirs", "default/tenants/" + other.durable()} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"link": "skill", "out": "/usr", "spy": tenants} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mount := func(dir, at string) obj {
		return obj{"host_path": filepath.Join(root, dir), "mount_path": at, "mode": "ro"}
	}
	with := func(mounts ...obj) obj { return obj{"session_id": "x", "extra_mounts": mounts} }
	d.must(upsertGrant, nil, grantFor(p, 1))
	many := make([]obj, maxGrantMounts+1)
	for i := range many {
		many[i] = mount("skill", fmt.Sprintf("/workspace/%d", i))
	}
	writable := mount("skill", "/workspace/a")
	writable["mode"] = "rw"
	unset := mount("skill", "/workspace/a")
	delete(unset, "mode") // which is rw
	listed := mount("skill", "/workspace/a")
	listed["manifest_path"] = filepath.Join(root, "file")
	for name, bad := range map[string][]obj{
		"to write": {writable}, "of no mode": {unset}, "none there": {mount("none", "/workspace/a")}, "a file": {mount("file", "/workspace/a")},
		"outside of the roots": {{"host_path": "/usr", "mount_path": "/workspace/a", "mode": "ro"}}, "outside by a link": {mount("out", "/workspace/a")},
		"over the workspace": {mount("skill", "/workspace")}, "beside the workspace": {mount("skill", "/opt/a")}, "out of the workspace": {mount("skill", "/workspace/../etc")},
		"no shortest path": {mount("skill", "/workspace//a")}, "two at one place": {mount("skill", "/workspace/a"), mount("lib", "/workspace/a")}, "too many": many,
		"another's directory": {mount("default/tenants/"+other.durable(), "/workspace/a")}, "everybody's": {mount("default", "/workspace/a")}, "everybody's by a link": {mount("spy", "/workspace/a")},
		"another's skill": {mount("skills/tenants/"+other.durable()+"/theirs", "/workspace/a")}, "a manifest without a digest": {listed},
	} {
		r := d.ask("box_create_session", p, with(bad...))
		if !strings.HasPrefix(r.Message, "BoxAdmissionError: extra_mounts: ") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	first := d.must("box_create_session", p, with(mount("link", "/workspace/tools/a"), mount("lib", "/workspace/b"), mount("skills/tenants/"+p.durable()+"/own", "/workspace/.skills/own")))
	d.core.mu.Lock()
	spec := d.core.live[first["backend_session_id"].(string)]
	d.core.mu.Unlock()
	want := []api.Mount{{Source: filepath.Join(root, "lib"), Target: "/workspace/b", ReadOnly: true}, {Source: filepath.Join(root, "skill"), Target: "/workspace/tools/a", ReadOnly: true}}
	if !slices.EqualFunc(spec.Mounts, want, func(a, b api.Mount) bool {
		return a.Source == b.Source && a.Target == b.Target && a.ReadOnly == b.ReadOnly
	}) {
		t.Errorf("the mounts are %+v", spec.Mounts)
	}
	if len(spec.Skills) != 1 || spec.Skills[0].Name != "own" || spec.Skills[0].Access != api.AccessRead {
		t.Errorf("the skills are %+v", spec.Skills)
	}
	if spec.Workspace.Dir != filepath.Join(tenants, p.durable()) || spec.Network != api.NetworkNone {
		t.Errorf("%+v", spec)
	}
	// A skill by its name is to read as well.
	named := d.must("box_create_session", p, obj{"session_id": "x", "skill_name": "own"})
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	if got := d.core.live[named["backend_session_id"].(string)].Skills; len(got) != 1 || got[0].Name != "own" || got[0].Access == api.AccessWrite {
		t.Errorf("the skills are %+v", got)
	}
}

// Each check of the strict mode is what the engine says of itself, and what this runtime
// does. The operator's switch is for storage and nothing else.
func TestStrictReadiness(t *testing.T) {
	storage := []string{"bounded_ephemeral_storage", "hard_read_only_mount_quota", "hard_skill_storage_quota", "hard_workspace_quota", "inode_quota"}
	// A workspace is a directory of the host here, which nothing holds.
	always := []string{"hard_workspace_quota", "inode_quota"}
	without := func(limits ...string) func(*api.EngineReport) {
		return func(r *api.EngineReport) {
			r.Enforces = maps.Clone(r.Enforces)
			for _, l := range limits {
				r.Enforces[l] = api.Enforcement{Reason: "no " + l + " here"}
			}
		}
	}
	isolation := []string{"mount_isolation", "namespace_isolation", "network_isolation"}
	for name, c := range map[string]struct {
		change        func(*api.EngineReport)
		config        string
		unsafe        bool
		missing, says []string
	}{
		"all that can be":         {missing: always, says: []string{"nothing holds"}},
		"and storage is forgiven": {unsafe: true},
		"no memory limit":         {unsafe: true, change: without("memory_bytes"), missing: []string{"cgroup_v2"}, says: []string{"no memory_bytes here"}},
		"no limit of processes":   {unsafe: true, change: without("pids"), missing: []string{"cgroup_v2"}},
		"no bound of the root":    {change: without("disk_bytes"), missing: append([]string{"bounded_ephemeral_storage"}, always...), says: []string{"no disk_bytes here"}},
		"it isolates nothing":     {unsafe: true, change: func(r *api.EngineReport) { r.Tier = api.TierNone }, missing: isolation},
		"it isolates nothing, and storage counts": {
			change: func(r *api.EngineReport) { r.Tier = api.TierNone }, missing: slices.Concat(always, isolation, []string{"hard_read_only_mount_quota", "hard_skill_storage_quota"}),
		},
		"it is not usable": {
			unsafe: true, change: func(r *api.EngineReport) {
				r.Usable, r.Problems = false, []api.Problem{{What: "it is not installed"}}
			},
			missing: append([]string{"backend_available"}, isolation...), says: []string{"it is not installed"},
		},
		"another backend":      {unsafe: true, config: `{"backend":"docker","local":{"host_root":"b"},"admission":{"required":true}}`, change: func(r *api.EngineReport) { r.Name = "docker" }, missing: []string{"required_backend"}},
		"no default workspace": {unsafe: true, config: `{"backend":"nsjail","admission":{"required":true}}`, missing: []string{"workspace_mount"}},
		"a malformed policy":   {unsafe: true, config: `{"backend":"nsjail","local":{"host_root":"b"},"admission":{"required":true,"max_sessions":2}}`, missing: []string{"configuration"}},
		"a number as a truth":  {unsafe: true, config: `{"backend":"nsjail","local":{"host_root":"b"},"admission":{"required":false,"max_sessions":true}}`, missing: []string{"configuration"}},
	} {
		d, _ := needsGrants(t, func(o *Options) {
			o.UnsafeStorage = c.unsafe
			if c.config != "" {
				o.Config = c.config
			}
		})
		report := strict()
		if c.change != nil {
			c.change(&report)
		}
		d.core.engines = []api.EngineReport{report}
		slices.Sort(c.missing)
		info := d.must("box_get_backend_info", nil, obj{})
		ready := info["readiness"].(obj)
		var missing []string
		for check, ok := range ready["checks"].(obj) {
			if ok != true {
				missing = append(missing, check)
			}
		}
		slices.Sort(missing)
		if !slices.Equal(missing, c.missing) || info["available"] != (len(missing) == 0) || ready["ready"] != info["available"] || ready["mode"] != "grant_enforced" || ready["unsafe_soft_storage_limits"] != c.unsafe {
			t.Errorf("%s: %v fail, want %v: %v", name, missing, c.missing, info)
		}
		if len(ready["checks"].(obj)) != 15 {
			t.Errorf("%s: %v", name, ready["checks"])
		}
		details, _ := json.Marshal(ready["backend"])
		for _, says := range c.says {
			if !strings.Contains(string(details), says) {
				t.Errorf("%s: it does not say %q: %s", name, says, details)
			}
		}
		health := d.ask("box_health", nil, obj{})
		if len(missing) == 0 {
			if health.Code != 0 || health.Data["ready"] != true {
				t.Errorf("%s: %+v", name, health)
			}
			continue
		}
		if health.Message != "BoxReadinessError: managed sandbox isolation is not ready: "+strings.Join(missing, ", ") {
			t.Errorf("%s: %+v", name, health)
		}
		d.refused("BoxReadinessError: ", "box_exec", &placement{"inst-1", "ws-1", 1}, obj{"session_id": "x", "cmd": "x"})
		for _, check := range storage {
			if c.unsafe && slices.Contains(missing, check) {
				t.Errorf("%s: the switch does not forgive %s", name, check)
			}
		}
	}
}

// A grant is for a generation and a time, and the newest word about it holds.
func TestGrantsFollowEachOther(t *testing.T) {
	d, _ := needsGrants(t, nil)
	p, next, other := &placement{"inst-1", "ws-1", 1}, &placement{"inst-1", "ws-1", 2}, &placement{"inst-1", "ws-2", 1}
	exec := obj{"session_id": "x", "cmd": "x"}
	d.must(upsertGrant, nil, grantFor(p, 1))
	d.must(upsertGrant, nil, grantFor(other, 1))
	d.must("box_exec", p, exec)
	d.must("box_exec", other, exec)
	// One that ends earlier leaves the longer one.
	short := grantFor(p, 1)
	short["expires_at"] = time.Now().Add(time.Minute).Format(time.RFC3339)
	if long := d.must(upsertGrant, nil, short); long["expires_at"] == short["expires_at"] {
		t.Errorf("%v", long)
	}
	d.refused("BoxAdmissionError: ", "box_start_managed_process", p, obj{"session_id": "other", "spec": obj{"command": "x"}})
	// A new generation has none of the old one's sessions, and the old one no grant.
	d.must(upsertGrant, nil, grantFor(next, 2))
	if all := d.must("box_get_sessions", next, obj{})["sessions"].([]any); len(all) != 0 {
		t.Errorf("%v", all)
	}
	d.refused("BoxAdmissionError: ", "box_exec", p, exec)
	d.must("box_exec", next, exec)
	// One without sessions takes those that there are, and another workspace keeps its own.
	none := grantFor(next, 3)
	none["max_sessions"] = 0
	d.must(upsertGrant, nil, none)
	d.refused("BoxAdmissionError: ", "box_exec", next, exec)
	// A revocation of what was never granted is remembered.
	never := &placement{"inst-1", "ws-3", 1}
	d.must(revokeGrant, nil, obj{"instance_uuid": "inst-1", "workspace_uuid": "ws-3", "entitlement_revision": 9})
	d.refused("BoxAdmissionError: ", upsertGrant, nil, grantFor(never, 9))
	d.must(upsertGrant, nil, grantFor(never, 10))
	// At its end a grant takes its sessions.
	d.s.expireGrants(t.Context(), time.Now().Add(time.Hour))
	d.refused("BoxAdmissionError: ", "box_exec", other, exec)
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	if len(d.core.live) != 0 {
		t.Errorf("left: %v", d.core.live)
	}
}
