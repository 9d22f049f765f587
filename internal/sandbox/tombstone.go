package sandbox

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
	// tombstoneTime is how long it is known of a sandbox that it was removed, and of an
	// idempotency key that nothing comes of it any more.
	tombstoneTime = 24 * time.Hour
	// maxTombstones and maxKeyTombstones bound those of one tenant without and with a key; the
	// oldest go first.
	maxTombstones, maxKeyTombstones = 10_000, 100_000
	// tombstoneFile is where they are when no daemon runs, and maxTombstoneLine the longest
	// line of it that is read.
	tombstoneFile    = "removed.ndjson"
	maxTombstoneLine = 16 << 10
	// spareTombstones is how many lines the file may hold that mean nothing any more,
	// beside as many as mean something.
	spareTombstones = 4096
)

// tombstone is the record of a removed sandbox, or of a key that no longer creates one. It is
// immutable.
type tombstone struct {
	At time.Time
	// Sandbox has no id where none was made.
	Sandbox api.Sandbox
	// Digest is of the request that the key stood for, where it is known.
	Digest string `json:",omitempty"`
}

// expired reports whether it is forgotten.
func (e *tombstone) expired(at time.Time) bool { return !at.Before(e.At.Add(tombstoneTime)) }

// tombstone is what stays known of a sandbox that is being removed.
func (s *live) tombstone() *tombstone {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.info
	return &tombstone{At: now(), Digest: s.digest, Sandbox: api.Sandbox{
		ID: i.ID, Name: i.Name, State: api.StateDeleted, Reason: i.Reason, TerminalReason: i.TerminalReason, EndedBy: i.EndedBy, IdempotencyKey: i.IdempotencyKey,
		Tenant: i.Tenant, Profile: i.Profile, Image: i.Image, Engine: i.Engine, Tier: i.Tier, Network: i.Network, Cwd: i.Cwd, Workspace: api.Workspace{Path: i.Workspace.Path},
		QueueMS: i.QueueMS, StartMS: i.StartMS, CreatedAt: i.CreatedAt, StoppedAt: i.StoppedAt,
	}}
}

// store of tombstones knows the sandboxes that were removed within tombstoneTime. It is safe for
// concurrent use.
type tombstones struct {
	path string // empty keeps nothing on disk

	mu    sync.Mutex
	byID  map[string]*tombstone
	byKey map[nameKey]*tombstone
	// plain and keyed are those of each tenant in the order of their time.
	plain, keyed map[string][]*tombstone
	// lines is how many the file has.
	lines int
}

func newTombstones(o Options) *tombstones {
	g := &tombstones{byID: map[string]*tombstone{}, byKey: map[nameKey]*tombstone{}, plain: map[string][]*tombstone{}, keyed: map[string][]*tombstone{}}
	if !o.Ephemeral && o.Dir != "" {
		g.path = filepath.Join(o.Dir, tombstoneFile)
	}
	return g
}

// load reads what an earlier daemon knew. It is called before anything is buried.
func (g *tombstones) load() error {
	if g.path == "" {
		return nil
	}
	f, err := os.Open(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open list of removed sandboxes: %w", err)
	}
	defer f.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.read(f)
	g.forget(now())
	return nil
}

// read takes in every line that can be read: the last may be torn by a crash, and
// nothing depends on one that was damaged. The caller holds g.mu.
func (g *tombstones) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxTombstoneLine)
	for {
		line, err := lines.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			line = nil // too long for a line that Cloche wrote: skip to its end
			_, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return
		}
		g.lines++
		var e tombstone
		if len(line) > 0 && json.Unmarshal(line, &e) == nil && !e.At.IsZero() {
			g.add(&e)
		}
	}
}

// add puts a tombstone into the tables. The caller holds g.mu.
func (g *tombstones) add(e *tombstone) {
	list, most := g.plain, maxTombstones
	if e.Sandbox.IdempotencyKey != "" {
		list, most = g.keyed, maxKeyTombstones
		g.byKey[nameKey{e.Sandbox.Tenant, e.Sandbox.IdempotencyKey}] = e
	}
	if e.Sandbox.ID != "" {
		g.byID[e.Sandbox.ID] = e
	}
	tenant := e.Sandbox.Tenant
	list[tenant] = append(list[tenant], e)
	if len(list[tenant]) > most {
		g.drop(list[tenant][0])
		list[tenant] = list[tenant][1:]
	}
}

