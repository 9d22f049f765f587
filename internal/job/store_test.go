package job_test

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
	"github.com/cloche-dev/cloche/internal/job"
)

func open(t *testing.T, o job.Options) *job.Store {
	t.Helper()
	s, err := job.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func begun(id, key string, n int) api.Job {
	spec := api.JobSpec{IdempotencyKey: key, Name: "n", Spec: &api.SandboxSpec{Egress: &api.Egress{Allow: []string{}}}, Env: map[string]string{"A": ""}}
	return api.Job{ID: id, Tenant: "red", State: api.JobRunning, Spec: &spec, CreatedAt: time.Unix(int64(n), 0).UTC()}
}

func (h harness) begin(p api.Job) string {
	h.t.Helper()
	id, _, err := h.s.Begin(p)
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

type harness struct {
	t *testing.T
	s *job.Store
}

func TestWhatIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	h := harness{t, open(t, job.Options{Dir: dir})}
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
	first.State, first.Phase = api.JobSucceeded, api.PhaseRun
	if err := h.s.Save(first); err != nil {
		t.Fatal(err)
	}
	// What a crash leaves: a job that was not on record yet, and half a record.
	if err := os.Mkdir(filepath.Join(dir, "pg-9"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pg-1", "job.json.new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := harness{t, open(t, job.Options{Dir: dir})}
	if ids := again.s.IDs(true); !slices.Equal(ids, []string{"pg-3", "pg-1"}) {
		t.Errorf("%v", ids)
	}
	if ids := again.s.IDs(false); !slices.Equal(ids, []string{"pg-3"}) {
		t.Errorf("not ended: %v", ids)
	}
	got, err := again.s.Get("pg-1", true)
	if err != nil || got.State != api.JobSucceeded || !reflect.DeepEqual(got.Spec, first.Spec) {
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
	h := harness{t, open(t, job.Options{Dir: t.TempDir(), Count: 3, Bytes: 4096})}
	for i, id := range []string{"pg-1", "pg-2", "pg-3"} {
		p := begun(id, "", i)
		h.begin(p)
		if id != "pg-1" {
			p.State = api.JobFailed
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

// TestRecordsOfEarlierVersions: records that call a job a program are read, moved and saved again.
func TestRecordsOfEarlierVersions(t *testing.T) {
	for _, also := range []bool{false, true} {
		home := t.TempDir()
		dir, old := filepath.Join(home, "jobs"), filepath.Join(home, "programs")
		if also { // a home that an earlier version opened again
			s := open(t, job.Options{Dir: dir})
			harness{t, s}.begin(begun("pg-2", "", 2))
		}
		write := func(name, text string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Join(old, "pg-1"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(old, "pg-1", name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("program.json", `{"Program":{"id":"pg-1","tenant":"red","state":"running","created_at":"2026-01-02T03:04:05Z"},"Key":"k","Digest":"d"}`)
		write("spec.json", `{"name":"n","idempotency_key":"k"}`)
		s := open(t, job.Options{Dir: dir, Old: old})
		if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) || len(s.Unreadable) > 0 {
			t.Errorf("the old directory: %v, unreadable: %v", err, s.Unreadable)
		}
		p, err := s.Get("pg-1", true)
		if err != nil || p.State != api.JobRunning || p.Spec.Name != "n" {
			t.Errorf("a job of an earlier version is %+v, %v", p, err)
		}
		if id, digest, err := s.Begin(begun("pg-3", "k", 3)); err != nil || id != "pg-1" || digest != "d" {
			t.Errorf("its key is of %s, digest %s: %v", id, digest, err)
		}
		p.State = api.JobSucceeded
		if err := s.Save(p); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "pg-1", "program.json")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the old record after Save: %v", err)
		}
		again := open(t, job.Options{Dir: dir, Old: old})
		if p, err := again.Get("pg-1", false); err != nil || p.State != api.JobSucceeded {
			t.Errorf("after a save it is %+v, %v", p, err)
		}
		if _, err := again.Get("pg-2", false); (err == nil) != also {
			t.Errorf("the other job: %v", err)
		}
	}
}
