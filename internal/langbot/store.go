package langbot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// record is what is kept of a session, so that the next runtime finds it.
type record struct {
	Physical string    `json:"physical"`
	Place    placement `json:"place"`
	// Asked is the id as it was first asked for: another that is answered the same is
	// another session's.
	Asked   string    `json:"asked"`
	Spec    boxSpec   `json:"spec"`
	Sandbox string    `json:"sandbox"`
	Engine  string    `json:"engine"`
	Created time.Time `json:"created"`
	// Adjusted and Unenforced are what was told of it when it was made.
	Adjusted   []api.Adjustment `json:"adjusted,omitempty"`
	Unenforced []api.Unenforced `json:"unenforced,omitempty"`
	Processes  []processRecord  `json:"processes,omitempty"`
}

type processRecord struct {
	ID      string    `json:"id"`
	ExecID  string    `json:"exec_id"`
	Command string    `json:"command"`
	Args    []string  `json:"args"`
	Cwd     string    `json:"cwd"`
	EnvKeys []string  `json:"env_keys"`
	Started time.Time `json:"started"`
}

// maxRecord bounds a file of the store.
const maxRecord = 8 << 20

// store keeps records as files that are there whole or not at all.
type store struct{ root *os.Root }

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open box records: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open box records: %w", err)
	}
	return &store{root}, nil
}

func (s *store) close() error { return s.root.Close() }

func fileOf(physical string) string {
	sum := sha256.Sum256([]byte(physical))
	return hex.EncodeToString(sum[:16]) + ".json"
}

func (s *store) put(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write box record: %w", err)
	}
	if err := hostfile.Replace(s.root, fileOf(r.Physical), data); err != nil {
		return fmt.Errorf("write box record: %w", err)
	}
	return nil
}

func (s *store) remove(physical string) error {
	if err := s.root.Remove(fileOf(physical)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove box record: %w", err)
	}
	return nil
}

// all are the records that can be read.
func (s *store) all() ([]record, error) {
	dir, err := s.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("list box records: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("list box records: %w", err)
	}
	var out []record
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || !e.Type().IsRegular() {
			continue
		}
		if fi, err := e.Info(); err != nil || fi.Size() > maxRecord {
			continue
		}
		data, err := s.root.ReadFile(e.Name())
		var r record
		if err == nil && json.Unmarshal(data, &r) == nil && r.Physical != "" && r.Sandbox != "" {
			out = append(out, r)
		}
	}
	return out, nil
}
