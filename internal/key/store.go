package key

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxKeys bounds the keys that are on record.
	maxKeys = 10_000
	// keptDead is how long a revoked or expired key stays on record.
	keptDead = 30 * 24 * time.Hour
	// useEvery is how exact the time of the last use on disk is.
	useEvery = time.Minute
)

// Store has the keys of one home, of which one process at a time has a Store. It
// is safe for concurrent use.
type Store struct {
	ctx  context.Context // of the lives of keys
	file file

	mu   sync.RWMutex
	keys map[string]*record

	closed bool // guarded by mu

	// saving is held while the file is written.
	saving sync.Mutex
	// savedAt is when that was done last, or begun, in Unix milliseconds.
	savedAt atomic.Int64
	// writers write the times of last use.
	writers sync.WaitGroup
}

// record is one key. Only used changes without the Store's lock.
type record struct {
	key  api.Key
	hash hash
	// used is the time of the last use in Unix milliseconds; 0 is never.
	used atomic.Int64
	// live ends when the key does; end ends it.
	live context.Context
	end  context.CancelCauseFunc
	stop context.CancelFunc
}

// Wish is a key as policy has granted it.
type Wish struct {
	Tenant, Name    string
	Verbs, Profiles []string
	// Life is how long it is good for; 0 is until it is revoked.
	Life time.Duration
}

// Open reads the keys of a home. A file that cannot be read is an error: to go on
// without would be to forget which keys were revoked. Of ctx it keeps the values.
func Open(ctx context.Context, home string) (*Store, error) {
	s := &Store{ctx: context.WithoutCancel(ctx), file: file{home: home}, keys: map[string]*record{}}
	s.savedAt.Store(now().UnixMilli())
	stored, err := s.file.load()
	if err != nil {
		return nil, err
	}
	for _, r := range stored {
		s.add(r.Key, r.Hash)
	}
	return s, nil
}

// now is the time as it is kept: without its monotonic part, so that a key ends by
// the clock also on a machine that slept.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// add needs s.mu, or the only reference to s.
func (s *Store) add(k api.Key, h hash) *record {
	r := &record{key: k, hash: h, stop: func() {}}
	if k.LastUsedAt != nil {
		r.used.Store(k.LastUsedAt.UnixMilli())
	}
	r.live, r.end = context.WithCancelCause(s.ctx)
	if k.RevokedAt != nil {
		r.end(why(k, now()))
	} else if k.ExpiresAt != nil {
		r.live, r.stop = context.WithDeadlineCause(r.live, *k.ExpiresAt, expired(k))
	}
	s.keys[k.ID] = r
	return r
}

// Create makes a key. What it returns beside the record is the only copy.
func (s *Store) Create(w Wish) (api.Key, string, error) {
	id, text := newText()
	at := now()
	k := api.Key{
		ID: id, Tenant: w.Tenant, Name: w.Name, Verbs: slices.Clone(w.Verbs), Profiles: slices.Clone(w.Profiles), CreatedAt: at,
	}
	if w.Life > 0 {
		k.ExpiresAt = new(at.Add(w.Life))
	}
	s.mu.Lock()
	s.prune(at)
	if len(s.keys) >= maxKeys {
		s.mu.Unlock()
		return api.Key{}, "", api.Errorf(api.CodeNoCapacity, "too many keys: there are %d", maxKeys).
			WithHint("revoke those that are not used; one that is revoked stays on record for %d days", int(keptDead.Hours()/24))
	}
	s.add(k, hashOf(text))
	s.mu.Unlock()
	if err := s.save(); err != nil {
		s.mu.Lock()
		s.drop(id)
		s.mu.Unlock()
		return api.Key{}, "", err
	}
	return k, text, nil
}

// prune forgets keys that ended long ago. It needs s.mu.
func (s *Store) prune(at time.Time) {
	for id, r := range s.keys {
		end := cmp.Or(r.key.RevokedAt, r.key.ExpiresAt)
		if end != nil && at.Sub(*end) > keptDead {
			s.drop(id)
		}
	}
}

// drop needs s.mu.
func (s *Store) drop(id string) {
	if r := s.keys[id]; r != nil {
		r.end(nil)
		r.stop()
		delete(s.keys, id)
	}
}

