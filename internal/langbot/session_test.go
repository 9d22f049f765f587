//go:build linux

package langbot

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

// unused makes a session look unused for so long.
func (d *server) unused(p *placement, id string, long time.Duration) {
	d.t.Helper()
	x, err := d.s.lookup(*p, id)
	if err != nil {
		d.t.Fatal(err)
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	x.used = time.Now().Add(-long)
}

// ids are the sessions of a placement.
func (d *server) ids(p *placement) string {
	d.t.Helper()
	var out []string
	for _, x := range d.must("box_get_sessions", p, obj{})["sessions"].([]any) {
		out = append(out, x.(obj)["session_id"].(string))
	}
	return strings.Join(out, " ")
}

// An idle session ends, unless it is persistent, in use, or has a process that runs.
func TestIdleSessionsEnd(t *testing.T) {
	d := newServer(t, func(o *Options) { o.Config = `{"session_ttl_sec":60,"limits":{"max_sessions":5}}` })
	p := &placement{"inst-1", "ws-1", 1}
	for _, id := range []string{"fresh", "idle", "persistent", "busy", "used"} {
		d.must("box_create_session", p, obj{"session_id": id, "persistent": id == "persistent"})
	}
	d.must("box_start_managed_process", p, obj{"session_id": "busy", "spec": obj{"command": "x"}})
	d.core.hold = make(chan struct{})
	exec := d.send("box_exec", p, obj{"session_id": "used", "cmd": "x"})
	<-d.core.entered
	for _, id := range []string{"idle", "persistent", "busy", "used"} {
		d.unused(p, id, time.Hour)
	}
	d.s.reapOnce(t.Context())
	if got := d.ids(p); got != "fresh persistent busy used" {
		t.Errorf("left are %s", got)
	}
	close(d.core.hold)
	if r := d.recv(); r.SeqID != exec || r.Code != 0 {
		t.Errorf("%+v", r)
	}
	d.core.processes()[0].end(0)
	d.unused(p, "busy", time.Hour)
	d.s.reapOnce(t.Context())
	if got := d.ids(p); got != "fresh persistent used" {
		t.Errorf("left are %s: the process ended, and the exec did only now", got)
	}
	if got := d.must("box_status", p, obj{}); got["session_ttl_sec"] != 60.0 {
		t.Errorf("%v", got)
	}
	// Where there is no room, idle ones make it without waiting to be reaped.
	d.must("box_create_session", p, obj{"session_id": "four"})
	d.must("box_create_session", p, obj{"session_id": "five"})
	d.refused("BoxCapacityExceededError: ", "box_create_session", p, obj{"session_id": "six"})
	d.unused(p, "used", time.Hour)
	d.must("box_create_session", p, obj{"session_id": "six"})
	if got := d.ids(p); got != "fresh persistent four five six" {
		t.Errorf("left are %s", got)
	}
}

// A session that is being ended still counts, and no call waits for another's end.
func TestSessionsDoNotWaitForEachOther(t *testing.T) {
	d := newServer(t, func(o *Options) { o.Config = `{"limits":{"max_sessions":2}}` })
	p := &placement{"inst-1", "ws-1", 1}
	goOn := d.core.holds(&d.core.holdCreate)
	slow := d.send("box_create_session", p, obj{"session_id": "slow"})
	<-d.core.slow
	again := d.send("box_create_session", p, obj{"session_id": "slow"})
	deleted := d.send("box_delete_session", p, obj{"session_id": "slow"})
	d.core.mu.Lock()
	d.core.holdCreate = nil
	d.core.mu.Unlock()
	d.must("box_create_session", p, obj{"session_id": "quick"}) // answered before the slow one
	goOn()
	seen := map[int]reply{}
	for range 3 {
		r := d.recv()
		seen[r.SeqID] = r
	}
	// The second create and the delete come behind the first, in either order.
	if seen[slow].Code != 0 || seen[again].Code != 0 || seen[deleted].Code != 0 {
		t.Errorf("%+v", seen)
	}
	for d.ids(p) != "quick" {
		d.must("box_delete_session", p, obj{"session_id": "slow"})
	}
	goOn = d.core.holds(&d.core.holdRemove)
	ending := d.send("box_delete_session", p, obj{"session_id": "quick"})
	<-d.core.slow
	if got := d.ids(p); got != "" {
		t.Errorf("a session that is being ended is listed: %s", got)
	}
	d.must("box_create_session", p, obj{"session_id": "one"})
	d.refused("BoxCapacityExceededError: ", "box_create_session", p, obj{"session_id": "two"})
	goOn()
	if r := d.recv(); r.SeqID != ending || r.Code != 0 {
		t.Errorf("%+v", r)
	}
	d.must("box_create_session", p, obj{"session_id": "two"})
}

// Two execs of a session run at the same time, and nothing else waits for them: not its
// processes, and not its end.
func TestNothingWaitsForAnExec(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "s"})
	d.core.hold = make(chan struct{})
	first := d.send("box_exec", p, obj{"session_id": "s", "cmd": "x"})
	<-d.core.entered
	second := d.send("box_exec", p, obj{"session_id": "s", "cmd": "y"})
	<-d.core.entered
	d.must("box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"command": "x"}})
	d.must("box_stop_managed_process", p, obj{"session_id": "s", "process_id": "default"})
	d.must("box_get_session", p, obj{"session_id": "s"})
	d.must("box_delete_session", p, obj{"session_id": "s"})
	if got := d.ids(p); got != "" {
		t.Errorf("the sessions are %q", got)
	}
	close(d.core.hold)
	for range 2 {
		if r := d.recv(); r.SeqID != first && r.SeqID != second {
			t.Errorf("%+v", r)
		}
	}
}

