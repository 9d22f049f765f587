//go:build linux || darwin

package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// Quota bounds what a tenant keeps; 0 is nothing.
type Quota struct {
	Count int
	Bytes int64
}

// Draft is a snapshot that is being made and that no other caller sees. It ends with
// Commit or Abort. It is not safe for concurrent use.
type Draft struct {
	// ID is what the snapshot is going to be known by.
	ID     string
	store  *Store
	tenant string
	dir    string
	lock   *os.File
}

// Begin begins a snapshot of a tenant.
func (s *Store) Begin(tenant string) (*Draft, error) {
	if !api.ValidName(tenant) {
		return nil, api.Errorf(api.CodeInvalid, "this tenant has no name under which snapshots can be kept")
	}
	if err := os.Mkdir(filepath.Join(s.dir, tenant), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	d := &Draft{ID: api.NewID(idPrefix), store: s, tenant: tenant}
	d.dir = filepath.Join(s.dir, tenant, newPrefix+d.ID)
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	var err error
	if d.lock, err = lockDir(d.dir, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, s.remove(d.dir))
	}
	return d, nil
}

// RootTar makes the file of the root's part. The caller closes it.
func (d *Draft) RootTar() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(d.dir, rootFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make root of snapshot: %w", err)
	}
	return f, nil
}

// Files is where the workspace's part is to be made.
func (d *Draft) Files() string { return filepath.Join(d.dir, filesDir) }

// Template makes the directory of a snapshot with memory.
func (d *Draft) Template() (string, error) {
	dir := filepath.Join(d.dir, memoryDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make template of snapshot: %w", err)
	}
	return dir, nil
}

// Commit makes the draft a snapshot, if its name is free and the quota has room for
// it. The caller has synced what it wrote. On error the draft is as it was.
func (d *Draft) Commit(snap api.Snapshot, q Quota) error {
	tenant, err := lockWait(filepath.Join(d.store.dir, d.tenant))
	if err != nil {
		return fmt.Errorf("commit snapshot: %w", err)
	}
	defer tenant.Close()
	list, _, err := d.store.of(d.tenant)
	if err != nil {
		return err
	}
	used := int64(0)
	for _, other := range list {
		used += other.SizeBytes
		if other.Name == snap.Name || other.ID == snap.Name {
			e := api.Errorf(api.CodeExists, "a snapshot named %q exists: %s", snap.Name, other.ID).
				WithHint("choose another name, or remove that one with: cloche snapshot rm %s", other.ID)
			e.Field = "name"
			return e
		}
	}
	switch {
	case q.Count > 0 && len(list) >= q.Count:
		return full("max_snapshots_per_tenant", "there are %d, and max_snapshots_per_tenant is %d", len(list), q.Count)
	case q.Bytes > 0 && used+snap.SizeBytes > q.Bytes:
		return full("max_snapshot_bytes_per_tenant", "it has %d bytes beside the %d of the others, and max_snapshot_bytes_per_tenant is %d", snap.SizeBytes, used, q.Bytes)
	}
	if err := d.write(record{Version: recordVersion, Snapshot: snap}); err != nil {
		return fmt.Errorf("commit snapshot: %w", err)
	}
	if err := os.Rename(d.dir, filepath.Join(d.store.dir, d.tenant, d.ID)); err != nil {
		return fmt.Errorf("commit snapshot: %w", err)
	}
	if err := tenant.Sync(); err != nil {
		return fmt.Errorf("sync snapshots: %w", err)
	}
	unlock(d.lock)
	return nil
}

// full is the error about a tenant that has all it may have. It is no error of the disk: removing a snapshot
// helps at once.
func full(rule, format string, args ...any) error {
	e := api.Errorf(api.CodeTooMany, "too many snapshots: "+format, args...)
	e.Rule = rule
	return e.WithHint("remove one with: cloche snapshot rm NAME")
}

func (d *Draft) write(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return hostfile.ReplaceIn(d.dir, recordFile, data)
}

// Abort removes the draft. After Commit has succeeded it does nothing.
func (d *Draft) Abort() error {
	if _, err := os.Lstat(d.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := d.store.remove(d.dir)
	unlock(d.lock)
	if err != nil {
		return fmt.Errorf("remove what was made of a snapshot: %w", err)
	}
	return nil
}

// lockWait locks a directory, waiting for its holder: that takes moments.
func lockWait(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
