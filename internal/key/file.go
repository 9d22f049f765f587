package key

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	fileName    = "keys.json"
	fileVersion = 1
	// maxFile is far more than maxKeys take.
	maxFile = 64 << 20
)

// file is where the keys are kept: readable only to the home's owner.
type file struct{ home string }

// stored is one key as it is kept.
type stored struct {
	Key  api.Key `json:"key"`
	Hash hash    `json:"hash"`
}

type contents struct {
	Version int      `json:"version"`
	Keys    []stored `json:"keys"`
}

// load reads the keys; a file that does not exist has none.
func (f file) load() ([]stored, error) {
	root, err := os.OpenRoot(f.home)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	defer root.Close()
	in, err := root.Open(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	bad := func(why string) error {
		return api.Errorf(api.CodeState, "the file %s in the home cannot be used: %s", fileName, why).
			WithHint("restore it, or remove it, which revokes every key")
	}
	var c contents
	if len(data) > maxFile {
		return nil, bad("it is too large")
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, bad("it is damaged")
	}
	if c.Version != fileVersion {
		return nil, bad(fmt.Sprintf("it is of version %d, and this build knows %d", c.Version, fileVersion))
	}
	seen := map[string]bool{}
	for _, k := range c.Keys {
		if !api.ValidName(k.Key.ID) || !api.ValidName(k.Key.Tenant) || seen[k.Key.ID] || k.Hash == (hash{}) {
			return nil, bad("it has a record that no key has")
		}
		seen[k.Key.ID] = true
	}
	return c.Keys, nil
}

// save replaces the file whole.
func (f file) save(keys []stored) error {
	data, err := json.Marshal(contents{Version: fileVersion, Keys: keys})
	if err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	root, err := os.OpenRoot(f.home)
	if err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	defer root.Close()
	if err := hostfile.Replace(root, fileName, data); err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	return nil
}
