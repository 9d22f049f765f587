//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/freeport"
)

// TestEndpointRecording: a recording goes on over a restart of the daemon, cannot be
// made by another endpoint meanwhile, and answers when the sandbox and the service are gone.
func TestEndpointRecording(t *testing.T) {
	w := newFixture(t)
	m := w.newManager(false)
	if err := m.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	target := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "answer ", count.Add(1)) })
	port := freeport.Free(t)
	e := endpointTo(target, port)
	e.Record = "run"
	sb := w.createWith(m, e)
	if got := ask(port); got != "200 answer 1" {
		t.Error(got)
	}
	if err := m.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	m = w.manager(false)
	if got := ask(port); got != "200 answer 2" {
		t.Error(got)
	}
	other := e
	other.Name, other.Listen = "other", fmt.Sprint("127.0.0.1:", freeport.Free(t))
	if _, err := add(t, m, sb, other, false); !errors.Is(err, api.ErrExists) {
		t.Errorf("the same recording once more: %v", err)
	}
	changed := e
	changed.Record = "another"
	if _, err := add(t, m, sb, changed, true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("another recording for what is open: %v", err)
	}
	if err := m.Remove(t.Context(), operator, sb.ID); err != nil {
		t.Fatal(err)
	}
	e.Record, e.Target = "", "replay:run"
	sb = w.createWith(m, e)
	for _, want := range []string{"200 answer 1", "200 answer 2", "422 replay_mismatch"} {
		if got := ask(port); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if n := count.Load(); n != 2 {
		t.Errorf("the service was asked %d times", n)
	}
	none := e
	none.Name, none.Listen, none.Target = "none", other.Listen, "replay:none"
	if _, err := add(t, m, sb, none, false); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("what was never recorded: %v", err)
	}
	if err := m.Remove(t.Context(), operator, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}
