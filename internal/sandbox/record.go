package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche"
)

// recordVersion is the format of record; another version is not adopted.
const recordVersion = 1

// record is what survives the daemon: one file in each sandbox's directory,
// readable by its owner alone because it holds the agent's token.
type record struct {
	Version int
	Info    cloche.Sandbox
	// EngineState is what the engine needs to find the instance again.
	EngineState []byte
	AgentToken  []byte
	Image       imageFacts
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
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("record has version %d, this build reads %d", r.Version, recordVersion)
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
