// Package tombstone keeps the records of removed sandboxes, and of idempotency keys that no longer
// create a sandbox. A caller that repeats a request learns from them what became of its sandbox,
// also after a restart of the daemon.
package tombstone

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	// retention is how long the store keeps a record.
	retention = 24 * time.Hour
	// maxRecords and maxKeyRecords bound the records of one tenant without and with a key. The
	// store drops the oldest first.
	maxRecords, maxKeyRecords = 10_000, 100_000
	// fileName is the name of the file, and maxLine the longest line that is read from it.
	fileName = "removed.ndjson"
	maxLine  = 16 << 10
	// spareLines is how many outdated lines the file can hold, besides one for each current line.
	spareLines = 4096
)

// Record is what stays known of a removed sandbox, or of a key that no longer creates one. It is
// immutable.
type Record struct {
	At time.Time
	// Sandbox has no id where none was made.
	Sandbox api.Sandbox
	// Digest is of the request that the key stood for, where it is known.
	Digest string `json:",omitempty"`
}

// expired reports whether the store no longer keeps the record.
func (e *Record) expired(at time.Time) bool { return !at.Before(e.At.Add(retention)) }

// tenantKey is an idempotency key of a tenant.
type tenantKey struct{ tenant, key string }

// Store has the records of 24 hours. It is safe for concurrent use.
type Store struct {
	path string // empty keeps nothing on disk

	mu    sync.Mutex
	byID  map[string]*Record
	byKey map[tenantKey]*Record
	// plain and keyed are those of each tenant in the order of their time.
	plain, keyed map[string][]*Record
	// lines is how many the file has.
	lines int
}

// Dir is where the store of an owner's directory has its file; empty is nowhere.
func Dir(owner string, ephemeral bool) string {
	if ephemeral {
		return ""
	}
	return owner
}

// New returns an empty store. It keeps its file in dir; an empty dir keeps nothing on disk.
func New(dir string) *Store {
	s := &Store{byID: map[string]*Record{}, byKey: map[tenantKey]*Record{}, plain: map[string][]*Record{}, keyed: map[string][]*Record{}}
	if dir != "" {
		s.path = filepath.Join(dir, fileName)
	}
	return s
}

// Move moves the file of a store from one directory to another that has none.
func Move(from, to string) error {
	if _, err := os.Lstat(filepath.Join(to, fileName)); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Rename(filepath.Join(from, fileName), filepath.Join(to, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Load reads the records of an earlier daemon. Call it before Add.
func (s *Store) Load() error {
	if s.path == "" {
		return nil
	}
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open list of removed sandboxes: %w", err)
	}
	defer f.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read(f)
	s.forget(now())
	return nil
}

// read takes in every line that can be read: the last may be torn by a crash, and
// nothing depends on one that was damaged. The caller holds s.mu.
func (s *Store) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			line = nil // too long for a line that Cloche wrote: skip to its end
			_, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return
		}
		s.lines++
		var e Record
		if len(line) > 0 && json.Unmarshal(line, &e) == nil && !e.At.IsZero() {
			s.insert(&e)
		}
	}
}

// insert puts a record into the tables. The caller holds s.mu.
func (s *Store) insert(e *Record) {
	list, most := s.plain, maxRecords
	if e.Sandbox.IdempotencyKey != "" {
		list, most = s.keyed, maxKeyRecords
		s.byKey[tenantKey{e.Sandbox.Tenant, e.Sandbox.IdempotencyKey}] = e
	}
	if e.Sandbox.ID != "" {
		s.byID[e.Sandbox.ID] = e
	}
	tenant := e.Sandbox.Tenant
	list[tenant] = append(list[tenant], e)
	if len(list[tenant]) > most {
		s.drop(list[tenant][0])
		list[tenant] = list[tenant][1:]
	}
}

// drop takes a record out of the maps. The caller holds s.mu.
func (s *Store) drop(e *Record) {
	if s.byID[e.Sandbox.ID] == e {
		delete(s.byID, e.Sandbox.ID)
	}
	if key := (tenantKey{e.Sandbox.Tenant, e.Sandbox.IdempotencyKey}); s.byKey[key] == e {
		delete(s.byKey, key)
	}
}

