//go:build linux

package e2e_test

import (
	"context"
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/fixture"
)

// TestBoxPersistent: a persistent session of LangBot's is suspended when it is idle, continues with its processes at the next
// use, and keeps its workspace when all its processes are killed, as by a reboot.
func TestBoxPersistent(t *testing.T) {
	t.Setenv("BOX__PERSISTENT__SUSPEND_AFTER_SEC", "2")
	b := boxOfADaemon(t)
	h := b.Fixture
	ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 3*time.Minute))
	defer cancel()
	c := b.client(ctx)
	c.exec("s", "echo kept > f; echo shared > /dev/shm/g", nil)
	if r := c.ask("box_start_managed_process", map[string]any{"session_id": "s", "spec": map[string]any{"process_id": "sum", "command": "sh", "args": []string{"-c", "n=0; while read x; do n=$((n + x)); echo $n; done"}}}); r.Data["status"] != "running" {
		t.Fatalf("%+v", r)
	}
	const relayAt = "/v1/sessions/" + boxTenant + "-g1-s/managed-process/sum/ws"
	relay, _ := b.dial(ctx, relayAt, boxToken)
	if got := line(ctx, t, relay, "40"); got != "40" {
		t.Fatalf("the relay says %q", got)
	}
	_ = relay.CloseNow()

	reaches(h, api.StateSuspended)
	relay, _ = b.dial(ctx, relayAt, boxToken)
	if got := line(ctx, t, relay, "2"); got != "42" {
		t.Errorf("after a suspend the relay says %q", got)
	}
	_ = relay.CloseNow()
	reaches(h, api.StateSuspended)
	if r := c.ask("box_get_managed_process", map[string]any{"session_id": "s", "process_id": "sum"}); r.Data["status"] != "running" {
		t.Errorf("a process of a suspended session: %+v", r)
	}
	if out := c.exec("s", "cat f /dev/shm/g", nil); out != "kept\nshared" {
		t.Errorf("after a suspend: %q", out)
	}

	h.Kill9()
	for _, p := range h.Processes() {
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
	h.Start()
	c = b.client(ctx)
	if out := c.exec("s", "cat f; ls /dev/shm", nil); out != "kept" {
		t.Errorf("after its processes were killed: %q", out)
	}
	sb := reaches(h, api.StateRunning)
	if sb.Starts != 1 {
		t.Errorf("it was started %d times", sb.Starts)
	}
}

// reaches waits until the only sandbox is in a state.
func reaches(h *fixture.Fixture, want api.State) (sb api.Sandbox) {
	h.T.Helper()
	last := ""
	if !fixture.Poll(func() bool {
		var all api.SandboxList
		last = h.Must("ls", "--all", "--json")
		if json.Unmarshal([]byte(last), &all) != nil || len(all.Sandboxes) != 1 {
			return false
		}
		sb = all.Sandboxes[0]
		return sb.State == want
	}) {
		h.T.Fatalf("the sandbox is not %s: %s", want, last)
	}
	return sb
}
