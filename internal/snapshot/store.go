//go:build linux || darwin

package snapshot

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// Options say where a Store is.
type Options struct {
	// Home is the directory below which snapshots are kept. It must exist, and
	// only this user may enter it.
	Home string
	// RemoveTree removes a directory that hostile code has filled. Required.
	RemoveTree func(path string) error
}

// Store keeps the snapshots of every tenant. It is safe for concurrent use, also by
// several processes: what is on disk is all it knows.
type Store struct {
	dir    string
	remove func(path string) error
}

const (
	storeDir   = "snapshots"
	recordFile = "snapshot.json"
	rootFile   = "root.tar"
	filesDir   = "files"
	// memoryDir is the template of a snapshot with memory.
	memoryDir = "template"
	// newPrefix and gonePrefix begin the names of what is being made and of what
	// is being removed.
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
	idPrefix   = "sn-"
	// recordVersion is the format of record.
	recordVersion = 1
	maxRecord     = 1 << 20
)

// record is what a snapshot's directory says of it.
type record struct {
	Version  int
	Snapshot api.Snapshot
}

// Open opens the store below a home.
func Open(o Options) (*Store, error) {
	dir := filepath.Join(o.Home, storeDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	return &Store{dir: dir, remove: o.RemoveTree}, nil
}

// List tells of the snapshots of the tenants that sees lets through, newest first.
// One whose record cannot be read is there to be removed, and says so.
func (s *Store) List(sees func(tenant string) bool) ([]api.Snapshot, error) {
	list, _, err := s.all(sees)
	return list, err
}

// all is List; damaged is why records could not be read.
func (s *Store) all(sees func(tenant string) bool) (list []api.Snapshot, damaged, err error) {
	tenants, err := s.names(".")
	if err != nil {
		return nil, nil, err
	}
	list = []api.Snapshot{}
	for _, tenant := range tenants {
		if !sees(tenant) {
			continue
		}
		own, bad, err := s.of(tenant)
		if err != nil {
			return nil, nil, err
		}
		list, damaged = append(list, own...), errors.Join(damaged, bad)
	}
	slices.SortFunc(list, func(a, b api.Snapshot) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
	return list, damaged, nil
}

// damagedReason is why everything is left out of a snapshot whose record cannot be read.
const damagedReason = "its record is damaged: it can only be removed"

// IsDamaged reports whether a snapshot of a List has no record that can be read.
func IsDamaged(snap api.Snapshot) bool {
	return len(snap.Left) == 1 && snap.Left[0] == api.TarSkip{Path: "/", Reason: damagedReason}
}

// of lists one tenant's.
func (s *Store) of(tenant string) (list []api.Snapshot, damaged, err error) {
	ids, err := s.names(tenant)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		snap, err := s.read(tenant, id)
		if _, gone := os.Lstat(filepath.Join(s.dir, tenant, id)); errors.Is(gone, fs.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err != nil {
			damaged = errors.Join(damaged, err)
			snap = api.Snapshot{
				ID: id, Name: id, Tenant: tenant, Scope: api.SnapshotFiles,
				Left: []api.TarSkip{{Path: "/", Reason: damagedReason}},
			}
		}
		list = append(list, snap)
	}
	return list, damaged, nil
}

// names lists the tenants, or the ids of one.
func (s *Store) names(below string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, below))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && api.ValidName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (s *Store) read(tenant, id string) (api.Snapshot, error) {
	f, err := os.Open(filepath.Join(s.dir, tenant, id, recordFile))
	if err != nil {
		return api.Snapshot{}, fmt.Errorf("read snapshot: %w", err)
	}
	defer f.Close()
	data := make([]byte, maxRecord)
	n, err := readAll(f, data)
	if err != nil {
		return api.Snapshot{}, fmt.Errorf("read snapshot %s: %w", id, err)
	}
	var r record
	if err := json.Unmarshal(data[:n], &r); err != nil {
		return api.Snapshot{}, fmt.Errorf("read snapshot %s: %w", id, err)
	}
	if r.Version != recordVersion {
		return api.Snapshot{}, fmt.Errorf("read snapshot %s: its record has version %d, this build reads %d", id, r.Version, recordVersion)
	}
	return r.Snapshot, nil
}

func readAll(f *os.File, b []byte) (int, error) {
	total := 0
	for total < len(b) {
		n, err := f.Read(b[total:])
		total += n
		if n == 0 || err != nil {
			return total, ignoreEOF(err)
		}
	}
	return total, errors.New("its record is too large")
}

// Find returns the snapshot that ref names: an id, of whichever tenant sees lets
// through, or a name among own's. None is fs.ErrNotExist.
func (s *Store) Find(ref, own string, sees func(tenant string) bool) (api.Snapshot, error) {
	list, err := s.List(sees)
	if err != nil {
		return api.Snapshot{}, err
	}
	for _, snap := range list {
		if snap.ID == ref {
			return snap, nil
		}
	}
	for _, snap := range list {
		if snap.Tenant == own && snap.Name == ref {
			return snap, nil
		}
	}
	return api.Snapshot{}, fmt.Errorf("find snapshot: %w", fs.ErrNotExist)
}

// Usage is how many snapshots a tenant has and what they occupy.
func (s *Store) Usage(tenant string) (count int, bytes int64, err error) {
	list, _, err := s.of(tenant)
	for _, snap := range list {
		bytes += snap.SizeBytes
	}
	return len(list), bytes, err
}

// ImageDigests are the images without which the roots of snapshots are nothing. A
// record that cannot be read is an error, for what it needs is not known.
func (s *Store) ImageDigests() ([]string, error) {
	list, damaged, err := s.all(func(string) bool { return true })
	if err := errors.Join(damaged, err); err != nil {
		return nil, err
	}
	var digests []string
	for _, snap := range list {
		if snap.Scope != api.SnapshotWorkspace && snap.ImageDigest != "" {
			digests = append(digests, snap.ImageDigest)
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests), nil
}

// Templates returns the directories that Use.Template returns, of all snapshots with memory.
func (s *Store) Templates() ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(s.dir, "*", idPrefix+"*", memoryDir))
	if err != nil {
		return nil, fmt.Errorf("list snapshots with memory: %w", err)
	}
	return dirs, nil
}

