package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// recordVersion is the format of record. Version 1 had neither leases nor
// sandboxes that are not persistent; another version is not adopted.
const recordVersion = 2

// record is what survives the daemon: one file in each sandbox's directory,
// readable by its owner alone because it holds the agent's token.
type record struct {
	Version int
	Info    api.Sandbox
	// EngineState is what the engine needs to find the instance again.
	EngineState []byte
	AgentToken  []byte
	Image       imageFacts
	// KeyDigest is the digest of the request that the idempotency key belongs to.
	KeyDigest string `json:",omitempty"`
	// Removing means that a removal has begun. A daemon that reads this record finishes it.
	Removing bool `json:",omitempty"`
	// Removal is why and for whom that removal was begun.
	Removal *removal `json:",omitempty"`
	// Unsettled: a pause or a resume was under way, and what it came to is not
	// known. The reader of this record makes the sandbox run.
	Unsettled bool `json:",omitempty"`
	// Began is when it began to run; a record without it is from a build for which
	// that was its creation.
	Began time.Time `json:",omitzero"`
	// LastUse is when the idle time began; it may be a little older than the truth.
	LastUse time.Time `json:",omitzero"`
	// Endpoints are as they were granted.
	Endpoints []policy.EndpointGrant `json:",omitempty"`
	// Ports are the open ports.
	Ports []policy.PortGrant `json:",omitempty"`
	// Egress is what may leave it; nil without a network.
	Egress *policy.EgressGrant `json:",omitempty"`
	// Secrets are those that its processes have, without their values; Trusts says that
	// they have files that say whom to trust.
	Secrets []secretGrant `json:",omitempty"`
	Trusts  bool          `json:",omitempty"`
	// Copies are the directories of this machine that it has copies of, and Dirs those that are mounted.
	Copies, Dirs []workspace.Attached `json:",omitempty"`
	// IdleSpent is where the idle time of a paused sandbox stands.
	IdleSpent time.Duration `json:",omitempty"`
}

const (
	recordFile = "sandbox.json"
	// A description of a sandbox is written before there is anything in its directory, and
	// never again. Its name says what a directory without a record is: with unfinishedFile
	// a creation that never finished, with identityFile a sandbox whose record was lost.
	unfinishedFile = "creating.json"
	identityFile   = "created.json"
	// goneDir begins the name of a directory that is being removed.
	goneDir = ".gone-"
)