// What a configuration says reaches the next sandbox: the workspace of a session that
// names none, and each engine's section, whether it was chosen or not.
func TestWhatASandboxIsAskedToBe(t *testing.T) {
	work := t.TempDir()
	d := newServer(t, func(o *Options) { o.WorkDir, o.Config = work, `{"local":{"allowed_mount_roots":"."}}` })
	d.core.engines = []api.EngineReport{{Name: "docker", Usable: true}}
	p := &placement{"inst-1", "ws-1", 1}
	made := func(id string, more obj) api.SandboxSpec {
		t.Helper()
		more["session_id"] = id
		ref := d.must("box_create_session", p, more)["backend_session_id"].(string)
		d.core.mu.Lock()
		defer d.core.mu.Unlock()
		return d.core.live[ref]
	}
	if got := made("own", obj{}); got.Workspace.Dir != "" || got.Workspace.Path != "/workspace" || got.Engine != "" || got.Image != "" || got.Limits.CPUs != 1 || got.Limits.MemoryBytes != 512<<20 || got.Limits.Pids != 128 || !*got.ReadOnlyRoot || got.Network != api.NetworkNone {
		t.Errorf("%+v", got)
	}
	d.must("box_init", nil, obj{"local": obj{"host_root": filepath.Join(work, "b")}, "docker": obj{"cpu_limit_enabled": "0"}}) // another engine is chosen
	dir := filepath.Join(work, "b", "default", "tenants", p.durable())
	if got := made("usual", obj{"mount_path": "/srv"}); got.Workspace.Dir != dir || got.Workspace.Path != "/srv" || got.Limits.CPUs != 1 {
		t.Errorf("%+v", got)
	}
	if got := made("none", obj{"host_path_mode": "none"}); got.Workspace.Dir != "" {
		t.Errorf("%+v", got)
	}
	if got := made("read", obj{"host_path_mode": "ro"}); got.Workspace.Dir != dir || !got.Workspace.ReadOnly {
		t.Errorf("%+v", got)
	}
	d.must("box_init", nil, obj{"backend": "docker"})
	if got := made("docker", obj{"image": "alpine:3", "network": "on", "read_only_rootfs": false}); got.Engine != "docker" || got.Limits.CPUs <= 1 || got.Image != "alpine:3" || got.Network != api.NetworkOn || *got.ReadOnlyRoot {
		t.Errorf("%+v", got)
	}
	// A section takes the place of the one before, and the others stay.
	d.must("box_init", nil, obj{"docker": obj{}})
	if got := made("limited", obj{}); got.Engine != "docker" || got.Limits.CPUs != 1 || got.Workspace.Dir != dir {
		t.Errorf("%+v", got)
	}
}

