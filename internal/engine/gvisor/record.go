//go:build linux

package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// record is all there is to know about an instance in order to find it again
// or to remove it. It is also its State.
type record struct {
	ID      string    `json:"id"`
	Owner   string    `json:"owner"`
	Dir     string    `json:"dir"`
	Port    int       `json:"port"`
	Sentry  processID `json:"sentry"`
	Gofer   processID `json:"gofer,omitzero"`
	Cgroups []string  `json:"cgroups,omitempty"`
}

// processID names a process for ever: its number and when it was started.
type processID struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`
}

// records keeps a file for each instance, from before its first process until
// after its last. Its directory is the engine's own.
type records struct{ dir string }

func (r records) path(rec record) string {
	return filepath.Join(r.dir, rec.Owner, rec.ID+".json")
}

// create fails with fs.ErrExist when there is an instance of that name.
func (r records) create(rec record) error {
	if err := os.MkdirAll(filepath.Join(r.dir, rec.Owner), 0o700); err != nil {
		return fmt.Errorf("make record directory: %w", err)
	}
	f, err := os.OpenFile(r.path(rec), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create record: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(rec.encode()); err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// update replaces the record as a whole.
func (r records) update(rec record) error {
	tmp := r.path(rec) + ".new"
	if err := os.WriteFile(tmp, rec.encode(), 0o600); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.Rename(tmp, r.path(rec)); err != nil {
		return fmt.Errorf("replace record: %w", err)
	}
	return nil
}

// remove removes the record, and the owner's directory with the last one.
func (r records) remove(rec record) {
	os.Remove(r.path(rec) + ".new")
	os.Remove(r.path(rec))
	os.Remove(filepath.Join(r.dir, rec.Owner))
}

// list reads the records of one owner. A file that is no record is passed over.
func (r records) list(owner string) ([]record, error) {
	entries, err := os.ReadDir(filepath.Join(r.dir, owner))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var list []record
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok {
			continue
		}
		b, err := os.ReadFile(filepath.Join(r.dir, owner, entry.Name()))
		if err != nil {
			continue
		}
		rec, err := decodeRecord(b)
		if err != nil {
			// A daemon died while it wrote the first version, when nothing of
			// the instance existed but this file.
			rec = record{ID: id, Owner: owner}
		}
		if rec.ID == id && rec.Owner == owner {
			list = append(list, rec)
		}
	}
	return list, nil
}

func (rec record) encode() []byte {
	b, err := json.Marshal(rec)
	if err != nil {
		return nil // strings and numbers can always be encoded
	}
	return b
}

func decodeRecord(b []byte) (record, error) {
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return record{}, fmt.Errorf("decode record: %w", err)
	}
	if !safeName(rec.ID) || !safeName(rec.Owner) {
		return record{}, errors.New("decode record: id or owner is not a safe name")
	}
	return rec, nil
}