// drop takes a tombstone out of the maps. The caller holds g.mu.
func (g *tombstones) drop(e *tombstone) {
	if g.byID[e.Sandbox.ID] == e {
		delete(g.byID, e.Sandbox.ID)
	}
	if key := (nameKey{e.Sandbox.Tenant, e.Sandbox.IdempotencyKey}); g.byKey[key] == e {
		delete(g.byKey, key)
	}
}

// forget drops what has expired, and says when the next will have; a zero time is
// never. The caller holds g.mu.
func (g *tombstones) forget(at time.Time) (next time.Time) {
	for _, lists := range []map[string][]*tombstone{g.plain, g.keyed} {
		for tenant, list := range lists {
			n := 0
			for n < len(list) && list[n].expired(at) {
				g.drop(list[n])
				n++
			}
			switch {
			case n == len(list):
				delete(lists, tenant)
				continue
			case n > 0:
				lists[tenant] = append([]*tombstone(nil), list[n:]...)
			}
			if until := lists[tenant][0].At.Add(tombstoneTime); next.IsZero() || until.Before(next) {
				next = until
			}
		}
	}
	return next
}

// tidy forgets what is due at some time, and says when the next is; a zero time is
// never.
func (g *tombstones) tidy(at time.Time) (next time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if next = g.forget(at); next.IsZero() {
		return next
	}
	// Nobody waits for it: once an hour is often enough.
	if soon := at.Add(time.Hour); next.Before(soon) {
		next = soon
	}
	return next
}

// bury keeps a tombstone, in any case in memory; the error is that it will not
// outlive this process.
func (g *tombstones) bury(e *tombstone) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.byID[e.Sandbox.ID]; old != nil && e.Sandbox.ID != "" {
		return nil // an attempt before this one did
	}
	g.add(e)
	if g.path == "" {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode removed sandbox: %w", err)
	}
	if g.lines > 2*g.known()+spareTombstones {
		return g.rewrite()
	}
	f, err := os.OpenFile(g.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write list of removed sandboxes: %w", err)
	}
	// A line that a full disk cut in two must not spoil the next.
	_, err = f.Write(append(append([]byte{'\n'}, line...), '\n'))
	g.lines += 2
	if err == nil {
		err = f.Sync() // what becomes of a key was promised to its caller
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write list of removed sandboxes: %w", err)
	}
	return nil
}

// known counts what is known. The caller holds g.mu.
func (g *tombstones) known() (n int) {
	for _, lists := range []map[string][]*tombstone{g.plain, g.keyed} {
		for _, list := range lists {
			n += len(list)
		}
	}
	return n
}

// rewrite leaves only what is still known in the file. The caller holds g.mu.
func (g *tombstones) rewrite() error {
	g.forget(now())
	var all bytes.Buffer
	lines := 0
	for _, lists := range []map[string][]*tombstone{g.plain, g.keyed} {
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
	if err := hostfile.ReplaceIn(filepath.Dir(g.path), tombstoneFile, all.Bytes()); err != nil {
		return fmt.Errorf("rewrite list of removed sandboxes: %w", err)
	}
	g.lines = lines
	return nil
}

// of is the last record of a sandbox that caller could see, by its id.
func (g *tombstones) of(caller policy.Caller, id string) (api.Sandbox, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.byID[id]
	if id == "" || e == nil || e.expired(now()) || !policy.SeesSandbox(caller, e.Sandbox.Tenant, e.Sandbox.Profile) {
		return api.Sandbox{}, false
	}
	return e.Sandbox, true
}

// keyOf is what became of a key; nil is nothing yet.
func (g *tombstones) keyOf(tenant, key string) *tombstone {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.byKey[nameKey{tenant, key}]; e != nil && !e.expired(now()) {
		return e
	}
	return nil
}

// missing is the error for a sandbox that is not on record: it says so, of one that
// was there and is removed, and why that ended.
func (g *tombstones) missing(caller policy.Caller, ref string) error {
	sb, ok := g.of(caller, ref)
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
