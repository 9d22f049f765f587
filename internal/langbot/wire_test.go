//go:build linux

package langbot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// An id that is made the same as another's gets nothing of the other's sandbox, also
// where it is what is answered, and after a restart.
func TestIDsThatCollide(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	pairs := [][2]string{{"群A1", "组A1"}, {"a b", "a/b"}, {"c d", "c-d"}, {"--e--", "e"}, {"../f", "..:f"}, {"g-h", "g h"}}
	for _, pair := range pairs {
		d.must("box_create_session", p, obj{"session_id": pair[0], "persistent": true})
	}
	collide := func() {
		t.Helper()
		for _, pair := range pairs {
			second := pair[1]
			d.refused("BoxSessionConflictError: ", "box_create_session", p, obj{"session_id": second, "persistent": true})
			d.refused("BoxSessionConflictError: ", "box_exec", p, obj{"session_id": second, "cmd": "x", "persistent": true})
			// Not by other mounts either, which would take another's sandbox away.
			d.refused("BoxSessionConflictError: ", "box_exec", p, obj{"session_id": second, "cmd": "x", "persistent": true, "extra_mounts": []obj{{"host_path": "/x", "mount_path": "/x"}}})
			if answered, _ := safeID(pair[0]); answered == second {
				continue
			}
			for _, action := range []string{"box_get_session", "box_delete_session", "box_get_managed_process", "box_stop_managed_process"} {
				d.refused("BoxSessionNotFoundError: ", action, p, obj{"session_id": second})
			}
			d.refused("BoxSessionNotFoundError: ", "box_start_managed_process", p, obj{"session_id": second, "spec": obj{"command": "x"}})
		}
		d.core.mu.Lock()
		made := d.core.made
		d.core.mu.Unlock()
		if made != len(pairs) {
			t.Errorf("there were %d sandboxes", made)
		}
	}
	collide()
	if err := errors.Join(d.conn.CloseNow(), d.s.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	d.conn = nil
	d.start()
	collide()
	for _, pair := range pairs {
		d.must("box_delete_session", p, obj{"session_id": pair[0]})
		d.must("box_create_session", p, obj{"session_id": pair[1]})
	}
}

func TestExecResults(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	for cmd, want := range map[string]obj{
		"x":        {"status": "completed", "exit_code": 0.0, "stdout": "sb-1 x", "stderr": ""},
		"fail":     {"status": "completed", "exit_code": 3.0, "stdout": "", "stderr": "\uFFFD why"},
		"killed":   {"status": "completed", "exit_code": 137.0, "stdout": "", "stderr": ""},
		"flood":    {"status": "completed", "exit_code": 0.0, "stdout": "head tail\n... [raw output clipped at 1048576 bytes, 1234 bytes discarded]", "stderr": ""},
		"time out": {"status": "timed_out", "exit_code": nil, "stdout": "some", "stderr": "Command timed out after 30 seconds"},
	} {
		got := d.must("box_exec", p, obj{"session_id": "s", "cmd": "  " + cmd + "\n"})
		want["session_id"], want["backend_name"], want["duration_ms"] = "s", "fake", 0.0
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", cmd, got, want)
		}
	}
	if got := d.ids(p); got != "s" {
		t.Errorf("after a timeout the sessions are %q", got)
	}
	d.must("box_init", nil, obj{"compat": obj{"timeout_drops_session": true}})
	d.must("box_exec", p, obj{"session_id": "s", "cmd": "time out"})
	if got := d.ids(p); got != "" {
		t.Errorf("after a timeout, where that ends a session, they are %q", got)
	}
}

