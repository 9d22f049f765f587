package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
)

// recordVersion is the format of record. Version 1 had neither leases nor
// sandboxes that are not persistent; another version is not adopted.
const recordVersion = 2

// record is what survives the daemon: one file in each sandbox's directory,
// readable by its owner alone because it holds the agent's token.
type record struct {
	Version int
	Info    cloche.Sandbox
	// EngineState is what the engine needs to find the instance again.
	EngineState []byte
	AgentToken  []byte
	Image       imageFacts
	// KeyDigest is that of the request that the idempotency key stands for.
	KeyDigest string `json:",omitempty"`
	// Removing: a removal was begun, and whoever reads this finishes it.
	Removing bool `json:",omitempty"`
	// Unsettled: a pause or a resume was under way, and what it came to is not
	// known. Whoever reads this makes the sandbox run.
	Unsettled bool `json:",omitempty"`
	// Began is when it began to run; a record without it is from a build for which
	// that was its creation.
	Began time.Time `json:",omitzero"`
	// LastUse is when the idle time began; it may be a little older than the truth.
	LastUse time.Time `json:",omitzero"`
	// Endpoints are as they were granted.
	Endpoints []policy.EndpointGrant `json:",omitempty"`
	// Egress is what may leave it; nil without a network.
	Egress *policy.EgressGrant `json:",omitempty"`
	// Secrets are those that its processes have, without their values; Trusts says that
	// they have files that say whom to trust.
	Secrets []heldSecret `json:",omitempty"`
	Trusts  bool         `json:",omitempty"`
	// IdleSpent is where the idle time of a paused sandbox stands.
	IdleSpent time.Duration `json:",omitempty"`
}

const recordFile = "sandbox.json"

// write stores r so that a crash leaves the old record or the new one.
func (r *record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	defer root.Close()
	if err := replaceFile(root, recordFile, data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// replaceFile leaves the old content or the new one, also on a full disk.
func replaceFile(root *os.Root, name string, data []byte) error {
	if err := root.WriteFile(name+".new", data, 0o600); err != nil {
		return err
	}
	return root.Rename(name+".new", name)
}

// readRecord reads the record of a sandbox's directory; fs.ErrNotExist says
// that there is none, which is how a creation that never finished looks.
func readRecord(dir string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		// A machine that lost its power while the first record was being written.
		return nil, fmt.Errorf("read record: it is empty: %w", fs.ErrNotExist)
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
	return &r, nil
}

// recordDirs lists the sandbox directories under the owner's directory.
func recordDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && cloche.ValidName(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// eraseRecord removes the record alone.
func eraseRecord(dir string) error {
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("erase record: %w", err)
	}
	return nil
}
