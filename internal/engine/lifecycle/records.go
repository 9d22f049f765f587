//go:build linux

package lifecycle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Head is what every engine writes down of an instance, before the first process of it
// is started. An engine embeds it in a struct of its own, with what else it needs.
type Head struct {
	ID    string `json:"id"`
	Owner string `json:"owner"`
	// Dir is the plan's directory.
	Dir string `json:"dir"`
	// Cgroups are the directories of its group, one in each hierarchy.
	Cgroups []string `json:"cgroups,omitempty"`
	// Boot is the machine's boot in which the processes were started; empty in
	// records of the first builds.
	Boot string `json:"boot,omitempty"`
}

// Names are the two that make an instance's record its own.
func (h Head) Names() (owner, id string) { return h.Owner, h.ID }

// Outlived reports whether the machine has been booted since the record: then none of
// its processes is left, even if their numbers are in use.
func (h Head) Outlived() bool { return pidfd.Outlived(h.Boot) }

// HasName reports whether an instance is called that, or one of its cgroups is: a sandbox that
// comes from a pool keeps the cgroup of an earlier name.
func (h Head) HasName(id string) bool {
	return h.ID == id || slices.ContainsFunc(h.Cgroups, func(dir string) bool { return filepath.Base(dir) == id })
}

// Record is all there is to know about an instance in order to find it again or to
// remove it. It embeds a Head.
type Record interface {
	Names() (owner, id string)
	Outlived() bool
	HasName(id string) bool
}

// Records keeps a file for each instance, from before its first process until after
// its last. Dir is a 0700 directory for them and for whatever else has another
// extension than .json.
type Records[R Record] struct {
	Dir string
	// Blank is the record of an instance of which only the names are known, because a
	// daemon died while it wrote the first version, or because only its cgroups are left.
	Blank func(Head) R
}

// recordSize is what a record's file is filled up to, so that it can be replaced by
// one write. A record that needs more is refused.
const recordSize = 4096

// prefix begins the names of an owner's files and of no other's.
func prefix(owner string) string { return strconv.Itoa(len(owner)) + "-" + owner + "-" }

func (s Records[R]) path(owner, id string) string {
	return filepath.Join(s.Dir, prefix(owner)+id+".json")
}

// Create writes the first version. It is fs.ErrExist when there is an instance of that
// name.
func (s Records[R]) Create(rec R) error {
	err := s.write(rec, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		s.Remove(rec) // on a full disk there is a file without content
	}
	return err
}

// Update replaces the record as a whole.
func (s Records[R]) Update(rec R) error { return s.write(rec, os.O_WRONLY) }

func (s Records[R]) write(rec R, flags int) error {
	b := Encode(rec)
	if len(b) > recordSize {
		return errors.New("write record: its paths are too long")
	}
	f, err := os.OpenFile(s.path(rec.Names()), flags, 0o600)
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

// Remove removes the record, if there is one.
func (s Records[R]) Remove(rec R) { _ = os.Remove(s.path(rec.Names())) }

// Forget removes the records of an owner in a directory of records, and nothing that
// they tell of: it belongs to another home.
func Forget(dir, owner string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list records: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix(owner)) && strings.HasSuffix(e.Name(), ".json") {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// List reads the records of one owner. A file that is no record is passed over.
func (s Records[R]) List(owner string) ([]R, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var list []R
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), prefix(owner))
		id, suffix := strings.CutSuffix(name, ".json")
		if !ok || !suffix {
			continue
		}
		rec, err := s.read(entry.Name())
		if errors.Is(err, errNotRead) {
			continue
		}
		if err != nil {
			rec = s.Blank(Head{ID: id, Owner: owner})
		}
		if o, i := rec.Names(); o == owner && i == id {
			list = append(list, rec)
		}
	}
	return list, nil
}

// All reads the records of all owners, except those that cannot be read.
func (s Records[R]) All() ([]R, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var list []R
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		if rec, err := s.read(entry.Name()); err == nil {
			list = append(list, rec)
		}
	}
	return list, nil
}

// errNotRead is of a file that cannot be read, whatever is in it.
var errNotRead = errors.New("the record cannot be read")

func (s Records[R]) read(name string) (rec R, err error) {
	b, err := os.ReadFile(filepath.Join(s.Dir, name))
	if err != nil {
		return rec, errors.Join(errNotRead, err)
	}
	return Decode[R](b)
}

// Encode is a record as it is on disk, and as an instance's State.
func Encode[R Record](rec R) []byte {
	b, err := json.Marshal(rec)
	if err != nil {
		return nil // strings and numbers can always be encoded
	}
	return b
}

// Decode reads what Encode wrote. Its names are safe as file names.
func Decode[R Record](b []byte) (rec R, err error) {
	var none R
	if err := json.Unmarshal(b, &rec); err != nil {
		return none, fmt.Errorf("decode record: %w", err)
	}
	if owner, id := rec.Names(); !engine.SafeName(id) || !engine.SafeName(owner) {
		return none, errors.New("decode record: id or owner is not a safe name")
	}
	return rec, nil
}
