//go:build linux

package gvisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
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

// recordSize is what a record's file is filled up to, so that it can be replaced
// by one write. A record that needs more is refused.
const recordSize = 4096

// prefix begins the names of an owner's files and of no other's.
func prefix(owner string) string { return strconv.Itoa(len(owner)) + "-" + owner + "-" }

func (r records) path(rec record) string {
	return filepath.Join(r.dir, prefix(rec.Owner)+rec.ID+".json")
}

// create fails with fs.ErrExist when there is an instance of that name.
func (r records) create(rec record) error {
	err := r.write(rec, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		r.remove(rec) // on a full disk there is a file without content
	}
	return err
}

// update replaces the record as a whole.
func (r records) update(rec record) error { return r.write(rec, os.O_WRONLY) }

func (r records) write(rec record, flags int) error {
	b := rec.encode()
	if len(b) > recordSize {
		return errors.New("write record: its paths are too long")
	}
	f, err := os.OpenFile(r.path(rec), flags, 0o600)
	if err != nil {
		return fmt.Errorf("open record: %w", err)
	}
	defer f.Close()
	padded := append(b, bytes.Repeat([]byte{' '}, recordSize-len(b))...)
	if _, err := f.Write(padded); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

func (r records) remove(rec record) { _ = os.Remove(r.path(rec)) }

// list reads the records of one owner. A file that is no record is passed over.
func (r records) list(owner string) ([]record, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var list []record
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), prefix(owner))
		id, suffix := strings.CutSuffix(name, ".json")
		if !ok || !suffix {
			continue
		}
		b, err := os.ReadFile(filepath.Join(r.dir, entry.Name()))
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
