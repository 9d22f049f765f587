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
	// graveTime is how long it is known of a sandbox that it was removed, and of an
	// idempotency key that nothing comes of it any more.
	graveTime = 24 * time.Hour
	// maxGraves and maxKeyGraves bound those of one tenant without and with a key; the
	// oldest go first.
	maxGraves, maxKeyGraves = 10_000, 100_000
	// graveFile is where they are when no daemon runs, and maxGraveLine the longest
	// line of it that is read.
	graveFile    = "removed.ndjson"
	maxGraveLine = 16 << 10
	// spareGraves is how many lines the file may hold that mean nothing any more,
	// beside as many as mean something.
	spareGraves = 4096
)

// epitaph is what is known of a sandbox that is no more, or of a key of which nothing
// is to come. It is immutable.
type epitaph struct {
	At time.Time
	// Sandbox has no id where none was made.
	Sandbox api.Sandbox
	// Digest is of the request that the key stood for, where it is known.
	Digest string `json:",omitempty"`
}

// expired reports whether it is forgotten.
func (e *epitaph) expired(at time.Time) bool { return !at.Before(e.At.Add(graveTime)) }

// epitaph is what stays known of a sandbox that is being removed.
func (s *live) epitaph() *epitaph {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.info
	return &epitaph{At: now(), Digest: s.digest, Sandbox: api.Sandbox{
		ID: i.ID, Name: i.Name, State: api.StateDeleted, Reason: i.Reason, TerminalReason: i.TerminalReason, EndedBy: i.EndedBy, IdempotencyKey: i.IdempotencyKey,
		Tenant: i.Tenant, Profile: i.Profile, Image: i.Image, Engine: i.Engine, Tier: i.Tier, Network: i.Network, Cwd: i.Cwd, Workspace: api.Workspace{Path: i.Workspace.Path},
		QueueMS: i.QueueMS, StartMS: i.StartMS, CreatedAt: i.CreatedAt, StoppedAt: i.StoppedAt,
	}}
}

// graveyard knows the sandboxes that were removed within graveTime. It is safe for
// concurrent use.
type graveyard struct {
	path string // empty keeps nothing on disk

	mu    sync.Mutex
	byID  map[string]*epitaph
	byKey map[nameKey]*epitaph
	// plain and keyed are those of each tenant in the order of their time.
	plain, keyed map[string][]*epitaph
	// lines is how many the file has.
	lines int
}

func newGraveyard(o Options) *graveyard {
	g := &graveyard{byID: map[string]*epitaph{}, byKey: map[nameKey]*epitaph{}, plain: map[string][]*epitaph{}, keyed: map[string][]*epitaph{}}
	if !o.Ephemeral && o.Dir != "" {
		g.path = filepath.Join(o.Dir, graveFile)
	}
	return g
}

// load reads what an earlier daemon knew. It is called before anything is buried.
func (g *graveyard) load() error {
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
func (g *graveyard) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxGraveLine)
	for {
		line, err := lines.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			line = nil // too long to be one of ours: skip to its end
			_, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return
		}
		g.lines++
		var e epitaph
		if len(line) > 0 && json.Unmarshal(line, &e) == nil && !e.At.IsZero() {
			g.add(&e)
		}
	}
}

// add puts an epitaph into the tables. The caller holds g.mu.
func (g *graveyard) add(e *epitaph) {
	list, most := g.plain, maxGraves
	if e.Sandbox.IdempotencyKey != "" {
		list, most = g.keyed, maxKeyGraves
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

// drop takes an epitaph out of the maps. The caller holds g.mu.
func (g *graveyard) drop(e *epitaph) {
	if g.byID[e.Sandbox.ID] == e {
		delete(g.byID, e.Sandbox.ID)
	}
	if key := (nameKey{e.Sandbox.Tenant, e.Sandbox.IdempotencyKey}); g.byKey[key] == e {
		delete(g.byKey, key)
	}
}

// forget drops what has expired, and says when the next will have; a zero time is
// never. The caller holds g.mu.
func (g *graveyard) forget(at time.Time) (next time.Time) {
	for _, lists := range []map[string][]*epitaph{g.plain, g.keyed} {
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
				lists[tenant] = append([]*epitaph(nil), list[n:]...)
			}
			if until := lists[tenant][0].At.Add(graveTime); next.IsZero() || until.Before(next) {
				next = until
			}
		}
	}
	return next
}

// tidy forgets what is due at some time, and says when the next is; a zero time is
// never.
func (g *graveyard) tidy(at time.Time) (next time.Time) {
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

// bury keeps an epitaph, in any case in memory; the error is that it will not
// outlive this process.
func (g *graveyard) bury(e *epitaph) error {
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
	if g.lines > 2*g.known()+spareGraves {
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
func (g *graveyard) known() (n int) {
	for _, lists := range []map[string][]*epitaph{g.plain, g.keyed} {
		for _, list := range lists {
			n += len(list)
		}
	}
	return n
}

// rewrite leaves only what is still known in the file. The caller holds g.mu.
func (g *graveyard) rewrite() error {
	g.forget(now())
	var all bytes.Buffer
	lines := 0
	for _, lists := range []map[string][]*epitaph{g.plain, g.keyed} {
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
	if err := hostfile.ReplaceIn(filepath.Dir(g.path), graveFile, all.Bytes()); err != nil {
		return fmt.Errorf("rewrite list of removed sandboxes: %w", err)
	}
	g.lines = lines
	return nil
}

// of is the last record of a sandbox that caller could see, by its id.
func (g *graveyard) of(caller policy.Caller, id string) (api.Sandbox, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.byID[id]
	if id == "" || e == nil || e.expired(now()) || !policy.SeesSandbox(caller, e.Sandbox.Tenant, e.Sandbox.Profile) {
		return api.Sandbox{}, false
	}
	return e.Sandbox, true
}

// keyOf is what became of a key; nil is nothing yet.
func (g *graveyard) keyOf(tenant, key string) *epitaph {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.byKey[nameKey{tenant, key}]; e != nil && !e.expired(now()) {
		return e
	}
	return nil
}

// missing is the error for a sandbox that is not on record: it says so, of one that
// was there and is removed, and why that ended.
func (g *graveyard) missing(caller policy.Caller, ref string) error {
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
