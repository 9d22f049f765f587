package snapshot

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/cloche-dev/cloche/api"
)

// A snapshot is files of the host's, and sandboxes of a daemon on Windows run on another
// machine, be it a virtual one: there are none.

func refused() error {
	return api.Errorf(api.CodeUnsupported, "on this system sandboxes run on another machine, of whose files no snapshots are kept here").
		WithHint("copy files out with cloche cp, or run the daemon on Linux")
}

// Options say where a Store would be.
type Options struct {
	Home       string
	RemoveTree func(path string) error
}

// Store keeps no snapshots.
type Store struct{}

// Open opens nothing.
func Open(Options) (*Store, error) { return &Store{}, nil }

// List lists none.
func (*Store) List(func(tenant string) bool) ([]api.Snapshot, error) { return nil, nil }

// Find finds none.
func (*Store) Find(string, string, func(tenant string) bool) (api.Snapshot, error) {
	return api.Snapshot{}, fmt.Errorf("find snapshot: %w", fs.ErrNotExist)
}

// Usage is nothing.
func (*Store) Usage(string) (count int, bytes int64, err error) { return 0, 0, nil }

// ImageDigests are none.
func (*Store) ImageDigests() ([]string, error) { return nil, nil }

// Use is a snapshot that stays until it is released. This system has no snapshots.
type Use struct{ Snapshot api.Snapshot }

// Use is refused.
func (*Store) Use(string, string) (*Use, error) { return nil, refused() }

// RootTar is nowhere.
func (*Use) RootTar() string { return "" }

// Files are nowhere.
func (*Use) Files() string { return "" }

// Template is nowhere.
func (*Use) Template() string { return "" }

// Release has nothing to release.
func (*Use) Release() {}

// Remove finds none.
func (*Store) Remove(string, string) error { return fmt.Errorf("remove snapshot: %w", fs.ErrNotExist) }

// Sweep has nothing to remove.
func (*Store) Sweep() error { return nil }

// Quota bounds what a tenant keeps.
type Quota struct {
	Count int
	Bytes int64
}

// Draft is a snapshot that is being made. This system has no snapshots.
type Draft struct{ ID string }

// Begin is refused.
func (*Store) Begin(string) (*Draft, error) { return nil, refused() }

// RootTar is refused.
func (*Draft) RootTar() (*os.File, error) { return nil, refused() }

// Files are nowhere.
func (*Draft) Files() string { return "" }

// Template is refused.
func (*Draft) Template() (string, error) { return "", refused() }

// Commit is refused.
func (*Draft) Commit(api.Snapshot, Quota) error { return refused() }

// Abort has nothing to remove.
func (*Draft) Abort() error { return nil }

// IsDamaged reports whether a snapshot has no record that can be read: there are none.
func IsDamaged(api.Snapshot) bool { return false }