// Use is a snapshot that stays until it is released.
type Use struct {
	Snapshot api.Snapshot
	dir      string
	lock     *os.File
}

// Use keeps a snapshot from being removed, by any process, until Release.
func (s *Store) Use(tenant, id string) (*Use, error) {
	dir := filepath.Join(s.dir, tenant, id)
	lock, err := lockDir(dir, unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("use snapshot: %w", err)
	}
	snap, err := s.read(tenant, id)
	if err != nil {
		unlock(lock)
		return nil, err
	}
	return &Use{Snapshot: snap, dir: dir, lock: lock}, nil
}

// RootTar is the path of the root's part, or empty.
func (u *Use) RootTar() string {
	if u.Snapshot.Scope == api.SnapshotWorkspace || u.Snapshot.Scope == api.SnapshotMemory {
		return ""
	}
	return filepath.Join(u.dir, rootFile)
}

// Files is the path of the workspace's part, or empty.
func (u *Use) Files() string {
	if u.Snapshot.Scope == api.SnapshotRoot || u.Snapshot.Scope == api.SnapshotMemory {
		return ""
	}
	return filepath.Join(u.dir, filesDir)
}

// Template is the directory of the memory and everything that belongs to it, of a snapshot with memory.
func (u *Use) Template() string { return filepath.Join(u.dir, memoryDir) }

// Release lets the snapshot be removed.
func (u *Use) Release() { unlock(u.lock) }

// Remove takes a snapshot away. One that a sandbox is just being made of is
// api.CodeConflict.
func (s *Store) Remove(tenant, id string) error {
	dir := filepath.Join(s.dir, tenant, id)
	lock, err := lockDir(dir, unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		e := api.Errorf(api.CodeConflict, "snapshot %s is in use: a sandbox is being made of it", id).WithHint("try again in a moment")
		e.Retryable = true
		return e
	}
	if err != nil {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	defer unlock(lock)
	// In one step it is no snapshot any more; the files may take a while.
	gone := filepath.Join(s.dir, tenant, gonePrefix+id)
	if err := os.Rename(dir, gone); err != nil {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	if err := hostfile.SyncDirAt(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	if err := s.remove(gone); err != nil {
		return fmt.Errorf("remove files of snapshot: %w", err)
	}
	return nil
}

// Sweep removes what killed processes left half made or half removed.
func (s *Store) Sweep() error {
	tenants, err := s.names(".")
	if err != nil {
		return err
	}
	var errs []error
	for _, tenant := range tenants {
		entries, err := os.ReadDir(filepath.Join(s.dir, tenant))
		errs = append(errs, err)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), newPrefix) && !strings.HasPrefix(e.Name(), gonePrefix) {
				continue
			}
			path := filepath.Join(s.dir, tenant, e.Name())
			lock, err := lockDir(path, unix.LOCK_EX)
			if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
				continue // a process uses it
			}
			if err == nil {
				err = s.remove(path)
				unlock(lock)
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sweep snapshots: %w", err)
	}
	return nil
}

// unlock gives a lock up. A process that was forked meanwhile has the lock too until it executes its program, so that
// closing the file is not enough.
func unlock(f *os.File) {
	hostfile.Unlock(f)
	_ = f.Close()
}

// lockDir takes a lock on a directory that ends with the file, without waiting.
func lockDir(dir string, how int) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Base(dir), Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	if err := unix.Flock(fd, how|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: filepath.Base(dir), Err: err}
	}
	return f, nil
}
