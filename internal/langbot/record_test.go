//go:build linux

package langbot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSessionWithoutRecordIsUndone: a session without a written record does not exist,
// and its sandbox is not left.
func TestSessionWithoutRecordIsUndone(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "before"})
	if err := os.RemoveAll(d.opts.Dir); err != nil {
		t.Fatal(err)
	}
	if r := d.ask("box_create_session", p, obj{"session_id": "s"}); r.Message == "success" {
		t.Errorf("%+v", r)
	}
	d.core.mu.Lock()
	live := len(d.core.live)
	d.core.mu.Unlock()
	if got := d.ids(p); live != 1 || got != "before" {
		t.Errorf("%d sandboxes live, and the sessions are %q", live, got)
	}
}

// TestRecordsHoldNoEnvironment: what a client sends as the environment of a session, or as
// its command, is in no record.
func TestRecordsHoldNoEnvironment(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	const canary = "canary-of-the-environment"
	d.must("box_create_session", p, obj{"session_id": "s", "env": obj{"A": canary}, "cmd": "echo " + canary})
	d.must("box_exec", p, obj{"session_id": "t", "env": obj{"A": canary}, "cmd": "echo " + canary})
	records := 0
	err := filepath.WalkDir(d.opts.Dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if records++; strings.Contains(string(data), canary) {
			t.Errorf("%s: %s", p, data)
		}
		return err
	})
	if err != nil || records < 2 {
		t.Errorf("%d records, %v", records, err)
	}
}

// TestPausedSessionGoesOn: a session whose sandbox was paused is used again, and not
// made anew.
func TestPausedSessionGoesOn(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	ref := d.must("box_create_session", p, obj{"session_id": "s"})["backend_session_id"]
	d.core.mu.Lock()
	d.core.paused = map[string]bool{ref.(string): true}
	d.core.mu.Unlock()
	if again := d.must("box_create_session", p, obj{"session_id": "s"})["backend_session_id"]; again != ref {
		t.Errorf("the session is the sandbox %v, and was %v", again, ref)
	}
}