// What is wrong with the directories keeps a runtime from starting, and says so.
func TestDirectoriesAtTheStart(t *testing.T) {
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ config, says string }{
		"a file in its place":   {`{"local":{"host_root":".","default_workspace":"file"}}`, "is a file"},
		"no root that holds it": {`{"local":{"default_workspace":"/usr/w"}}`, "allowed_mount_roots " + filepath.Join(work, "data/box")},
		"outside of the roots":  {`{"local":{"host_root":"b","default_workspace":"w","allowed_mount_roots":["c"]}}`, "is not below one of the allowed_mount_roots"},
	} {
		s, err := New(t.Context(), Options{Core: newFakeCore(), Dir: t.TempDir(), WorkDir: work, Config: c.config})
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || !strings.Contains(e.Message, c.says) || e.Hint == "" {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if left, err := os.ReadDir(work); err != nil || len(left) != 1 {
		t.Errorf("something was made: %v, %v", left, err)
	}
	// What is no JSON is passed over, with a warning.
	var log bytes.Buffer
	s, err := New(t.Context(), Options{Core: newFakeCore(), Dir: t.TempDir(), WorkDir: work, Config: "{nonsense", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil || !strings.Contains(log.String(), "LANGBOT_BOX_CONFIG") {
		t.Fatalf("%v, %s", err, log.String())
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// box_shutdown waits for what is being made, and takes it.
func TestShutdownTakesWhatIsBeingMade(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	goOn := d.core.holds(&d.core.holdCreate)
	made := d.send("box_create_session", p, obj{"session_id": "s"})
	<-d.core.slow
	down := d.send("box_shutdown", nil, obj{})
	for begun := false; !begun; {
		d.must("__ping", nil, obj{})
		d.s.mu.Lock()
		begun = d.s.shutting
		d.s.mu.Unlock()
	}
	during := d.ask("box_create_session", p, obj{"session_id": "t"})
	if !strings.HasPrefix(during.Message, "BoxRuntimeUnavailableError: ") {
		t.Errorf("while it goes down: %+v", during)
	}
	goOn()
	for range 2 {
		if r := d.recv(); r.Code != 0 || r.SeqID != made && r.SeqID != down {
			t.Errorf("%+v", r)
		}
	}
	if got := d.ids(p); got != "" {
		t.Errorf("left are %s", got)
	}
	d.must("box_create_session", p, obj{"session_id": "s"})
}

// What an older generation made after a newer one had come is taken away.
func TestNothingIsLeftOfAnOldGeneration(t *testing.T) {
	d := newServer(t, nil)
	old, now := &placement{"inst-1", "ws-1", 1}, &placement{"inst-1", "ws-1", 2}
	goOn := d.core.holds(&d.core.holdCreate)
	made := d.send("box_create_session", old, obj{"session_id": "s", "persistent": true})
	<-d.core.slow
	d.must("box_status", now, obj{})
	goOn()
	if r := d.recv(); r.SeqID != made || r.Message != "PermissionError: Stale Box placement generation" {
		t.Errorf("%+v", r)
	}
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	if len(d.core.live) != 0 {
		t.Errorf("left: %v", d.core.live)
	}
}

// Processes that ended are told of for a while, and only so many of them.
func TestEndedProcessesAreForgotten(t *testing.T) {
	d := newServer(t, func(o *Options) {
		o.Config = `{"limits":{"max_completed_processes":2,"completed_process_retention_sec":100,"max_managed_processes":3}}`
	})
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "s"})
	for i := range 3 {
		d.must("box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"process_id": fmt.Sprint(i), "command": "x"}})
	}
	d.refused("BoxCapacityExceededError: ", "box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"process_id": "3", "command": "x"}})
	// One that runs is replaced by another of its id.
	d.must("box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"process_id": "0", "command": "y", "env": obj{"B": "", "A": ""}}})
	all := d.core.processes()
	if all[0].exit == nil {
		t.Error("the process that was replaced runs")
	}
	r := d.must("box_get_managed_process", p, obj{"session_id": "s", "process_id": "0"})
	if keys, _ := json.Marshal(r["env_keys"]); r["command"] != "y" || string(keys) != `["A","B"]` || r["session_id"] != "s" {
		t.Errorf("%v", r)
	}
	for _, f := range all[1:] {
		f.end(0)
		d.s.reapOnce(t.Context())
	}
	count := func() int {
		listed, _ := d.must("box_get_session", p, obj{"session_id": "s"})["managed_processes"].(obj)
		return len(listed)
	}
	if n := count(); n != 2 {
		t.Errorf("%d of 3 are told of", n)
	}
	d.refused("BoxManagedProcessNotFoundError: ", "box_get_managed_process", p, obj{"session_id": "s", "process_id": "1"})
	d.s.forgetEnded(t.Context(), d.s.settings(), time.Now().Add(200*time.Second))
	if n := count(); n != 0 {
		t.Errorf("%d are told of after their time", n)
	}
}

// The end of the error output is kept, however much came at once.
func TestErrorOutputOfAProcess(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "s"})
	d.must("box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"command": "x"}})
	f := d.core.processes()[0]
	for _, n := range []int{0, 3999, 4000, 4001, 100_000} {
		f.change(func() { f.stderr = []byte(strings.Repeat("é", n) + "\nlast") })
		r := d.must("box_get_managed_process", p, obj{"session_id": "s", "process_id": "default"})
		text := r["stderr_preview"].(string)
		if got := len([]rune(text)); got != min(n+5, previewChars) || !strings.HasSuffix(text, "\nlast") {
			t.Errorf("of %d characters %d are shown, which end with %.10q", n, got, text[max(0, len(text)-8):])
		}
	}
}

// A message may have 16 MiB, and one of 17 ends its connection and nothing else.
func TestLargeMessages(t *testing.T) {
	d := newServer(t, nil)
	frame := func(n int) []byte {
		head, tail := `{"seq_id":7,"action":"__ping","data":{"x":"`, `"}}`
		return []byte(head + strings.Repeat("x", n-len(head)-len(tail)) + tail)
	}
	d.must("__ping", nil, obj{})
	other := d.dial()
	if err := other.Write(t.Context(), websocket.MessageText, frame(maxFrame)); err != nil {
		t.Fatal(err)
	}
	if got := line(t, other); !strings.HasPrefix(got, `{"seq_id":7,"code":0`) {
		t.Errorf("%.80s", got)
	}
	_ = other.Write(t.Context(), websocket.MessageText, frame(17<<20))
	if e := closing(t, other); e.Code != websocket.StatusMessageTooBig {
		t.Errorf("%v", e)
	}
	d.must("__ping", nil, obj{})
}

// A client that leaves takes with it what it waits for and what it uploaded, and
// leaves its sessions.
func TestAClientLeaves(t *testing.T) {
	files := t.TempDir()
	d := newServer(t, func(o *Options) { o.FileDir = files })
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "s"})
	key := strings.Repeat("0", 16) + "-x.zip"
	chunk := func(index int) obj {
		return obj{"file_key": key, "file_length": 40_000, "chunk_base64": base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), chunkBytes)), "chunk_index": index, "chunk_amount": 3, "chunk_size": chunkBytes}
	}
	d.must("__file_chunk", nil, chunk(0))
	if found, _ := filepath.Glob(filepath.Join(files, "*", "*")); len(found) != 1 {
		t.Errorf("the upload lies in %v", found)
	}
	d.core.hold = make(chan struct{}) // and is never let go: only who leaves ends the exec
	d.send("box_exec", p, obj{"session_id": "s", "cmd": "x"})
	<-d.core.entered
	if err := d.conn.CloseNow(); err != nil {
		t.Fatal(err)
	}
	d.conn = nil
	left := time.Now().Add(time.Minute)
	for {
		found, err := os.ReadDir(files)
		if err != nil || time.Now().After(left) {
			t.Fatalf("left are %v, %v", found, err)
		}
		if len(found) == 0 {
			break
		}
		d.must("__ping", nil, obj{})
	}
	if got := d.ids(p); got != "s" {
		t.Errorf("left are %s", got)
	}
	// A gap is told at once, and ends the upload.
	d.must("__file_chunk", nil, chunk(0))
	d.refused("BoxValidationError: chunk_index", "__file_chunk", nil, chunk(2))
	d.refused("BoxValidationError: file_key", "__file_chunk", nil, chunk(1))
	d.refused("BoxValidationError: file_key", "box_preview_skill_zip", p, obj{"file_key": key, "filename": "x.zip"})
}

