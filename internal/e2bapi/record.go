package e2bapi

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

// record is what the server keeps about a sandbox. A record is not changed: an update puts another one.
type record struct {
	// Sandbox is core's ID.
	Sandbox string `json:"sandbox"`
	// Caller says whose sandbox it is: see callerID.
	Caller string `json:"caller"`
	// Token is the access token of the data plane. TrafficToken is the token of its ports, or empty if
	// they need none.
	Token        string            `json:"token"`
	TrafficToken string            `json:"traffic_token,omitempty"`
	Template     string            `json:"template"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	// Network is the network of the request, and Internet whether it allowed the internet.
	Network  *network `json:"network,omitempty"`
	Internet *bool    `json:"internet,omitempty"`
	// Started is when the present run began, and Paused when the sandbox was paused. Paused is zero
	// while it runs.
	Started time.Time `json:"started"`
	Paused  time.Time `json:"paused,omitzero"`
	// Cold means that it was paused without its memory, so that it is paused and not gone while core has it stopped.
	// ColdPause means that AutoPause does that.
	Cold      bool `json:"cold,omitempty"`
	ColdPause bool `json:"cold_pause,omitempty"`
	// AutoPause pauses the sandbox at End, which core does not know: core's own end is later. AutoResume
	// resumes it by traffic, for Timeout seconds.
	AutoPause  bool      `json:"auto_pause,omitempty"`
	AutoResume bool      `json:"auto_resume,omitempty"`
	End        time.Time `json:"end,omitzero"`
	Timeout    int64     `json:"timeout,omitempty"`
}

// newToken returns an access token that cannot be guessed.
func newToken() string { return strings.ToLower(rand.Text()) }

// maxRecord limits the size of a record's file in bytes.
const maxRecord = 1 << 20

// records are the records of all sandboxes, in memory and as files that are complete or absent. It is safe
// for concurrent use.
type records struct {
	root *os.Root

	mu   sync.Mutex
	byID map[string]*record // by core's ID
}

// openRecords reads the records in a directory, which is created. A file that cannot be read is skipped.
func openRecords(dir string) (*records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open E2B records: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open E2B records: %w", err)
	}
	s := &records{root: root, byID: map[string]*record{}}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list E2B records: %w", err), root.Close())
	}
	for _, e := range entries {
		ref, ok := strings.CutSuffix(e.Name(), ".json")
		if fi, err := e.Info(); !ok || err != nil || !fi.Mode().IsRegular() || fi.Size() > maxRecord {
			continue
		}
		data, err := root.ReadFile(e.Name())
		var r record
		if err == nil && json.Unmarshal(data, &r) == nil && r.Sandbox == ref && r.Token != "" {
			s.byID[ref] = &r
		}
	}
	return s, nil
}

func (s *records) close() error { return s.root.Close() }

// put writes a record durably and then uses it.
func (s *records) put(r record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(r)
}

// write is put; the caller holds mu.
func (s *records) write(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write E2B record: %w", err)
	}
	if len(data) > maxRecord {
		return fail(http.StatusRequestEntityTooLarge, "what the request says of the sandbox has more than %d bytes", maxRecord)
	}
	if err := hostfile.Replace(s.root, r.Sandbox+".json", data); err != nil {
		return fmt.Errorf("write E2B record: %w", err)
	}
	s.byID[r.Sandbox] = &r
	return nil
}

// update changes the record of a sandbox durably, and returns it as it is now.
func (s *records) update(ref string, change func(*record)) (*record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.byID[ref]
	if kept == nil {
		return nil, notFound(idOf(ref))
	}
	next := *kept
	change(&next)
	return &next, s.write(next)
}

// get returns the record of a sandbox, or nil.
func (s *records) get(ref string) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[ref]
}

func (s *records) all() []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byID))
}

func (s *records) remove(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, ref)
	if err := s.root.Remove(ref + ".json"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove E2B record: %w", err)
	}
	return nil
}
