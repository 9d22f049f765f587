//go:build linux

package langbot

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/longtest"
)

// TestDeadlines: an action is answered by its deadline, whatever core does, and the error
// says what did not answer.
func TestDeadlines(t *testing.T) {
	longtest.Skip(t, "it waits for deadlines of seconds")
	const limit = time.Second
	d := newServer(t, func(o *Options) {
		o.Deadlines = Deadlines{Call: limit, Change: 2 * limit, Work: 3 * limit}
		o.Core.(*fakeCore).part = "the sandbox's agent (stopped: its sentry)"
	})
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "s"})
	d.must("box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"process_id": "web", "command": "x"}})
	goOn := []func(){d.core.holds(&d.core.holdCreate), d.core.holds(&d.core.holdRemove), d.core.holds(&d.core.holdProcess)}
	for _, tc := range []struct {
		action string
		data   obj
		most   time.Duration
	}{
		{"box_get_managed_process", obj{"session_id": "s", "process_id": "web"}, limit},
		{"box_start_managed_process", obj{"session_id": "s", "spec": obj{"process_id": "other", "command": "x"}}, 2 * limit},
		{"box_create_session", obj{"session_id": "new"}, 3 * limit},
		{"box_delete_session", obj{"session_id": "s"}, 2 * limit},
	} {
		begun := time.Now()
		r := d.ask(tc.action, p, tc.data)
		took := time.Since(begun)
		if !strings.HasPrefix(r.Message, "BoxError: the action was not done within ") || !strings.Contains(r.Message, "the sandbox's agent (stopped: its sentry) has not answered for ") {
			t.Errorf("%s: %s", tc.action, r.Message)
		}
		t.Logf("%s: %s over its deadline", tc.action, took-tc.most)
		if took < tc.most || took > tc.most+30*time.Second {
			t.Errorf("%s: it took %s", tc.action, took)
		}
	}
	// What asks nothing is answered meanwhile.
	d.must("__ping", nil, obj{})
	d.must("box_get_sessions", p, obj{})
	for _, f := range goOn {
		f()
	}
}

// TestDeadlinesAreStated: docs/langbot.md has the deadline of every action.
func TestDeadlinesAreStated(t *testing.T) {
	text, err := os.ReadFile("../../docs/langbot.md")
	if err != nil {
		t.Fatal(err)
	}
	words := map[pace]string{paceCall: "deadlines.call", paceChange: "deadlines.change", paceWork: "deadlines.work", paceExec: "exec", paceNone: "none"}
	stated := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z.]+)`[^|]* \\| ([^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[2], -1) {
			stated[name[1]] = row[1]
		}
	}
	for name, a := range actions() {
		if stated[name] != words[a.pace] {
			t.Errorf("%s has the deadline %q, and docs/langbot.md says %q", name, words[a.pace], stated[name])
		}
	}
}
