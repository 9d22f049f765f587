//go:build linux

package e2e_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/freeport"
)

// TestBoxStopped: no action of LangBot's hangs when the sandbox of its session is stopped
// from outside.
func TestBoxStopped(t *testing.T) {
	for _, name := range []string{"CALL", "CHANGE", "WORK", "AGENT"} {
		t.Setenv("CLOCHE__DEADLINES__"+name, fixture.StoppedDeadline.String())
	}
	h := fixture.New(t)
	h.Needs("gvisor", "cpus")
	h.Kill9()
	b := &boxRuntime{Fixture: h, port: strconv.Itoa(freeport.Free(t)), work: t.TempDir(), token: boxToken, more: []string{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID=inst-1"}}
	b.start()
	ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 5*time.Minute))
	defer cancel()
	c := b.client(ctx)
	for _, session := range []string{"s", "away"} {
		c.exec(session, "true", nil)
	}
	for _, id := range []string{"web", "gone"} {
		if r := c.ask("box_start_managed_process", map[string]any{"session_id": "s", "spec": map[string]any{"process_id": id, "command": "sleep", "args": []string{"1000"}}}); r.Data["status"] != "running" {
			t.Fatalf("%+v", r)
		}
	}
	stopped := 0
	for _, p := range h.Processes() {
		if !strings.HasPrefix(p.Argv, "cloche-sentry ") {
			continue
		}
		stopped++
		if err := fixture.StopProcess(p.PID); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(p.PID, syscall.SIGCONT) })
	}
	if stopped == 0 {
		t.Fatal("there is no sentry")
	}
	s, web := map[string]any{"session_id": "s"}, map[string]any{"session_id": "s", "process_id": "web"}
	var wg sync.WaitGroup
	for action, tc := range map[string]struct {
		data map[string]any
		// fails says that the answer is an error that names the sentry.
		fails bool
	}{
		"box_exec":                  {map[string]any{"session_id": "s", "cmd": "true", "persistent": true}, true},
		"box_start_managed_process": {map[string]any{"session_id": "s", "spec": map[string]any{"process_id": "new", "command": "true"}}, true},
		"box_stop_managed_process":  {map[string]any{"session_id": "s", "process_id": "gone"}, true},
		"box_delete_session":        {map[string]any{"session_id": "away"}, false},
		"box_get_managed_process":   {web, false},
		"box_get_session":           {s, false},
		"box_get_sessions":          {none(), false},
		"box_status":                {none(), false},
		"box_health":                {none(), false},
		"box_get_backend_info":      {none(), false},
		"box_get_storage_analysis":  {none(), false},
		"box_list_skills":           {none(), false},
	} {
		mine := b.client(ctx)
		wg.Go(func() {
			begun := time.Now()
			r := mine.ask(action, tc.data)
			took := time.Since(begun)
			t.Logf("%-26s %8s %s", action, took.Round(time.Millisecond), r.Message)
			if took > fixture.StoppedDeadline+fixture.StoppedSlack {
				t.Errorf("%s: it took %s", action, took)
			}
			if tc.fails && !strings.Contains(r.Message, "(stopped: its sentry") {
				t.Errorf("%s: %s", action, r.Message)
			}
		})
	}
	wg.Wait()
}
