package snapshot_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/snapshot"
)

func open(t *testing.T, home string) *snapshot.Store {
	t.Helper()
	s, err := snapshot.Open(snapshot.Options{Home: home, RemoveTree: os.RemoveAll})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func everybody(string) bool { return true }

// add makes a snapshot of both parts.
func add(t *testing.T, s *snapshot.Store, tenant, name string, q snapshot.Quota) (api.Snapshot, error) {
	t.Helper()
	d, err := s.Begin(tenant)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Abort(); err != nil {
			t.Error(err)
		}
	})
	f, err := d.RootTar()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Mkdir(d.Files(), 0o700); err != nil {
		t.Fatal(err)
	}
	snap := api.Snapshot{
		ID: d.ID, Name: name, Tenant: tenant, Scope: api.SnapshotFiles, SizeBytes: 10, ImageDigest: "sha256:" + name, CreatedAt: time.Now(),
	}
	return snap, d.Commit(snap, q)
}

func TestLifeOfASnapshot(t *testing.T) {
	home := t.TempDir()
	s := open(t, home)
	var snaps []api.Snapshot
	for _, tenant := range []string{"red", "blue"} {
		snap, err := add(t, s, tenant, "one", snapshot.Quota{Count: 1, Bytes: 10})
		if err != nil {
			t.Fatal(err)
		}
		snaps = append(snaps, snap)
	}
	if _, err := add(t, s, "red", "one", snapshot.Quota{}); api.CodeOf(err) != api.CodeExists {
		t.Errorf("another of the same name: %v", err)
	}
	if _, err := add(t, s, "red", snaps[0].ID, snapshot.Quota{}); api.CodeOf(err) != api.CodeExists {
		t.Errorf("one with the id of another as its name: %v", err)
	}
	for rule, q := range map[string]snapshot.Quota{"max_snapshots_per_tenant": {Count: 1}, "max_snapshot_bytes_per_tenant": {Bytes: 19}} {
		_, err := add(t, s, "red", "two", q)
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeTooMany || e.Rule != rule {
			t.Errorf("over %s: %v", rule, err)
		}
	}
	later := open(t, home) // another process
	if list, err := later.List(everybody); err != nil || len(list) != 2 || list[0].Tenant != "blue" {
		t.Errorf("the list is %+v, %v", list, err)
	}
	red := func(tenant string) bool { return tenant == "red" }
	for _, ref := range []string{"one", snaps[0].ID} {
		if got, err := later.Find(ref, "red", red); err != nil || got.ID != snaps[0].ID {
			t.Errorf("%s is %+v, %v", ref, got, err)
		}
	}
	for _, ref := range []string{snaps[1].ID, "none", "../blue", ""} {
		if got, err := later.Find(ref, "red", red); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q is %+v, %v", ref, got, err)
		}
	}
	if n, bytes, err := later.Usage("red"); n != 1 || bytes != 10 || err != nil {
		t.Errorf("the usage is %d of %d bytes, %v", n, bytes, err)
	}
	if got, err := later.ImageDigests(); err != nil || len(got) != 1 || got[0] != "sha256:one" {
		t.Errorf("the images are %v, %v", got, err)
	}
	use, err := later.Use("red", snaps[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{use.RootTar(), use.Files()} {
		if _, err := os.Lstat(p); err != nil {
			t.Error(err)
		}
	}
	if err := s.Remove("red", snaps[0].ID); api.CodeOf(err) != api.CodeConflict {
		t.Errorf("removed while in use: %v", err)
	}
	use.Release()
	if err := s.Remove("red", snaps[0].ID); err != nil {
		t.Error(err)
	}
	if err := s.Remove("red", snaps[0].ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := later.Use("red", snaps[0].ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("used when it is gone: %v", err)
	}
}

// TestSweep removes what killed processes left, and nothing that a process uses.
func TestSweep(t *testing.T) {
	home := t.TempDir()
	s := open(t, home)
	kept, err := add(t, s, "red", "kept", snapshot.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	tenant := filepath.Join(home, "snapshots", "red")
	for _, left := range []string{".new-sn-dead", ".gone-sn-dead"} {
		if err := os.MkdirAll(filepath.Join(tenant, left, "files", "d"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d, err := s.Begin("red")
	if err != nil {
		t.Fatal(err)
	}
	if err := open(t, home).Sweep(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(tenant)
	if err != nil || len(entries) != 2 {
		t.Errorf("after the sweep there are %v, %v", entries, err)
	}
	if _, err := s.Find(kept.ID, "red", everybody); err != nil {
		t.Error(err)
	}
	if err := d.Commit(api.Snapshot{ID: d.ID, Name: "live", Tenant: "red"}, snapshot.Quota{}); err != nil {
		t.Errorf("what was being made: %v", err)
	}
	if err := d.Abort(); err != nil {
		t.Errorf("an abort after the commit: %v", err)
	}
	if _, err := s.Find("live", "red", everybody); err != nil {
		t.Errorf("after an abort that came too late: %v", err)
	}
	for _, bad := range []string{"", "..", "a/b", "A"} {
		if _, err := s.Begin(bad); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("tenant %q: %v", bad, err)
		}
	}
}

// TestBrokenRecord: one that cannot be read is reported, and not taken as missing; the
// others stay available.
func TestBrokenRecord(t *testing.T) {
	home := t.TempDir()
	s := open(t, home)
	snap, err := add(t, s, "red", "one", snapshot.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(home, "snapshots", "red", snap.ID, "snapshot.json")
	for _, text := range []string{"", "{", `{"Version":99}`} {
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := s.List(everybody); err != nil || len(list) != 1 || list[0].ID != snap.ID || len(list[0].Left) != 1 {
			t.Errorf("with the record %q: %+v, %v", text, list, err)
		}
		if _, err := s.Use("red", snap.ID); err == nil {
			t.Errorf("with the record %q it can be used", text)
		}
		if _, err := s.ImageDigests(); err == nil {
			t.Errorf("with the record %q nobody knows which image it needs", text)
		}
	}
	if err := s.Remove("red", snap.ID); err != nil {
		t.Error(err)
	}
}
