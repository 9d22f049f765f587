package workspace

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestTake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := Private(filepath.Join(dir, "w"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	take := func(limit Bounds, pids ...int) (Taken, error) {
		return Take(t.Context(), limit, []*Dir{d}, pids)
	}
	in := func(name string) string { return filepath.Join(d.Path(), name) }
	if got, err := take(Bounds{SizeBytes: 1 << 20}); err != nil || got != (Taken{}) {
		t.Fatalf("an empty one takes %+v, %v", got, err)
	}
	for name, size := range map[string]int{"a": 1 << 20, "sub/b": 1 << 20} {
		if err := os.MkdirAll(filepath.Dir(in(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(in(name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A hole takes nothing, another name takes nothing more, and a symlink leads nowhere.
	if err := os.WriteFile(in("hole"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Truncate(in("hole"), 1<<40), os.Link(in("a"), in("again")), os.Symlink("/usr", in("link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := take(Bounds{SizeBytes: 3 << 20, Inodes: 100})
	if err != nil || got.SizeBytes < 2<<20 || got.SizeBytes > 2<<20+64<<10 || got.Inodes != 5 || got.Partial {
		t.Errorf("it takes %+v, %v", got, err)
	}
	for _, limit := range []Bounds{{SizeBytes: 2<<20 - 1}, {Inodes: 4}} {
		if _, err := take(limit); api.CodeOf(err) != api.CodeQuota {
			t.Errorf("with %+v: %v", limit, err)
		}
	}
	// A file that a process holds and that has no name any more counts once.
	f, err := os.Open(in("sub/b"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	second, err := os.Open(in("sub/b"))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := os.Remove(in("sub/b")); err != nil {
		t.Fatal(err)
	}
	if got, err = take(Bounds{SizeBytes: 3 << 20}); err != nil || got.SizeBytes > 1<<20+64<<10 {
		t.Errorf("without the process it takes %+v, %v", got, err)
	}
	if got, err = take(Bounds{SizeBytes: 3 << 20}, os.Getpid(), 1<<22+1); err != nil || got.SizeBytes < 2<<20 || got.SizeBytes > 2<<20+64<<10 {
		t.Errorf("with the process it takes %+v, %v", got, err)
	}
}