// The objects that are answered have the keys that the client and LangBot read, and
// the ids in them are those that the client asks with, nested ones too.
func TestShapesOfAnswers(t *testing.T) {
	d, p, _ := relayed(t)
	keys := func(what string, got any, want string) {
		t.Helper()
		o, ok := got.(obj)
		if seen := strings.Join(slices.Sorted(maps.Keys(o)), " "); !ok || seen != want {
			t.Errorf("%s has %s", what, seen)
		}
	}
	d.must("box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"command": "x"}})
	const session = "backend_name backend_session_id cpus created_at host_path host_path_mode image last_used_at "
	const rest = "memory_mb mount_path network persistent pids_limit read_only_rootfs session_id workspace_quota_mb"
	one := d.must("box_get_session", p, obj{"session_id": "s"})
	keys("a session with processes", one, session+"managed_process managed_processes "+rest)
	keys("a session of a list", d.must("box_get_sessions", p, obj{})["sessions"].([]any)[0], session+rest)
	for _, process := range []any{one["managed_process"], one["managed_processes"].(obj)["p"], d.must("box_get_managed_process", p, obj{"session_id": "s"})} {
		keys("a process", process, "args attached command cwd env_keys exit_code exited_at process_id session_id started_at status stderr_preview")
		if process.(obj)["session_id"] != "s" {
			t.Errorf("%v", process)
		}
	}
	status := d.must("box_status", p, obj{})
	keys("the status", status, "active_sessions backend backend_choice capacity limits managed_processes session_ttl_sec")
	keys("its backend", status["backend"], "available name")
	keys("its limits", status["limits"], "max_admission_records max_completed_processes max_managed_processes max_rpc_file_bytes max_sessions")
	if status["active_sessions"] != 1.0 || status["managed_processes"] != 2.0 {
		t.Errorf("%v", status)
	}
	if other := d.must("box_status", &placement{"inst-1", "ws-2", 1}, obj{}); other["active_sessions"] != 0.0 || other["managed_processes"] != 0.0 {
		t.Errorf("another workspace sees %v", other)
	}
	for path, want := range map[string]string{"/healthz": "live resources", "/readyz": "backend checks mode ready resources"} {
		r, err := http.Get(d.url + path)
		if err != nil {
			t.Fatal(err)
		}
		var got obj
		err = json.NewDecoder(r.Body).Decode(&got)
		_ = r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		keys(path, got, want)
		keys("the resources of "+path, got["resources"], "background_tasks blocking_executor closing_session_tasks completed_processes creating_session_tasks event_loop managed_processes sessions")
	}
}

// A message in many pieces is one message, pings are answered while actions run, and an
// answer that is too large is an error.
func TestControlMessages(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "s"})
	d.core.hold = make(chan struct{})
	running := d.send("box_exec", p, obj{"session_id": "s", "cmd": "x"})
	<-d.core.entered
	pinged := make(chan error, 1)
	go func() { pinged <- d.conn.Ping(t.Context()) }()
	w, err := d.conn.Writer(t.Context(), websocket.MessageText)
	if err != nil {
		t.Fatal(err)
	}
	frame := []byte(`{"seq_id":900,"action":"__ping","data":{"x":"` + strings.Repeat("é", 8<<20-100) + `"}}`)
	for part := range slices.Chunk(frame, 64<<10) { // the client's own size, which cuts characters
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if r := d.recv(); r.SeqID != 900 || r.Code != 0 {
		t.Errorf("%+v", r)
	}
	go func() { // what answers the ping is read with the messages
		<-pinged
		close(d.core.hold)
	}()
	if r := d.recv(); r.SeqID != running || r.Code != 0 {
		t.Errorf("%+v", r)
	}
	d.refused("BoxError: the answer has", "box_exec", p, obj{"session_id": "s", "cmd": "huge"})
	d.must("__ping", nil, obj{})
}

// At its end the runtime says goodbye to who has a process too.
func TestARelayIsToldOfTheEnd(t *testing.T) {
	d, place, _ := relayed(t)
	conn := d.attached(place)
	ended := make(chan websocket.CloseError, 1)
	go func() {
		for {
			if _, _, err := conn.Read(context.WithoutCancel(t.Context())); err != nil {
				e, _ := errors.AsType[websocket.CloseError](err)
				ended <- e
				return
			}
		}
	}()
	if err := d.conn.CloseNow(); err != nil {
		t.Log(err)
	}
	if err := d.s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.Code != websocket.StatusGoingAway || e.Reason != goingAway {
		t.Errorf("%v", e)
	}
}