// Who chose the backend: BOX_BACKEND, then INIT whenever it comes, then what there was
// at the start. One that is unavailable is reported with the reason.
func TestWhoChoosesTheBackend(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	var log bytes.Buffer
	d := newServer(t, func(o *Options) {
		o.Config, o.Environ = `{"backend":"docker"}`, []string{"BOX_BACKEND=nsjail"}
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	if !strings.Contains(log.String(), "choice=nsjail source=BOX_BACKEND") {
		t.Errorf("the log says %s", log.String())
	}
	d.core.engines = []api.EngineReport{{Name: "nsjail", Usable: true}, {Name: "docker", Usable: true}}
	d.must("box_init", nil, obj{"backend": "docker"})
	if got := d.must("box_status", p, obj{}); got["backend_choice"].(obj)["source"] != fromEnvironment || got["backend"].(obj)["name"] != "nsjail" {
		t.Errorf("%v", got)
	}
	d = newServer(t, nil)
	d.core.engines = []api.EngineReport{{Name: "nsjail", Usable: true}}
	if got := d.must("box_get_backend_info", nil, obj{}); got["name"] != "fake" || got["available"] != true {
		t.Errorf("nobody chose: %v", got)
	}
	d.must("box_create_session", p, obj{"session_id": "before"})
	d.must("box_init", nil, obj{"backend": "e2b"})
	if got := d.must("box_get_backend_info", nil, obj{}); got["name"] != "e2b" || got["available"] != false || !strings.Contains(got["reason"].(string), "e2b") {
		t.Errorf("%v", got)
	}
	d.refused("BoxBackendUnavailableError: engine e2b", "box_create_session", p, obj{"session_id": "after"})
	d.must("box_exec", p, obj{"session_id": "before", "cmd": "x"}) // what there is goes on
	log.Reset()
	d.s.log = slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		d.must("box_init", nil, obj{"backend": "local"})
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "BOX_BACKEND=gvisor") {
		t.Errorf("the log says %s", text)
	}
	if r := d.must("box_create_session", p, obj{"session_id": "after"}); r["backend_name"] != "fake" {
		t.Errorf("%v", r)
	}
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	if got := d.core.live["sb-2"].Engine; got != "" {
		t.Errorf("core is asked for engine %q", got)
	}
}

// What a workspace occupies is counted without following what leads out of it.
func TestStorageOfAWorkspace(t *testing.T) {
	work := t.TempDir()
	d := newServer(t, func(o *Options) { o.WorkDir, o.Config = work, `{"local":{"host_root":"b"}}` })
	p := &placement{"inst-1", "ws-1", 1}
	if got := d.must("box_get_storage_analysis", p, obj{}); got["size_bytes"] != 0.0 || len(got["directories"].([]any)) != 4 {
		t.Errorf("%v", got)
	}
	dir := filepath.Join(work, "b", "default", "tenants", p.durable())
	if err := os.MkdirAll(filepath.Join(dir, "inbox"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "inbox/b"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/usr", filepath.Join(dir, "outbox")); err != nil {
		t.Fatal(err)
	}
	d.must("box_create_session", p, obj{"session_id": "s"})
	got := d.must("box_get_storage_analysis", p, obj{})
	inbox, outbox := got["directories"].([]any)[2].(obj), got["directories"].([]any)[3].(obj)
	if got["size_bytes"].(float64) > 2100 || got["size_bytes"].(float64) < 2000 || got["active_sessions"] != 1.0 || inbox["size_bytes"] != 1000.0 || inbox["file_count"] != 1.0 || inbox["parent_key"] != "workspace" {
		t.Errorf("%v", got)
	}
	if outbox["file_count"].(float64) > 1 || outbox["size_bytes"].(float64) > 100 {
		t.Errorf("a link was followed: %v", outbox)
	}
}
