package workspace

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// namedDir is the directory of named workspaces below the home.
const namedDir = "workspaces"

// Store keeps the named workspaces of every tenant. It is safe for concurrent
// use, also by several processes.
type Store struct {
	dir string
	// Alive says whether an owner still has what it attached; nil is that all do.
	// It is set before the Store is used.
	Alive func(owner string) bool
	// RemoveVolume has an engine remove what it keeps under a name; nil is that there
	// are no engines that keep any. A tenant's other workspaces wait for it. It is set
	// before the Store is used.
	RemoveVolume func(engine, name string) error
}

// Open opens the store of named workspaces below the home directory, which must
// exist and belong to this user.
func Open(home string) (*Store, error) {
	dir, err := openStore(home)
	if err != nil {
		return nil, err
	}
	return &Store{dir: dir}, nil
}

// noSpace is err, as api.CodeNoCapacity where it says that the home's disk is
// full.
func noSpace(err error) error {
	if !hostfile.IsFull(err) {
		return err
	}
	e := api.Errorf(api.CodeNoCapacity, "the workspace could not be made ready: the disk is full").WithCause(err)
	e.Retryable = true
	return e.WithHint("free space where Cloche keeps its state, and try again")
}