// pipes is a runtime on a pipe: what it is sent, its answers by line, and how it ended.
func pipes(t *testing.T, d *server) (in *io.PipeWriter, out *lineReader, ended chan error) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended = make(chan error, 1)
	go func() {
		err := d.s.ServeStdio(t.Context(), inR, lineLimit{t, outW})
		_ = outW.Close()
		ended <- err
	}()
	t.Cleanup(func() { _, _ = inW.Close(), outR.Close() })
	return inW, newLineReader(outR), ended
}

// lineLimit fails the test at a line that the client's reader would not take.
type lineLimit struct {
	t *testing.T
	w io.Writer
}

func (l lineLimit) Write(p []byte) (int, error) {
	if len(p) > 64<<10 || bytes.IndexByte(p, '\n') != len(p)-1 {
		l.t.Errorf("%d bytes are written at once, which is no line of 64 KiB", len(p))
	}
	return l.w.Write(p)
}

func TestControlOverAPipe(t *testing.T) {
	open := newServer(t, nil)
	if err := open.s.ServeStdio(t.Context(), strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), "LANGBOT_BOX_TRUSTED_INSTANCE_UUID") {
		t.Errorf("without an instance: %v", err)
	}
	d := newServer(t, func(o *Options) { o.Instance = "inst-1" })
	in, out, ended := pipes(t, d)
	place := `"context":{"instance_uuid":"inst-1","workspace_uuid":"ws-1"}`
	send := func(message string) {
		t.Helper()
		if err := writeLines(in, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	answer := func() (r reply) {
		t.Helper()
		message, err := out.next()
		if err == nil {
			err = json.Unmarshal(message, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if _, err := io.WriteString(in, "a stray print\n{not json}\n"); err != nil {
		t.Fatal(err)
	}
	send(`{"seq_id":1,"action":"__ping","data":{}}`)
	if r := answer(); r.SeqID != 1 || r.Code != 0 {
		t.Errorf("%+v", r)
	}
	// Larger than a line both ways, with what is longest once it is escaped twice.
	text := strings.Repeat("<&>\u2028é\\", 20_000)
	cmd, _ := json.Marshal("echo " + text)
	send(fmt.Sprintf(`{"seq_id":2,"action":"box_exec","data":{"session_id":"s","cmd":%s,"persistent":true},%s}`, cmd, place))
	if r := answer(); r.SeqID != 2 || r.Data["stdout"] != "sb-1 echo "+text {
		t.Errorf("%d: %.80s, %d", r.SeqID, r.Message, len(fmt.Sprint(r.Data["stdout"])))
	}
	send(`{"seq_id":3,"action":"box_status","data":{},"context":{"instance_uuid":"other","workspace_uuid":"ws-1"}}`)
	if r := answer(); !strings.HasPrefix(r.Message, "PermissionError: ") {
		t.Errorf("%+v", r)
	}
	// Its end ends what is under way, and no session.
	d.core.hold = make(chan struct{})
	send(fmt.Sprintf(`{"seq_id":4,"action":"box_exec","data":{"session_id":"s","cmd":"x","persistent":true},%s}`, place))
	<-d.core.entered
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		for _, err := out.next(); err == nil; _, err = out.next() { //nolint:revive // to the end
		}
	}()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("at the end of the pipe: %v", err)
	}
	<-rest
	if got := d.ids(&placement{"inst-1", "ws-1", 1}); got != "s" {
		t.Errorf("the sessions are %q", got)
	}
	// A gap in a long message ends the connection: nothing that follows means anything.
	in, _, ended = pipes(t, d)
	go func() {
		_, _ = io.WriteString(in, "{\"type\":\"chunk_start\",\"total_size\":4}\n{\"type\":\"chunk_data\",\"data\":\"ab\",\"offset\":0}\n{\"type\":\"chunk_data\",\"data\":\"c\",\"offset\":3}\n")
	}()
	if err := <-ended; !errors.Is(err, errFrame) {
		t.Errorf("after a gap: %v", err)
	}
}
