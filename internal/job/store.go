// Package job keeps what is on record of jobs: each in a directory of its own,
// the request as it came beside what became of it.
package job

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// What is kept of jobs that have ended: so many, and so many bytes. The oldest go.
const (
	defaultCount = 1000
	defaultBytes = 1 << 30
)

const (
	recordFile = "job.json"
	// oldRecordFile is the record in homes of earlier versions, which called a job a program.
	oldRecordFile = "program.json"
	specFile      = "spec.json"
	// draftPrefix begins the name of a directory until both are in it.
	draftPrefix = ".new-"
)

// Options are where a Store is and what it keeps; zero bounds are the defaults.
type Options struct {
	// Dir is made when it is missing. No other process writes there.
	Dir string
	// Old is the directory that an earlier version used. Open moves its records to Dir. If it is
	// empty, there are no such records.
	Old   string
	Count int
	Bytes int64
}

// Store is the records of jobs. It is safe for concurrent use.
type Store struct {
	opts Options
	root *os.Root
	// Unreadable are the files of records that could not be read when the Store was opened,
	// below the home. Whatever they are about is kept.
	Unreadable []string

	mu    sync.Mutex
	byID  map[string]*entry
	byKey map[key]*entry
}

// key is the idempotency key of a tenant.
type key struct{ tenant, text string }

// entry is what is known of a job without a look at its record.
type entry struct {
	id      string
	key     key
	digest  string
	created time.Time
	ended   bool
	bytes   int64
}

// onDisk is the record of a job.
type onDisk struct {
	Job api.Job
	// Program is Job in a record of an earlier version.
	Program *api.Job `json:",omitempty"`
	// Key and Digest are of the request.
	Key    string `json:",omitempty"`
	Digest string
}

// Open reads what there is.
func Open(o Options) (*Store, error) {
	o.Count, o.Bytes = cmp.Or(o.Count, defaultCount), cmp.Or(o.Bytes, defaultBytes)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open jobs: %w", err)
	}
	if err := adopt(o.Old, o.Dir); err != nil {
		return nil, fmt.Errorf("open jobs: move records of an earlier version: %w", err)
	}
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open jobs: %w", err)
	}
	s := &Store{opts: o, root: root, byID: map[string]*entry{}, byKey: map[key]*entry{}}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list jobs: %w", err), root.Close())
	}
	for _, d := range entries {
		rec, size, err := s.read(d.Name())
		if strings.HasPrefix(d.Name(), draftPrefix) {
			// One that never began.
			if err := root.RemoveAll(d.Name()); err != nil {
				return nil, errors.Join(fmt.Errorf("remove what is left of job %s: %w", d.Name(), err), root.Close())
			}
			continue
		}
		if err != nil {
			s.Unreadable = append(s.Unreadable, filepath.Join(filepath.Base(o.Dir), d.Name(), recordFile))
			continue
		}
		s.put(rec, size)
	}
	return s, nil
}

// adopt moves the records in old to dir, which exists. A crash leaves each record in one of them.
func adopt(old, dir string) error {
	if old == "" {
		return nil
	}
	entries, err := os.ReadDir(old)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if os.Rename(old, dir) == nil { // dir is empty
		return nil
	}
	for _, d := range entries {
		to := filepath.Join(dir, d.Name())
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := os.Rename(filepath.Join(old, d.Name()), to); err != nil {
			return err
		}
	}
	_ = os.Remove(old) // fails if a record is left, which both directories have
	return nil
}

// Close ends the use of the directory.
func (s *Store) Close() error { return s.root.Close() }

// put notes a record. The caller holds s.mu, or has the only reference to s.
func (s *Store) put(rec onDisk, size int64) {
	p := rec.Job
	e := &entry{id: p.ID, key: key{p.Tenant, rec.Key}, digest: rec.Digest, created: p.CreatedAt, ended: p.State.Ended(), bytes: size}
	s.byID[e.id] = e
	if rec.Key != "" {
		s.byKey[e.key] = e
	}
}