// Verify finds the key that a caller showed. live ends when the key does, with the
// error that its callers then get as its cause. How long it takes says nothing of
// any key's hash; which ids there are is no secret.
func (s *Store) Verify(text string) (k api.Key, live context.Context, err error) {
	sum := hashOf(text)
	id, ok := idIn(text)
	s.mu.RLock()
	r := s.keys[id]
	want := hash{}
	if r != nil {
		want, k = r.hash, r.key
	}
	s.mu.RUnlock()
	if !want.same(sum) || !ok || r == nil {
		return api.Key{}, nil, api.Errorf(api.CodeUnauthenticated, "the request shows no valid token").
			WithHint("set CLOCHE_TOKEN, or send the header Authorization: Bearer TOKEN")
	}
	at := now()
	if err := why(k, at); err != nil {
		return api.Key{}, nil, err
	}
	r.used.Store(at.UnixMilli())
	s.saveUse(at)
	return k, r.live, nil
}

// why says why a key is good no more; nil is that it is good.
func why(k api.Key, at time.Time) error {
	switch {
	case k.RevokedAt != nil:
		return api.Errorf(api.CodeUnauthenticated, "the key %s was revoked", k.ID).WithHint("ask the operator for another")
	case k.ExpiresAt != nil && !at.Before(*k.ExpiresAt):
		return expired(k)
	}
	return nil
}

func expired(k api.Key) error {
	return api.Errorf(api.CodeUnauthenticated, "the key %s expired at %s", k.ID, k.ExpiresAt.Format(time.RFC3339)).
		WithHint("ask the operator for another")
}

// Get tells of one key.
func (s *Store) Get(id string) (api.Key, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.keys[id]
	if r == nil {
		return api.Key{}, missing(id)
	}
	return r.look(), nil
}

// Live is Get of a key that callers may still use. Others are api.CodeUnauthenticated.
func (s *Store) Live(id string) (api.Key, error) {
	k, err := s.Get(id)
	if err != nil {
		return k, api.Errorf(api.CodeUnauthenticated, "the key %q is no longer known", ClipID(id)).WithHint("ask the operator for another")
	}
	return k, why(k, now())
}

// missing repeats no more than an id has: a caller may have sent the key instead.
func missing(id string) error {
	return api.Errorf(api.CodeNotFound, "there is no key %q", ClipID(id)).WithHint("cloche key ls lists the ones that exist")
}

// List tells of every key, newest first.
func (s *Store) List() []api.Key {
	s.mu.RLock()
	out := make([]api.Key, 0, len(s.keys))
	for _, r := range s.keys {
		out = append(out, r.look())
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b api.Key) int { return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	return out
}

// look is the record with its last use.
func (r *record) look() api.Key {
	k := r.key
	if ms := r.used.Load(); ms > 0 {
		k.LastUsedAt = new(time.UnixMilli(ms).UTC())
	}
	return k
}

// Revoke ends a key at once, and with it what is done by it. One that was revoked
// before stays as it is. An error that is not of a missing key says that the
// revocation is in force and could not be written: it would be lost with this
// process.
func (s *Store) Revoke(id string) (api.Key, error) {
	s.mu.Lock()
	r := s.keys[id]
	if r == nil {
		s.mu.Unlock()
		return api.Key{}, missing(id)
	}
	if r.key.RevokedAt == nil {
		r.key.RevokedAt = new(now())
		r.end(why(r.key, now()))
		r.stop()
	}
	k := r.look()
	s.mu.Unlock()
	return k, s.save()
}

// Close writes the times of last use. Keys go on being known.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writers.Wait()
	err := s.save()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.keys {
		r.stop() // its timer
	}
	return err
}

// save writes every key to the disk.
func (s *Store) save() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.savedAt.Store(now().UnixMilli())
	s.mu.RLock()
	out := make([]stored, 0, len(s.keys))
	for _, r := range s.keys {
		out = append(out, stored{Key: r.look(), Hash: r.hash})
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b stored) int { return cmp.Compare(a.Key.ID, b.Key.ID) })
	return s.file.save(out)
}

// saveUse writes the times of last use where that is due. No request waits for it,
// and a failure loses only those times.
func (s *Store) saveUse(at time.Time) {
	last := s.savedAt.Load()
	if at.UnixMilli()-last < useEvery.Milliseconds() || !s.savedAt.CompareAndSwap(last, at.UnixMilli()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.writers.Go(func() { _ = s.save() })
	}
}

var errNoHash = errors.New("it is no hash")
