//go:build linux

package langbot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

func TestWhoIsLetIn(t *testing.T) {
	token := strings.Repeat("t", 32)
	d := newServer(t, func(o *Options) { o.Token = token })
	get := func(path string, more ...string) int {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+path, nil)
		for i := 0; i < len(more); i += 2 {
			req.Header.Set(more[i], more[i+1])
		}
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
		req.Header.Set("Sec-WebSocket-Version", "13")
		req.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
		r, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	relay := "/v1/sessions/" + placement{"a", "w", 1}.runtime() + "-s/managed-process/p/ws"
	for _, c := range []struct {
		name, path string
		headers    []string
		want       int
	}{
		{"no token", "/rpc/ws", []string{headerInstance, "a"}, 401},
		{"another token", "/rpc/ws", []string{headerInstance, "a", headerToken, token + "x"}, 401},
		{"no instance", "/rpc/ws", []string{headerToken, token}, 401},
		{"no id of an instance", "/rpc/ws", []string{headerToken, token, headerInstance, "-a"}, 401},
		{"a relay before any action", relay, []string{headerToken, token, headerInstance, "a", headerWorkspace, "w", headerGeneration, "1"}, 401},
		{"a relay of another instance", relay, []string{headerToken, token, headerInstance, "z", headerWorkspace, "w", headerGeneration, "1"}, 401},
		{"the first instance", "/rpc/ws", []string{headerToken, token, headerInstance, "a"}, 101},
		{"a second instance", "/rpc/ws", []string{headerToken, token, headerInstance, "b"}, 401},
		{"the first again", "/rpc/ws", []string{headerToken, token, headerInstance, " a "}, 101},
		{"a relay of a workspace that nobody showed", relay, []string{headerToken, token, headerInstance, "a", headerWorkspace, "w", headerGeneration, "1"}, 401},
		{"a generation with a sign", relay, []string{headerToken, token, headerInstance, "a", headerWorkspace, "w", headerGeneration, "+1"}, 401},
		{"health", "/healthz", nil, 200},
		{"readiness", "/readyz", nil, 200},
	} {
		if got := get(c.path, c.headers...); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	d.core.down = true
	if got := get("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("readiness without a backend: %d", got)
	}
	for _, bad := range []string{"short", strings.Repeat("t", 32) + " t"} {
		if _, err := New(t.Context(), Options{Core: d.core, Dir: t.TempDir(), Token: bad}); err == nil {
			t.Errorf("the token %q is taken", bad)
		}
	}
}

func TestActionsThatAreRefused(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 2}
	d.refused("ValueError: Action __heartbeat not found", "__heartbeat", nil, obj{})
	d.refused("PermissionError: Action box_status requires a trusted Workspace context", "box_status", nil, obj{})
	d.refused("PermissionError: ", "box_status", &placement{"other", "ws-1", 1}, obj{})
	d.refused("KeyError: 'session_id'", "box_get_session", p, obj{})
	d.refused("BoxSessionNotFoundError: ", "box_get_session", p, obj{"session_id": "s"})
	d.refused("PermissionError: Stale Box placement generation", "box_status", &placement{"inst-1", "ws-1", 1}, obj{})
	d.refused("BoxValidationError: cmd", "box_exec", p, obj{"session_id": "s"})
	d.refused("BoxReadinessError: ", "box_verify_shared_workspace", nil, obj{"marker_name": "x"})
	d.refused("BoxAdmissionError: ", "box_upsert_sandbox_admission_grant", nil, obj{})
	// What is no frame is passed over.
	if err := d.conn.Write(t.Context(), websocket.MessageText, []byte(`nonsense`)); err != nil {
		t.Fatal(err)
	}
	d.must("__ping", nil, obj{})
	// What is no text ends the connection.
	if err := d.conn.Write(t.Context(), websocket.MessageBinary, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusUnsupportedData {
		t.Errorf("after a binary message: %v", err)
	}
}

func TestSessionsAreReusedOrNot(t *testing.T) {
	roots := t.TempDir()
	d := newServer(t, func(o *Options) {
		o.Config = fmt.Sprintf(`{"local":{"allowed_mount_roots":%q},"limits":{"max_sessions":3}}`, roots)
	})
	p := &placement{"inst-1", "ws-1", 1}
	first := d.must("box_create_session", p, obj{"session_id": "a b"})
	if first["session_id"] != "a-b" || first["image"] != defaultImage || first["mount_path"] != "/workspace" || first["backend_name"] != "fake" {
		t.Errorf("%v", first)
	}
	again := d.must("box_create_session", p, obj{"session_id": "a b", "env": obj{"A": "1"}, "timeout_sec": 9, "cmd": "x"})
	if again["backend_session_id"] != first["backend_session_id"] {
		t.Error("another sandbox")
	}
	for field, v := range map[string]any{
		"network": "on", "image": "x", "host_path": "/x", "host_path_mode": "ro", "mount_path": "/x", "persistent": true, "cpus": 2,
		"memory_mb": 64, "pids_limit": 9, "read_only_rootfs": false, "workspace_quota_mb": 5,
	} {
		spec := obj{"session_id": "a b", field: v}
		r := d.ask("box_create_session", p, spec)
		if !strings.HasPrefix(r.Message, "BoxSessionConflictError: Box session "+p.runtime()+"-a-b already exists with "+field+"=") {
			t.Errorf("%s: %s", field, r.Message)
		}
	}
	// The first of several that differ is named.
	if r := d.ask("box_create_session", p, obj{"session_id": "a b", "memory_mb": 64, "image": "x"}); !strings.Contains(r.Message, "with image=") {
		t.Error(r.Message)
	}
	d.refused("BoxSessionConflictError: ", "box_create_session", p, obj{"session_id": "a/b"})
	d.refused("BoxSessionNotFoundError: ", "box_get_session", p, obj{"session_id": "a/b"})
	d.must("box_get_session", p, obj{"session_id": "a-b"})
	// Other mounts, or a sandbox that died: another sandbox, and no error.
	mounted := d.must("box_create_session", p, obj{"session_id": "a b", "extra_mounts": []obj{{"host_path": roots, "mount_path": "/m", "mode": "ro"}}})
	if mounted["backend_session_id"] == first["backend_session_id"] {
		t.Error("the same sandbox with other mounts")
	}
	same := d.must("box_create_session", p, obj{"session_id": "a b", "extra_mounts": []obj{
		{"host_path": "/no", "mount_path": "/no", "mode": "none"}, {"host_path": roots, "mount_path": "/m", "mode": "ro"},
	}})
	if same["backend_session_id"] != mounted["backend_session_id"] {
		t.Error("a mount of mode none counts")
	}
	d.core.mu.Lock()
	clear(d.core.live)
	d.core.mu.Unlock()
	r := d.must("box_exec", p, obj{"session_id": "a b", "cmd": "x", "extra_mounts": []obj{{"host_path": roots, "mount_path": "/m", "mode": "ro"}}})
	if r["status"] != "completed" || strings.HasPrefix(r["stdout"].(string), mounted["backend_session_id"].(string)+" ") {
		t.Errorf("after its sandbox died: %v", r)
	}
	if r := d.must("box_exec", p, obj{"session_id": "b", "cmd": "time out"}); r["status"] != "timed_out" || r["exit_code"] != nil || r["stdout"] != "some" || r["stderr"] == "" {
		t.Errorf("%v", r)
	}
	d.must("box_create_session", p, obj{"session_id": "c"})
	if got := d.must("box_status", p, obj{})["capacity"]; !maps.Equal(got.(obj), obj{"limit": 3.0, "used": 3.0, "remaining": 0.0}) {
		t.Errorf("the capacity is %v", got)
	}
	if got := d.must("box_status", &placement{"inst-1", "ws-2", 1}, obj{})["capacity"]; !maps.Equal(got.(obj), obj{"limit": 3.0, "used": 0.0, "remaining": 0.0}) {
		t.Errorf("another workspace's capacity is %v", got)
	}
	d.refused("BoxCapacityExceededError: ", "box_create_session", p, obj{"session_id": "d"})
	if r := d.must("box_delete_session", p, obj{"session_id": "a b"}); r["deleted"] != "a b" {
		t.Errorf("%v", r)
	}
	d.refused("BoxValidationError: host_path", "box_create_session", p, obj{"session_id": "e", "host_path": "/var"})
	d.refused("BoxValidationError: extra_mounts", "box_create_session", p, obj{"session_id": "e", "extra_mounts": []obj{{"host_path": "/var", "mount_path": "/m"}}})
	d.refused("BoxValidationError: host_path", "box_create_session", p, obj{"session_id": "e", "host_path": `C:\x`})
	d.refused("BoxSessionNotFoundError: ", "box_delete_session", p, obj{"session_id": "a b"})
	// Another workspace has nothing of it.
	other := &placement{"inst-1", "ws-2", 1}
	if all := d.must("box_get_sessions", other, obj{})["sessions"].([]any); len(all) != 0 {
		t.Errorf("%v", all)
	}
	mine, theirs := d.must("box_get_session", p, obj{"session_id": "b"}), d.must("box_create_session", other, obj{"session_id": "b", "host_path_mode": "none"})
	if mine["backend_session_id"] == theirs["backend_session_id"] {
		t.Error("two workspaces share a sandbox")
	}
}

// A newer generation ends what the older ones do and have.
func TestGenerations(t *testing.T) {
	d := newServer(t, nil)
	old, now := &placement{"inst-1", "ws-1", 1}, &placement{"inst-1", "ws-1", 2}
	d.must("box_create_session", old, obj{"session_id": "s"})
	d.core.hold = make(chan struct{})
	running := d.send("box_exec", old, obj{"session_id": "s", "cmd": "x"})
	<-d.core.entered
	listed := d.send("box_get_sessions", now, obj{})
	for range 2 {
		switch r := d.recv(); r.SeqID {
		case running:
			if r.Message != "PermissionError: Stale Box placement generation" {
				t.Errorf("the exec: %+v", r)
			}
		case listed:
			if r.Code != 0 || len(r.Data["sessions"].([]any)) != 0 {
				t.Errorf("the list: %+v", r)
			}
		}
	}
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	if len(d.core.live) != 0 {
		t.Errorf("still there: %v", d.core.live)
	}
}

func TestConfigurations(t *testing.T) {
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config  string
		environ []string
		wrong   string
		check   func(*settings) bool
	}{
		"nothing":                   {config: `{}`, check: func(s *settings) bool { return s.workspace == "" && len(s.roots) == 0 }},
		"a root":                    {config: `{"local":{"host_root":"b"}}`, check: func(s *settings) bool { return s.workspace == filepath.Join(work, "b/default") && isDir(s.workspace) }},
		"relative":                  {config: `{"local":{"host_root":"b","default_workspace":"w"}}`, check: func(s *settings) bool { return s.workspace == filepath.Join(work, "b/w") }},
		"a list with commas":        {config: `{"local":{"host_root":"b","allowed_mount_roots":"b, c"}}`, check: func(s *settings) bool { return len(s.roots) == 2 && s.roots[1] == filepath.Join(work, "c") }},
		"a file":                    {config: `{"local":{"host_root":".","default_workspace":"file"}}`, wrong: "is a file"},
		"outside":                   {config: `{"local":{"host_root":"b","default_workspace":"/usr/w"}}`, wrong: "not below"},
		"outside by a link":         {config: `{"local":{"host_root":".","default_workspace":"link/w"}}`, wrong: "not below"},
		"no number":                 {config: `{"limits":{"max_sessions":true}}`, wrong: "max_sessions"},
		"too many":                  {config: `{"limits":{"max_sessions":5001}}`, wrong: "max_sessions"},
		"no object":                 {config: `{"limits":[]}`, wrong: "limits"},
		"said by BOX_BACKEND":       {config: `{"backend":"docker"}`, environ: []string{"BOX_BACKEND=gvisor"}, check: func(s *settings) bool { return s.backend == "gvisor" && s.source == fromEnvironment }},
		"said by an override":       {config: `{"backend":"docker"}`, environ: []string{"BOX__BACKEND=local"}, check: func(s *settings) bool { return s.backend == "local" && s.source == fromOverride }},
		"a nested override":         {config: `{"limits":{"max_sessions":1}}`, environ: []string{"BOX__LIMITS__MAX_SESSIONS=2"}, check: func(s *settings) bool { return s.limits.Sessions == 2 }},
		"a malformed admission":     {config: `{"admission":{"required":false,"other":1}}`, check: func(s *settings) bool { return s.policy.required && s.policy.wrong != "" }},
		"an admission as it should": {config: `{"admission":{"required":true,"max_timeout_sec":60}}`, check: func(s *settings) bool { return s.policy.required && s.policy.wrong == "" && s.policy.TimeoutSec == 60 }},
	} {
		s, err := Options{WorkDir: work, Environ: c.environ}.configure(nil, []byte(c.config), said{source: fromStart, before: fromNobody})
		if c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) || c.wrong == "" && (err != nil || !c.check(s)) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func isDir(p string) bool {
	fi, err := os.Stat(p)
	return err == nil && fi.IsDir()
}

func TestWhichEngine(t *testing.T) {
	docker, broken := api.EngineReport{Name: "docker", Usable: true}, api.EngineReport{Name: "docker", Problems: []api.Problem{{What: "no daemon"}}}
	nsjail := api.EngineReport{Name: "nsjail", Usable: true}
	auto := api.EngineStatus{Name: "gvisor", Available: true}
	for name, c := range map[string]struct {
		backend string
		reports []api.EngineReport
		want    choice
	}{
		"nobody says":                       {"", nil, choice{name: "gvisor", available: true}},
		"local":                             {"local", []api.EngineReport{nsjail, docker}, choice{engine: "docker", name: "docker", available: true}},
		"local without docker":              {"local", []api.EngineReport{broken, nsjail}, choice{engine: "nsjail", name: "nsjail", available: true}},
		"local with neither":                {"local", []api.EngineReport{broken}, choice{name: "gvisor", available: true}},
		"local with nothing":                {"nothing", []api.EngineReport{broken}, choice{reason: "engine docker is not usable here: no daemon; engine nsjail is not part of this build"}},
		"a name never falls back":           {"docker", []api.EngineReport{broken, nsjail}, choice{engine: "docker", name: "docker", reason: "engine docker is not usable here: no daemon"}},
		"one that this build does not have": {"e2b", []api.EngineReport{docker}, choice{engine: "e2b", name: "e2b", reason: "engine e2b is not part of this build"}},
		"no backend at all":                 {"host", []api.EngineReport{docker}, choice{reason: "there is no backend host"}},
	} {
		own, backend := auto, c.backend
		if backend == "nothing" {
			own, backend = api.EngineStatus{}, backendLocal
		}
		if got := choose(backend, c.reports, own); got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A configuration that is wrong changes nothing, and one that is good changes what is
// made from now on.
func TestInit(t *testing.T) {
	d := newServer(t, func(o *Options) { o.Config = `{"backend":"docker"}` })
	d.core.engines = []api.EngineReport{{Name: "nsjail", Usable: true}}
	p := &placement{"inst-1", "ws-1", 1}
	choiceIs := func(backend, source string) {
		t.Helper()
		got := d.must("box_status", p, obj{})["backend_choice"]
		if !maps.Equal(got.(obj), obj{"value": backend, "source": source}) {
			t.Errorf("the choice is %v", got)
		}
	}
	choiceIs("docker", fromStart)
	d.refused("BoxBackendUnavailableError: ", "box_create_session", p, obj{"session_id": "s"})
	d.refused("BoxValidationError: limits", "box_init", nil, obj{"backend": "nsjail", "limits": obj{"max_sessions": -1}})
	choiceIs("docker", fromStart)
	for range 2 {
		d.must("box_init", nil, obj{"backend": "nsjail", "unknown": 1})
	}
	choiceIs("nsjail", fromInit)
	d.must("box_create_session", p, obj{"session_id": "s"})
	d.must("box_init", nil, obj{"limits": obj{}})
	choiceIs("nsjail", fromInit)
	if all := d.must("box_get_sessions", p, obj{})["sessions"].([]any); len(all) != 1 {
		t.Errorf("an INIT took sessions: %v", all)
	}
	if got := d.must("box_get_backend_info", nil, obj{}); got["name"] != "nsjail" || got["available"] != true {
		t.Errorf("%v", got)
	}
	// What needed grants cannot be made to need none.
	d.must("box_init", nil, obj{"admission": obj{"required": true}})
	d.must("box_init", nil, obj{"admission": obj{"required": false}})
	d.refused("BoxReadinessError: ", "box_exec", p, obj{"session_id": "s", "cmd": "x"})
}

func TestGrants(t *testing.T) {
	work := t.TempDir()
	enforced := map[string]api.Enforcement{"memory_bytes": {OK: true}, "pids": {OK: true}, "cpus": {OK: true}}
	d := newServer(t, func(o *Options) {
		o.WorkDir, o.UnsafeStorage, o.Config = work, true, `{"backend":"nsjail","local":{"host_root":"b"},"admission":{"required":true,"max_timeout_sec":7}}`
	})
	d.core.engines = []api.EngineReport{{Name: "nsjail", Usable: true, Tier: api.TierNamespace, Enforces: enforced}}
	p := &placement{"inst-1", "ws-1", 4}
	grant := func(revision, generation, sessions int, more ...any) obj {
		g := obj{
			"instance_uuid": "inst-1", "workspace_uuid": "ws-1", "execution_generation": generation, "entitlement_revision": revision,
			"expires_at": time.Now().Add(4 * time.Minute).Format(time.RFC3339), "max_sessions": sessions, "max_managed_processes": 0,
		}
		for i := 0; i < len(more); i += 2 {
			g[more[i].(string)] = more[i+1]
		}
		return g
	}
	const upsert, revoke = "box_upsert_sandbox_admission_grant", "box_revoke_sandbox_admission_grant"
	d.refused("BoxAdmissionError: ", "box_exec", p, obj{"session_id": "x", "cmd": "x"})
	for _, bad := range []obj{
		grant(1, 4, 2), grant(1, 4, 1, "other", 1), grant(1, 4, 1, "expires_at", time.Now().Add(-time.Second).Format(time.RFC3339)),
		grant(1, 4, 1, "expires_at", time.Now().Add(time.Hour).Format(time.RFC3339)), grant(0, 4, 1), grant(1, 0, 1), grant(1, 4, 1, "max_managed_processes", 1),
	} {
		d.refused("BoxAdmissionError: ", upsert, nil, bad)
	}
	d.refused("PermissionError: ", upsert, nil, grant(1, 4, 1, "instance_uuid", "other"))
	if r := d.must(upsert, nil, grant(5, 4, 1)); r["installed"] != true || r["entitlement_revision"] != 5.0 {
		t.Errorf("%v", r)
	}
	d.refused("BoxAdmissionError: ", upsert, nil, grant(4, 4, 1))
	d.refused("BoxAdmissionError: ", upsert, nil, grant(5, 3, 1))
	d.refused("BoxAdmissionError: ", upsert, nil, grant(5, 4, 0))
	d.must(upsert, nil, grant(5, 4, 1))
	d.refused("BoxAdmissionError: network", "box_exec", p, obj{"session_id": "x", "cmd": "x", "network": "on"})
	d.refused("BoxAdmissionError: extra", "box_exec", p, obj{"session_id": "x", "cmd": "x", "extra_mounts": []obj{{"host_path": "/a", "mount_path": "/b"}}})
	d.refused("BoxAdmissionError: host_path", "box_exec", p, obj{"session_id": "x", "cmd": "x", "host_path": work})
	made := d.must("box_create_session", p, obj{"session_id": "x", "memory_mb": 4096, "timeout_sec": 500})
	if made["session_id"] != "global" || made["memory_mb"] != 512.0 || made["persistent"] != true || made["host_path"] != filepath.Join(work, "b/default/tenants", p.durable()) {
		t.Errorf("%v", made)
	}
	d.refused("BoxAdmissionError: ", "box_get_session", p, obj{"session_id": "x"})
	d.must("box_get_session", p, obj{"session_id": "global"})
	if r := d.must("box_health", nil, obj{}); r["ready"] != true || r["mode"] != "grant_enforced" {
		t.Errorf("%v", r)
	}
	d.must(revoke, nil, obj{"instance_uuid": "inst-1", "workspace_uuid": "ws-1", "entitlement_revision": 5})
	d.refused("BoxAdmissionError: ", "box_exec", p, obj{"session_id": "x", "cmd": "x"})
	d.refused("BoxAdmissionError: ", upsert, nil, grant(5, 4, 1))
	if len(d.core.live) != 0 {
		t.Errorf("a revoked grant leaves %v", d.core.live)
	}
	// Without the switch nothing here holds a bound on storage.
	d.s.o.UnsafeStorage = false
	d.refused("BoxReadinessError: ", "box_health", nil, obj{})
}

func TestUploads(t *testing.T) {
	base := t.TempDir()
	u := newUploads(base, 40_000)
	data := bytes.Repeat([]byte("zip!"), 9_000)
	sum := sha256.Sum256(data)
	key := hex.EncodeToString(sum[:])[:16] + "-" + strings.Repeat("a", 32) + ".zip"
	put := func(key string, index, amount int, part []byte) error {
		raw, _ := json.Marshal(obj{"file_key": key, "file_length": len(data), "chunk_base64": base64.StdEncoding.EncodeToString(part), "chunk_index": index, "chunk_amount": amount, "chunk_size": len(part)})
		return u.take(raw)
	}
	parts := [][]byte{data[:chunkBytes], data[chunkBytes : 2*chunkBytes], data[2*chunkBytes:]}
	all := func(key string) {
		t.Helper()
		for i, p := range parts {
			if err := put(key, i, len(parts), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	all(key)
	got, err := u.use(key)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := u.use(key); err == nil {
		t.Error("an upload is used twice")
	}
	all(strings.Repeat("0", 16) + "-x.zip")
	if _, err := u.use(strings.Repeat("0", 16) + "-x.zip"); err == nil {
		t.Error("an upload is not what its key says")
	}
	for name, err := range map[string]error{
		"a path": put("../x", 0, 1, nil), "a slash": put("a/b", 0, 1, nil), "an index over the amount": put("k", 1, 1, nil), "a chunk without a first": put("k", 1, 2, nil),
		"a chunk that is too large": put("k", 0, 1, make([]byte, chunkBytes+1)),
		"a gap":                     func() error { _ = put("g", 0, 3, parts[0]); return put("g", 2, 3, parts[2]) }(),
		"too much": func() error {
			_ = put("m", 0, 9, parts[0])
			_ = put("m", 1, 9, parts[0])
			return put("m", 2, 9, parts[0])
		}(),
	} {
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if err := put("left", 0, 2, parts[0]); err != nil {
		t.Fatal(err)
	}
	u.close()
	if left, err := os.ReadDir(base); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestSharedWorkspaceMarker(t *testing.T) {
	work := t.TempDir()
	d := newServer(t, func(o *Options) { o.WorkDir, o.Config = work, `{"local":{"host_root":"b"}}` })
	dir := filepath.Join(work, "b", "default")
	name := func(c string) string { return markerPrefix + strings.Repeat(c, 32) }
	if err := os.WriteFile(filepath.Join(dir, name("a")), []byte("random"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("random"))
	got := d.must("box_verify_shared_workspace", nil, obj{"marker_name": name("a")})
	if got["sha256"] != hex.EncodeToString(sum[:]) || got["size"] != 6.0 || got["marker_name"] != name("a") {
		t.Errorf("%v", got)
	}
	if err := os.Symlink(name("a"), filepath.Join(dir, name("b"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name("c")), make([]byte, maxMarker+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{name("b"), name("c"), name("d"), name("G"), "../" + name("a"), ""} {
		d.refused("BoxReadinessError: ", "box_verify_shared_workspace", nil, obj{"marker_name": bad})
	}
}

// A persistent session outlives the runtime, and another session does not.
func TestSessionsAfterARestart(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 3}
	kept := d.must("box_create_session", p, obj{"session_id": "kept", "persistent": true})
	d.must("box_create_session", p, obj{"session_id": "not"})
	d.must("box_shutdown", nil, obj{})
	if all := d.must("box_get_sessions", p, obj{})["sessions"].([]any); len(all) != 1 {
		t.Errorf("after box_shutdown: %v", all)
	}
	d.must("box_create_session", p, obj{"session_id": "not"})
	conn := d.conn
	closed := make(chan error, 1)
	go func() { _, _, err := conn.Read(context.WithoutCancel(t.Context())); closed <- err }()
	if err := d.s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("at the end: %v", err)
	}
	if len(d.core.live) != 1 {
		t.Errorf("live: %v", d.core.live)
	}
	d.conn = nil
	d.start()
	d.refused("PermissionError: Stale", "box_get_sessions", &placement{"inst-1", "ws-1", 2}, obj{})
	if got := d.must("box_get_session", p, obj{"session_id": "kept"}); got["backend_session_id"] != kept["backend_session_id"] {
		t.Errorf("%v", got)
	}
	d.must("box_init", nil, obj{"compat": obj{"shutdown_drops_persistent": true}})
	d.must("box_shutdown", nil, obj{})
	if len(d.core.live) != 0 {
		t.Errorf("live: %v", d.core.live)
	}
}

func TestTooMuchAtOnce(t *testing.T) {
	d := newServer(t, nil)
	d.core.hold = make(chan struct{})
	p := &placement{"inst-1", "ws-1", 1}
	for range maxActions + 1 {
		d.send("box_exec", p, obj{"session_id": "s", "cmd": "x"})
	}
	if r := d.recv(); r.Message != "Runtime connection is busy (max 128 concurrent actions)" {
		t.Errorf("%+v", r)
	}
	d.must("__ping", nil, obj{}) // is still answered
	close(d.core.hold)
	for range maxActions {
		if r := d.recv(); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
}
