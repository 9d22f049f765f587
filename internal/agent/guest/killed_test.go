//go:build linux

package guest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// A KILL that comes before the start of its process still ends it.
func TestKilledBeforeItsStart(t *testing.T) {
	in := boot(t, nil)
	mark := filepath.Join(t.TempDir(), "ran")
	begin := func(id string, how string) error {
		s := shell("touch " + mark)
		s.ExecID, s.Repeatable = id, how == "repeatable"
		if how == "managed" {
			_, err := in.StartProcess(t.Context(), agent.Process{Start: s})
			return err
		}
		if how == "stream" {
			_, err := in.Stream(t.Context(), s)
			return err
		}
		_, err := in.Exec(t.Context(), s)
		return err
	}
	kill := func(id string, number int, forestall bool) {
		t.Helper()
		if err := in.SignalProcess(t.Context(), id, number, api.ScopeTree, forestall); !errors.Is(err, api.ErrNotFound) {
			t.Fatalf("kill of an unknown id: %v, want not_found", err)
		}
	}
	for _, how := range []string{"collected", "repeatable", "stream"} {
		kill(how, 9, false)
		for range 2 {
			if err := begin(how, how); api.CodeOf(err) != api.CodeState {
				t.Errorf("%s: %v, want wrong_state", how, err)
			}
		}
	}
	kill("managed", 9, true)
	if err := begin("managed", "managed"); api.CodeOf(err) != api.CodeState {
		t.Errorf("managed: %v, want wrong_state", err)
	}
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a killed process ran: %v", err)
	}
	// What does not say that nothing is to be started.
	kill("term", 15, true)
	kill("web", 9, false)
	for id, how := range map[string]string{"term": "collected", "web": "managed"} {
		if err := begin(id, how); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