// write stores r durably. A crash or a power cut leaves the old record or the new one; of
// the first it may leave a part, in a directory that unfinished knows.
func (r *record) write(dir string, first bool) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	put := hostfile.ReplaceIn
	if first {
		put = hostfile.CreateIn
	}
	if err := put(dir, recordFile, data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// identity is what stays known of a sandbox when its record cannot be read.
type identity struct {
	Version int
	// Info has what does not change after the sandbox was created.
	Info api.Sandbox
	// KeyDigest is as in record.
	KeyDigest string `json:",omitempty"`
}

// describe writes the identity of a sandbox that is about to be created into its empty
// directory. The description is on the disk when wait returns nil, which must be called
// before the directory is given up and before there is a record.
func (s *live) describe() (wait func() error, err error) {
	s.mu.Lock()
	i := s.info
	digest := s.digest
	s.mu.Unlock()
	data, err := json.Marshal(identity{Version: recordVersion, KeyDigest: digest, Info: api.Sandbox{
		ID: i.ID, Name: i.Name, Tenant: i.Tenant, Profile: i.Profile, Image: i.Image, Engine: i.Engine, Tier: i.Tier, Labels: i.Labels,
		Workspace: i.Workspace, IdempotencyKey: i.IdempotencyKey, Persistent: i.Persistent, CreatedAt: i.CreatedAt,
	}})
	if err != nil {
		return nil, fmt.Errorf("encode description: %w", err)
	}
	f, err := hostfile.OpenFile(filepath.Join(s.dir, unfinishedFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		if _, err = f.Write(data); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write description: %w", err)
	}
	// The disk is waited for while the rest of the sandbox is made.
	synced := make(chan error, 1)
	go func() {
		synced <- errors.Join(f.Sync(), f.Close(), hostfile.SyncDirAt(s.dir), hostfile.SyncDirAt(filepath.Dir(s.dir)))
	}()
	return sync.OnceValue(func() error { return <-synced }), nil
}

// established gives the description the name that it has once the record is on the disk.
// Where the name does not survive a power cut, the record has, and the next daemon gives it
// again.
func established(dir string) error {
	err := os.Rename(filepath.Join(dir, unfinishedFile), filepath.Join(dir, identityFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("name description: %w", err)
	}
	return nil
}

// readIdentity reads the description of a sandbox, as far as there is one.
func readIdentity(dir string) (i identity, ok bool) {
	data, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil || json.Unmarshal(data, &i) != nil || i.Info.ID != filepath.Base(dir) {
		return identity{}, false
	}
	return i, true
}

// unfinished reports whether a directory without a record is what a creation left that
// never finished: nothing in it was ever promised to a caller. Anything else without a
// record may have the files of a user.
func unfinished(dir string) bool {
	if _, err := os.Lstat(filepath.Join(dir, identityFile)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if _, err := os.Lstat(filepath.Join(dir, unfinishedFile)); err == nil {
		return true
	}
	return hostfile.HasNoFiles(dir)
}

// readRecord reads the record in a sandbox's directory. The error is fs.ErrNotExist if there is no
// record.
func readRecord(dir string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, errors.New("the record is empty")
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	switch r.Version {
	case recordVersion:
	case 1:
		r.Info.Persistent = true
	default:
		return nil, fmt.Errorf("record has version %d, this build reads 1 to %d", r.Version, recordVersion)
	}
	if r.Info.ID != filepath.Base(dir) {
		return nil, fmt.Errorf("record is of sandbox %q", r.Info.ID)
	}
	return &r, nil
}

// recordDirs lists the sandbox directories under the owner's directory, and the paths of
// those that were being removed.
func recordDirs(dir string) (ids, gone []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), goneDir) {
			gone = append(gone, filepath.Join(dir, e.Name()))
		} else if e.IsDir() && api.ValidName(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, gone, nil
}

// withdraw makes a sandbox whose creation failed one that was never finished: no next
// daemon calls it lost.
func withdraw(dir string) error {
	err := os.Rename(filepath.Join(dir, identityFile), filepath.Join(dir, unfinishedFile))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(filepath.Join(dir, recordFile))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("withdraw record: %w", err)
	}
	return nil
}

// clearDir removes the directory of a sandbox without running processes. It renames the directory
// first, so that what is left of it is never taken for a sandbox.
func clearDir(dir string) error {
	staging := filepath.Join(dir, stagingDir)
	// It is empty, unless a creation was interrupted.
	if err := os.Remove(staging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		if err := workspace.SweepStaging(staging); err != nil {
			return leaves(api.ResourceMounts, fmt.Errorf("unmount what was staged: %w", err))
		}
	}
	gone := filepath.Join(filepath.Dir(dir), goneDir+filepath.Base(dir))
	switch err := os.Rename(dir, gone); {
	case errors.Is(err, fs.ErrNotExist): // an attempt before this one did
	case err != nil:
		// A system may keep the name of a directory while a file in it is open.
		if err := workspace.RemovePrivate(dir); err != nil {
			return fmt.Errorf("remove directory of sandbox: %w", err)
		}
		return nil
	}
	if err := hostfile.SyncDirAt(filepath.Dir(dir)); err != nil {
		return err
	}
	return removeGone(gone)
}

// removeGone removes what clearDir has renamed.
func removeGone(dir string) error {
	if err := workspace.RemovePrivate(dir); err != nil {
		return fmt.Errorf("remove directory of sandbox: %w", err)
	}
	return nil
}
