//go:build linux || darwin || windows

package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// home is Cloche's directory, and one owner's part of it:
//
//	home/
//	  audit.log        what was asked and what became of it
//	  cloche.sock      the daemon's default socket
//	  engines/         the engines' own records
//	  images/          root filesystems, shared by all owners
//	  keys.json        API keys: hashes and scopes
//	  owners.lock      held while an owner begins or is swept
//	  owners/OWNER/    one directory for each daemon and in-process run
//	    lock           held for as long as the owner lives
//	    sandboxes/ID/  one directory for each sandbox
//	  policy.yaml      the operator's rules
//	  recordings/      what endpoints recorded, by tenant
//	  workspaces/      named workspaces
//
// An owner whose lock is free is dead, and the daemon that finds it sweeps it. The kernel frees the
// lock, whatever an owner died of.
type home struct {
	dir   string
	owner string
	lock  *os.File
}

const lockFile = "lock"

// openHome makes the home as far as it is missing. Only its owner may
// read it: it holds tokens and sockets.
func openHome(dir string) (*home, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find home: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make home: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("find home: %w", err)
	}
	if err := hostfile.CloseDir(dir); err != nil {
		if _, foreign := errors.AsType[*hostfile.ForeignError](err); foreign {
			return nil, api.Errorf(api.CodeDenied, "the home %s %w", dir, err).
				WithHint("name one of your own with --home or CLOCHE_HOME")
		}
		return nil, fmt.Errorf("close home to others: %w", err)
	}
	for _, sub := range []string{"engines", "images", "owners", "workspaces"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("make home: %w", err)
		}
	}
	return &home{dir: dir}, nil
}

func (h *home) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

// ownerDir is the directory of this process's owner.
func (h *home) ownerDir() string { return h.path("owners", h.owner) }

// daemonOwner is the name of the one daemon that a home may have. It differs
// between homes, because engines keep owners of all homes apart by it.
func (h *home) daemonOwner() string {
	sum := sha256.Sum256([]byte(h.dir))
	return daemonPrefix + hex.EncodeToString(sum[:6])
}

// errOwned says that the owner lives in another process.
var errOwned = errors.New("locked by a living process")

// lingering is how long a process that was being started when a daemon was killed may
// still have that one's lock and socket: until it executes its own program.
const lingering = time.Second

