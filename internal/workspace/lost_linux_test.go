//go:build !remoteonly

package workspace_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// lostStore is a store with a workspace "w" whose disk, of size bytes, has been made.
func lostStore(t *testing.T, size int64) (s *workspace.Store, own string) {
	t.Helper()
	home := t.TempDir()
	must(t, os.Chmod(home, 0o700))
	s, err := workspace.Open(home)
	must(t, err)
	_, err = s.Create(workspace.Wish{Tenant: "t", Name: "w", Bounds: workspace.Bounds{SizeBytes: size}})
	must(t, err)
	return s, filepath.Join(home, "workspaces", "t", ".cloche")
}

// A workspace whose record is lost keeps its disk through every sweep. It is listed, can be
// removed by name, and what remains of it can be, too.
func TestLostWorkspace(t *testing.T) {
	for _, how := range []string{"missing", "empty", "torn", "another version"} {
		t.Run(how, func(t *testing.T) {
			s, own := lostStore(t, 4<<20)
			disks, err := filepath.Glob(filepath.Join(own, "ws-*"))
			must(t, err)
			if len(disks) != 1 {
				t.Skipf("needs one disk or project, and there is %v", disks)
			}
			if strings.HasSuffix(disks[0], ".project") {
				must(t, os.MkdirAll(filepath.Join(disks[0], "files", "d"), 0o755))
			}
			record := filepath.Join(own, "w.json")
			switch how {
			case "missing":
				must(t, os.Remove(record))
			case "empty":
				must(t, os.Truncate(record, 0))
			case "torn":
				must(t, os.Truncate(record, 20))
			default:
				must(t, os.WriteFile(record, []byte(`{"Version":99,"Name":"w","Tenant":"t"}`), 0o600))
			}
			_ = s.Sweep("nobody", func(string) bool { return true })
			if _, err := os.Lstat(disks[0]); err != nil {
				t.Fatalf("a sweep removed the disk: %v", err)
			}
			list, err := s.List(func(string) bool { return true })
			must(t, err)
			states := map[api.WorkspaceState]api.WorkspaceInfo{}
			for _, w := range list {
				states[w.State] = w
			}
			orphan := states[api.WorkspaceOrphaned]
			if !strings.Contains(disks[0], orphan.Name) || !strings.Contains(orphan.Reason, filepath.Base(disks[0])) {
				t.Errorf("listed: %+v; want %s as orphaned", list, disks[0])
			}
			if how != "missing" {
				if w := states[api.WorkspaceFailed]; w.Name != "w" || !strings.Contains(w.Reason, "workspaces/t/.cloche/w.json") {
					t.Errorf("listed: %+v; want w as failed", list)
				}
				_, err := s.Attach(workspace.Wish{Tenant: "t", Name: "w"}, workspace.Holder{Owner: "o", Sandbox: "s"})
				if api.CodeOf(err) != api.CodeState || !strings.Contains(err.Error(), "w.json") {
					t.Errorf("attach: %v, want %s, with the file", err, api.CodeState)
				}
				must(t, s.Remove("t", "w"))
			}
			must(t, s.Remove("t", orphan.Name))
			if list, err := s.List(func(string) bool { return true }); err != nil || len(list) != 0 {
				t.Errorf("after both were removed: %+v, %v", list, err)
			}
			if _, err := s.Create(workspace.Wish{Tenant: "t", Name: "w"}); err != nil {
				t.Errorf("a new one of that name: %v", err)
			}
		})
	}
}

// The disk of a workspace that never came on record goes, and the disk of one that did
// gets its name.
func TestUnfoundedDisk(t *testing.T) {
	s, own := lostStore(t, 4<<20)
	disks, err := filepath.Glob(filepath.Join(own, "ws-*.ext4"))
	must(t, err)
	if len(disks) != 1 {
		t.Skipf("needs a workspace with a disk, and here there is %v", disks)
	}
	must(t, os.Rename(disks[0], disks[0]+".new"))
	must(t, os.WriteFile(filepath.Join(own, "ws-other.ext4.new"), nil, 0o600))
	must(t, s.Sweep("nobody", func(string) bool { return true }))
	if _, err := os.Lstat(disks[0]); err != nil {
		t.Errorf("the disk of one on record: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(own, "ws-other.ext4.new")); err == nil {
		t.Error("the disk of none is left")
	}
}

// A sandbox of which it is not known what it has gives everything up, also where another
// workspace cannot be read.
func TestDropHolder(t *testing.T) {
	s, own := lostStore(t, 0)
	must(t, os.WriteFile(filepath.Join(own, "bad.json"), []byte("{"), 0o600))
	for _, sandbox := range []string{"a", "b"} {
		_, err := s.Attach(workspace.Wish{Tenant: "t", Name: "w"}, workspace.Holder{Owner: "o", Sandbox: sandbox, ReadOnly: true})
		must(t, err)
	}
	must(t, s.DropHolder("o", "a"))
	w, err := s.Get("t", "w")
	must(t, err)
	if len(w.Sandboxes) != 1 || w.Sandboxes[0] != "b" {
		t.Errorf("held by %v, want b alone", w.Sandboxes)
	}
}