// Digest identifies the content of a request.
func Digest(spec api.JobSpec) (string, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode job: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Begin puts a job on record, whose Spec must be set, unless its tenant has one with
// the same idempotency key: that one's id and the digest of its request are returned then.
func (s *Store) Begin(p api.Job) (id, digest string, err error) {
	spec := *p.Spec
	if digest, err = Digest(spec); err != nil {
		return "", "", err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return "", "", fmt.Errorf("encode job: %w", err)
	}
	rec := onDisk{Job: p, Key: spec.IdempotencyKey, Digest: digest}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec.Key != "" {
		if e := s.byKey[key{p.Tenant, rec.Key}]; e != nil {
			return e.id, e.digest, nil
		}
	}
	if err := s.room(int64(len(data))); err != nil {
		return "", "", err
	}
	draft := draftPrefix + p.ID
	err = s.root.Mkdir(draft, 0o700)
	if err == nil {
		err = hostfile.Replace(s.root, draft+"/"+specFile, data)
	}
	var size int64
	if err == nil {
		size, err = s.write(draft, rec)
	}
	if err == nil {
		err = s.root.Rename(draft, p.ID)
	}
	if err == nil {
		err = hostfile.SyncDir(s.root)
	}
	if err != nil {
		return "", "", errors.Join(fmt.Errorf("put job %s on record: %w", p.ID, err), s.root.RemoveAll(draft), s.root.RemoveAll(p.ID))
	}
	s.put(rec, size+int64(len(data)))
	return p.ID, digest, nil
}

// room forgets the oldest jobs that have ended, until one more fits. The caller
// holds s.mu.
func (s *Store) room(bytes int64) error {
	all := make([]*entry, 0, len(s.byID))
	for _, e := range s.byID {
		all, bytes = append(all, e), bytes+e.bytes
	}
	slices.SortFunc(all, func(a, b *entry) int { return a.created.Compare(b.created) })
	count := len(all)
	for _, e := range all {
		if count < s.opts.Count && bytes <= s.opts.Bytes {
			break
		}
		if !e.ended {
			continue
		}
		if err := s.root.RemoveAll(e.id); err != nil {
			return fmt.Errorf("forget job %s: %w", e.id, err)
		}
		count, bytes = count-1, bytes-e.bytes
		delete(s.byID, e.id)
		if s.byKey[e.key] == e {
			delete(s.byKey, e.key)
		}
	}
	return nil
}

// Save puts what became of a job on record: a crash leaves the record before it, or
// this one.
func (s *Store) Save(p api.Job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[p.ID]
	if e == nil {
		return fmt.Errorf("save job %s: %w", p.ID, fs.ErrNotExist)
	}
	rec := onDisk{Job: p, Key: e.key.text, Digest: e.digest}
	size, err := s.write(p.ID, rec)
	if err != nil {
		return fmt.Errorf("save job %s: %w", p.ID, err)
	}
	e.ended = p.State.Ended()
	if fi, err := s.root.Stat(p.ID + "/" + specFile); err == nil {
		size += fi.Size()
	}
	e.bytes = size
	return nil
}

// write replaces a record, whose request has a file of its own.
func (s *Store) write(dir string, rec onDisk) (int64, error) {
	rec.Job.Spec = nil
	data, err := json.Marshal(rec)
	if err != nil {
		return 0, err
	}
	if err := hostfile.Replace(s.root, dir+"/"+recordFile, data); err != nil {
		return 0, err
	}
	if err := s.root.Remove(dir + "/" + oldRecordFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	return int64(len(data)), nil
}

func (s *Store) read(id string) (onDisk, int64, error) {
	var rec onDisk
	data, err := s.root.ReadFile(id + "/" + recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = s.root.ReadFile(id + "/" + oldRecordFile)
	}
	if err != nil {
		return rec, 0, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, 0, fmt.Errorf("decode job %s: %w", id, err)
	}
	if rec.Program != nil {
		rec.Job, rec.Program = *rec.Program, nil
	}
	if rec.Job.ID != id {
		return rec, 0, fmt.Errorf("job %s has the record of another", id)
	}
	fi, err := s.root.Stat(id + "/" + specFile)
	if err != nil {
		return rec, 0, err
	}
	return rec, int64(len(data)) + fi.Size(), nil
}

// Get reads a job, with its request where that is asked for; fs.ErrNotExist says that
// the job does not exist.
func (s *Store) Get(id string, withSpec bool) (api.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[id] == nil {
		return api.Job{}, fmt.Errorf("read job: %w", fs.ErrNotExist)
	}
	rec, _, err := s.read(id)
	if err != nil || !withSpec {
		return rec.Job, err
	}
	data, err := s.root.ReadFile(id + "/" + specFile)
	if err != nil {
		return rec.Job, fmt.Errorf("read job %s: %w", id, err)
	}
	rec.Job.Spec = &api.JobSpec{}
	if err := json.Unmarshal(data, rec.Job.Spec); err != nil {
		return rec.Job, fmt.Errorf("decode job %s: %w", id, err)
	}
	return rec.Job, nil
}

// IDs lists the jobs, newest first; those that have ended only where that is asked
// for.
func (s *Store) IDs(ended bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*entry
	for _, e := range s.byID {
		if ended || !e.ended {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(b.created.Compare(a.created), cmp.Compare(b.id, a.id))
	})
	ids := make([]string, 0, len(all))
	for _, e := range all {
		ids = append(ids, e.id)
	}
	return ids
}