// patiently asks again while again says so, for as long as lingering.
func patiently(ctx context.Context, again func() bool) {
	tick := time.NewTicker(lingering / 50)
	defer tick.Stop()
	for range 50 {
		if !again() {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// claim takes an owner's lock; the directory is made. It is held until close.
func (h *home) claim(owner string) error {
	unlock, err := h.lockOwners()
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.MkdirAll(h.path("owners", owner), 0o700); err != nil {
		return fmt.Errorf("make owner directory: %w", err)
	}
	f, err := tryLock(h.path("owners", owner, lockFile))
	if err != nil {
		return err
	}
	h.owner, h.lock = owner, f
	return nil
}

// close gives the owner up. With remove, its directory goes too.
func (h *home) close(remove bool) error {
	if remove {
		return h.discard(h.owner, h.lock)
	}
	return h.lock.Close()
}

// lookEvery is how often a daemon looks whether its home is still there.
const lookEvery = time.Second

// watch returns an error when the home is not the one any more in which this process
// has its lock: it was removed, moved or replaced, so that another daemon may begin at
// the same path. It returns nil when ctx ends. A home that cannot be looked at, such as
// on a network that is down, counts as there.
func (h *home) watch(ctx context.Context) error {
	held, err := h.lock.Stat()
	if err != nil {
		return fmt.Errorf("watch home: %w", err)
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		now, err := os.Lstat(h.path("owners", h.owner, lockFile))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && !os.SameFile(held, now) {
			return api.Errorf(api.CodeState, "the home %s was removed, moved or replaced: its daemon ends, and so do its sandboxes", h.dir).
				WithHint("stop the daemon before its home is moved or removed")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// discard removes the directory of an owner whose lock this process has. The lock goes
// last, and while no other process can take it: a system may keep a file that is open.
func (h *home) discard(owner string, lock *os.File) error {
	dir := h.path("owners", owner)
	sandboxes, err := filepath.Glob(filepath.Join(dir, "sandboxes", "*"))
	errs := []error{err}
	for _, s := range sandboxes {
		errs = append(errs, workspace.RemovePrivate(s))
	}
	entries, err := os.ReadDir(dir)
	errs = append(errs, err)
	for _, e := range entries {
		if e.Name() != lockFile {
			errs = append(errs, workspace.RemoveTree(filepath.Join(dir, e.Name())))
		}
	}
	unlock, err := h.lockOwners()
	errs = append(errs, err, lock.Close())
	if err == nil {
		defer unlock()
		errs = append(errs, workspace.RemoveTree(dir))
	}
	return errors.Join(errs...)
}

// sweepDead removes every in-process owner that died, with all that engines
// still hold of it. Daemons are left to their successor, which recovers them.
func (h *home) sweepDead(ctx context.Context, engines []engine.Engine, workspaces *workspace.Store) error {
	entries, err := os.ReadDir(h.path("owners"))
	if err != nil {
		return fmt.Errorf("list owners: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if owner := e.Name(); owner != h.owner && strings.HasPrefix(owner, ephemeralPrefix) {
			errs = append(errs, h.sweepOwner(ctx, owner, engines, workspaces))
		}
	}
	return errors.Join(errs...)
}

// daemonPrefix begins the names of owners that are daemons.
const daemonPrefix = "d-"

// adoptMoved takes over what daemons of this home had under other names: the name is
// made of the home's path, and the home was moved, copied or restored from a backup.
// Their sandboxes are lost, their files are not. Each step may be taken again. It
// returns the owners that it took over.
func (h *home) adoptMoved(workspaces *workspace.Store) ([]string, error) {
	entries, err := os.ReadDir(h.path("owners"))
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	var adopted []string
	var errs []error
	for _, e := range entries {
		if owner := e.Name(); owner != h.owner && strings.HasPrefix(owner, daemonPrefix) && api.ValidName(owner) {
			took, err := h.adoptOwner(owner, workspaces)
			if errs = append(errs, err); took {
				adopted = append(adopted, owner)
			}
		}
	}
	return adopted, errors.Join(errs...)
}

func (h *home) adoptOwner(owner string, workspaces *workspace.Store) (bool, error) {
	lock, err := tryLock(h.path("owners", owner, lockFile))
	if errors.Is(err, errOwned) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := errors.Join(record.AdoptMoved(h.path("owners", owner), h.ownerDir()), workspaces.Reassign(owner, h.owner), forgetOwner(h.path("engines"), owner)); err != nil {
		return false, errors.Join(fmt.Errorf("take over owner %s: %w", owner, err), lock.Close())
	}
	return true, h.discard(owner, lock)
}

func (h *home) sweepOwner(ctx context.Context, owner string, engines []engine.Engine, workspaces *workspace.Store) error {
	unlock, err := h.lockOwners()
	if err != nil {
		return err
	}
	f, err := tryLockOf(h.path("owners", owner, lockFile))
	unlock()
	if errors.Is(err, errOwned) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return h.sweepUnlocked(owner)
	}
	if err != nil {
		return err
	}
	removed := false
	defer func() {
		if !removed {
			f.Close()
		}
	}()
	for _, eng := range engines {
		if err := eng.Sweep(ctx, owner, nil); err != nil {
			return fmt.Errorf("sweep dead owner %s: %w", owner, err)
		}
	}
	sandboxes, err := filepath.Glob(h.path("owners", owner, "sandboxes", "*", "staging"))
	if err != nil {
		return err
	}
	for _, dir := range sandboxes {
		if err := workspace.SweepStaging(dir); err != nil {
			return fmt.Errorf("sweep dead owner %s: %w", owner, err)
		}
	}
	if err := workspaces.Sweep(owner, func(string) bool { return false }); err != nil {
		return fmt.Errorf("sweep dead owner %s: %w", owner, err)
	}
	removed = true
	return h.discard(owner, f)
}

// sweepUnlocked removes the directory of an owner that died before it had a lock. One with
// sandboxes and without a lock may live, or be all that is left of a user's files: it is
// kept.
func (h *home) sweepUnlocked(owner string) error {
	unlock, err := h.lockOwners()
	if err != nil {
		return err
	}
	defer unlock()
	err = os.Remove(h.path("owners", owner))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, lerr := os.Lstat(h.path("owners", owner, lockFile)); lerr == nil {
		return nil // it has taken its lock meanwhile
	}
	return fmt.Errorf("owner %s has no file %s: its sandboxes are kept; to remove them, make that file", owner, filepath.Join("owners", owner, lockFile))
}

// alive is false for an in-process owner that has died: nothing of it lives. The
// sandboxes of a daemon live on without it.
func (h *home) alive(owner string) bool {
	if !strings.HasPrefix(owner, ephemeralPrefix) || !api.ValidName(owner) {
		return true
	}
	unlock, err := h.lockOwners()
	if err != nil {
		return true
	}
	defer unlock()
	f, err := tryLockOf(h.path("owners", owner, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		// Without its lock it may live, unless there is nothing of it.
		_, err := os.Lstat(h.path("owners", owner))
		return !errors.Is(err, fs.ErrNotExist)
	}
	if err != nil {
		return true
	}
	_ = f.Close()
	return false
}

// lockOwners keeps the time between making an owner's directory and locking it
// from being seen as a death.
func (h *home) lockOwners() (unlock func(), err error) {
	f, err := hostfile.OpenFile(h.path("owners.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock owners: %w", err)
	}
	if err := hostfile.Lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock owners: %w", err)
	}
	return func() { f.Close() }, nil
}

// tryLock takes the lock of a file that it makes; errOwned when it is taken.
func tryLock(path string) (*os.File, error) { return tryLockAs(path, os.O_CREATE) }

// tryLockOf is tryLock of another owner's file, which is not made: the error is fs.ErrNotExist if it
// does not exist.
func tryLockOf(path string) (*os.File, error) { return tryLockAs(path, 0) }

func tryLockAs(path string, flag int) (*os.File, error) {
	f, err := hostfile.OpenFile(path, flag|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := hostfile.TryLock(f); err != nil {
		f.Close()
		if errors.Is(err, hostfile.ErrLocked) {
			return nil, errOwned
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}