// forget drops expired records and returns when the next one expires; a zero time is never. The caller holds s.mu.
func (s *Store) forget(at time.Time) (next time.Time) {
	for _, lists := range []map[string][]*Record{s.plain, s.keyed} {
		for tenant, list := range lists {
			n := 0
			for n < len(list) && list[n].expired(at) {
				s.drop(list[n])
				n++
			}
			switch {
			case n == len(list):
				delete(lists, tenant)
				continue
			case n > 0:
				lists[tenant] = append([]*Record(nil), list[n:]...)
			}
			if until := lists[tenant][0].At.Add(retention); next.IsZero() || until.Before(next) {
				next = until
			}
		}
	}
	return next
}

// Expire drops the records that have expired at some time, and returns when to call it next; a
// zero time is never.
func (s *Store) Expire(at time.Time) (next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next = s.forget(at); next.IsZero() {
		return next
	}
	// No caller waits for it: once an hour is often enough.
	if soon := at.Add(time.Hour); next.Before(soon) {
		next = soon
	}
	return next
}

// Add keeps a record. It has reached the disk when Add returns nil. After an error the record is
// kept in memory only, until this process ends. A second record of one sandbox is dropped without an
// error.
func (s *Store) Add(e *Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byID[e.Sandbox.ID]; old != nil && e.Sandbox.ID != "" {
		return nil // an attempt before this one did
	}
	s.insert(e)
	if s.path == "" {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode removed sandbox: %w", err)
	}
	if s.lines > 2*s.known()+spareLines {
		return s.rewrite()
	}
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write list of removed sandboxes: %w", err)
	}
	// A line that a full disk cut in two must not spoil the next.
	_, err = f.Write(append(append([]byte{'\n'}, line...), '\n'))
	s.lines += 2
	if err == nil {
		err = f.Sync() // what becomes of a key was promised to its caller
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write list of removed sandboxes: %w", err)
	}
	return nil
}

// known counts what is known. The caller holds s.mu.
func (s *Store) known() (n int) {
	for _, lists := range []map[string][]*Record{s.plain, s.keyed} {
		for _, list := range lists {
			n += len(list)
		}
	}
	return n
}

// rewrite leaves only what is still known in the file. The caller holds s.mu.
func (s *Store) rewrite() error {
	s.forget(now())
	var all bytes.Buffer
	lines := 0
	for _, lists := range []map[string][]*Record{s.plain, s.keyed} {
		for _, list := range lists {
			for _, e := range list {
				line, err := json.Marshal(e)
				if err != nil {
					return fmt.Errorf("encode removed sandbox: %w", err)
				}
				all.Write(append(line, '\n'))
				lines++
			}
		}
	}
	if err := hostfile.ReplaceIn(filepath.Dir(s.path), fileName, all.Bytes()); err != nil {
		return fmt.Errorf("rewrite list of removed sandboxes: %w", err)
	}
	s.lines = lines
	return nil
}

// Sandbox returns the last state of a removed sandbox, by its ID, if caller could see the sandbox.
func (s *Store) Sandbox(caller policy.Caller, id string) (api.Sandbox, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if id == "" || e == nil || e.expired(now()) || !policy.SeesSandbox(caller, e.Sandbox.Tenant, e.Sandbox.Profile) {
		return api.Sandbox{}, false
	}
	return e.Sandbox, true
}

// Key returns the record of an idempotency key, or nil.
func (s *Store) Key(tenant, key string) *Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[tenantKey{tenant, key}]; e != nil && !e.expired(now()) {
		return e
	}
	return nil
}

// Missing returns the error for a sandbox that does not exist. For one that was removed, the error
// says so and why it ended.
func (s *Store) Missing(caller policy.Caller, ref string) error {
	sb, ok := s.Sandbox(caller, ref)
	if !ok {
		return policy.NoSandbox(ref)
	}
	err := api.Errorf(api.CodeNotFound, "sandbox %s was removed", sb.Name)
	if sb.Reason != "" {
		err.Message += "; it had ended because " + sb.Reason
	}
	err.TerminalReason = sb.TerminalReason
	return err.WithHint("to run something, make another")
}

// now is the time of records.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
