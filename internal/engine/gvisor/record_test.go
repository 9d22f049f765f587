//go:build linux

package gvisor

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

func TestRecords(t *testing.T) {
	r := records{dir: t.TempDir()}
	// Owners and ids that could be taken for each other.
	all := []record{{Owner: "a", ID: "b-c"}, {Owner: "a-b", ID: "c"}, {Owner: "a", ID: "b"}}
	for _, rec := range all {
		if err := r.create(rec); err != nil {
			t.Fatal(err)
		}
		if err := r.create(rec); !errors.Is(err, fs.ErrExist) {
			t.Errorf("second create: %v", err)
		}
	}
	all[0].Sentry = processID{42, "4711"}
	if err := r.update(all[0]); err != nil {
		t.Fatal(err)
	}
	list, err := r.list("a")
	if err != nil || len(list) != 2 {
		t.Fatalf("owner a has %+v, %v", list, err)
	}
	for _, rec := range list {
		if rec.ID == "b-c" && rec.Sentry.PID != 42 {
			t.Errorf("the update is lost: %+v", rec)
		}
	}
	r.remove(all[1])
	if list, _ := r.list("a-b"); len(list) != 0 {
		t.Errorf("removed and still there: %+v", list)
	}
	long := record{Owner: "a", ID: "long", Dir: strings.Repeat("x", recordSize)}
	if err := r.create(long); err == nil {
		t.Error("a record over its size was written")
	}
}

// TestRecordCutShort: a daemon that died while it wrote still has its instance
// swept.
func TestRecordCutShort(t *testing.T) {
	r := records{dir: t.TempDir()}
	rec := record{Owner: "a", ID: "b"}
	if err := os.WriteFile(r.path(rec), []byte(`{"id":"b","ow`), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := r.list("a")
	if err != nil || len(list) != 1 || list[0].ID != "b" {
		t.Errorf("found %+v, %v", list, err)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"id":"sb-1","owner":"o","dir":"/x","sentry":{"pid":1,"start":"2"}}`))
	f.Add([]byte(`{"id":"../../etc","owner":"o"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := decodeRecord(b)
		if err == nil && (!safeName(rec.ID) || !safeName(rec.Owner)) {
			t.Errorf("accepted %+v", rec)
		}
	})
}

func TestOlderThan(t *testing.T) {
	for release, want := range map[string]bool{
		"5.6.19": true, "4.19.0-26-amd64": true, "5.7": false, "5.10.0": false, "6.18.44-x": false, "10.0": false, "odd": false,
	} {
		if got := olderThan(release, "5.7"); got != want {
			t.Errorf("%s older than 5.7: %v", release, got)
		}
	}
}
