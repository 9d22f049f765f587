//go:build linux

package lifecycle_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// record is one as an engine has it.
type record struct {
	lifecycle.Head
	First pidfd.ID `json:"first,omitzero"`
}

func named(owner, id string) record { return blank(lifecycle.Head{Owner: owner, ID: id}) }

func blank(h lifecycle.Head) record { return record{Head: h} }

func newRecords(t *testing.T) lifecycle.Records[record] {
	t.Helper()
	return lifecycle.Records[record]{Dir: t.TempDir(), Blank: blank}
}

func TestRecords(t *testing.T) {
	r := newRecords(t)
	// Owners and ids that could be taken for each other.
	all := []record{named("a", "b-c"), named("a-b", "c"), named("a", "b")}
	for _, rec := range all {
		if err := r.Create(rec); err != nil {
			t.Fatal(err)
		}
		if err := r.Create(rec); !errors.Is(err, fs.ErrExist) {
			t.Errorf("second create: %v", err)
		}
	}
	all[0].First = pidfd.ID{PID: 42, Start: "4711"}
	if err := r.Update(all[0]); err != nil {
		t.Fatal(err)
	}
	list, err := r.List("a")
	if err != nil || len(list) != 2 {
		t.Fatalf("owner a has %+v, %v", list, err)
	}
	for _, rec := range list {
		if rec.ID == "b-c" && rec.First.PID != 42 {
			t.Errorf("the update is lost: %+v", rec)
		}
	}
	if list, err := r.All(); err != nil || len(list) != 3 {
		t.Errorf("all are %+v, %v", list, err)
	}
	r.Remove(all[1])
	if list, _ := r.List("a-b"); len(list) != 0 {
		t.Errorf("removed and still there: %+v", list)
	}
	long := named("a", "long")
	long.Dir = strings.Repeat("x", 4096)
	if err := r.Create(long); err == nil {
		t.Error("a record over its size was written")
	}
	if list, _ := r.List("a"); len(list) != 2 {
		t.Errorf("what was refused is there: %+v", list)
	}
}

// TestRecordCutShort: a daemon that died while it wrote still has its instance swept.
func TestRecordCutShort(t *testing.T) {
	r := newRecords(t)
	if err := os.WriteFile(filepath.Join(r.Dir, "1-a-b.json"), []byte(`{"id":"b","ow`), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := r.List("a")
	if err != nil || len(list) != 1 || list[0].ID != "b" {
		t.Errorf("found %+v, %v", list, err)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"id":"sb-1","owner":"o","dir":"/x","first":{"pid":1,"start":"2"}}`))
	f.Add([]byte(`{"id":"../../etc","owner":"o"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := lifecycle.Decode[record](b)
		if err == nil && (!engine.SafeName(rec.ID) || !engine.SafeName(rec.Owner)) {
			t.Errorf("accepted %+v", rec)
		}
	})
}
