package program_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/program"
)

func open(t *testing.T, o program.Options) *program.Store {
	t.Helper()
	s, err := program.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func begun(id, key string, n int) api.Program {
	spec := api.ProgramSpec{IdempotencyKey: key, Name: "n", Spec: &api.SandboxSpec{Egress: &api.Egress{Allow: []string{}}}, Env: map[string]string{"A": ""}}
	return api.Program{ID: id, Tenant: "red", State: api.ProgramRunning, Spec: &spec, CreatedAt: time.Unix(int64(n), 0).UTC()}
}

func (h harness) begin(p api.Program) string {
	h.t.Helper()
	id, _, err := h.s.Begin(p)
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

type harness struct {
	t *testing.T
	s *program.Store
}

func TestWhatIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "programs")
	h := harness{t, open(t, program.Options{Dir: dir})}
	first := begun("pg-1", "k", 1)
	h.begin(first)
	if id := h.begin(begun("pg-2", "k", 2)); id != "pg-1" {
		t.Errorf("the key is of %s", id)
	}
	other := begun("pg-3", "k", 3)
	other.Tenant = "blue"
	if id := h.begin(other); id != "pg-3" {
		t.Errorf("another tenant's key is of %s", id)
	}
	first.State, first.Phase = api.ProgramSucceeded, api.PhaseRun
	if err := h.s.Save(first); err != nil {
		t.Fatal(err)
	}
	// What a crash leaves: a program that was not on record yet, and half a record.
	if err := os.Mkdir(filepath.Join(dir, "pg-9"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pg-1", "program.json.new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := harness{t, open(t, program.Options{Dir: dir})}
	if ids := again.s.IDs(true); !slices.Equal(ids, []string{"pg-3", "pg-1"}) {
		t.Errorf("%v", ids)
	}
	if ids := again.s.IDs(false); !slices.Equal(ids, []string{"pg-3"}) {
		t.Errorf("not ended: %v", ids)
	}
	got, err := again.s.Get("pg-1", true)
	if err != nil || got.State != api.ProgramSucceeded || !reflect.DeepEqual(got.Spec, first.Spec) {
		t.Errorf("%+v, %v", got, err)
	}
	if got.Spec.Spec.Egress.Allow == nil || got.Spec.Env["A"] != "" || got.Spec.Files != nil {
		t.Errorf("what is empty is not what is absent any more: %+v", got.Spec)
	}
	if id := again.begin(begun("pg-4", "k", 4)); id != "pg-1" {
		t.Errorf("after a restart the key is of %s", id)
	}
	if _, err := again.s.Get("pg-9", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestTheOldestGo, but none that runs.
func TestTheOldestGo(t *testing.T) {
	h := harness{t, open(t, program.Options{Dir: t.TempDir(), Count: 3, Bytes: 4096})}
	for i, id := range []string{"pg-1", "pg-2", "pg-3"} {
		p := begun(id, "", i)
		h.begin(p)
		if id != "pg-1" {
			p.State = api.ProgramFailed
			if err := h.s.Save(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.begin(begun("pg-4", "", 4))
	if ids := h.s.IDs(true); !slices.Equal(ids, []string{"pg-4", "pg-3", "pg-1"}) {
		t.Errorf("by number: %v", ids)
	}
	large := begun("pg-5", "", 5)
	large.Spec.Env["B"] = strings.Repeat("x", 4000)
	h.begin(large)
	if ids := h.s.IDs(true); !slices.Equal(ids, []string{"pg-5", "pg-4", "pg-1"}) {
		t.Errorf("by size: %v", ids)
	}
}
