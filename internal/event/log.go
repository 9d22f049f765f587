package event

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Log is the list. It is safe for any number of goroutines.
//
// What was published survives the death of the daemon. It is not synced to the
// disk one by one: when the whole machine stops, the last events can be lost.
// Their cursors are not used again even then.
type Log struct {
	maxEvents int
	maxEach   int
	maxAge    time.Duration
	clean     func(api.Event) api.Event

	publishing sync.Mutex // held by Publish and Close for their whole time
	file       *file      // nil keeps the list in memory only

	mu sync.RWMutex // changed under publishing and mu
	// events are those that are kept, oldest first, with growing cursors.
	events []api.Event
	// counts is how many of them each owner has.
	counts map[string]int
	// last is the last cursor that was used.
	last   int64
	err    error
	closed bool
	// wake is closed when something changes that a reader waits for.
	wake    chan struct{}
	waiting atomic.Bool // a reader may hold wake
}

// Open opens the list. After a crash it finds every whole line; what is damaged
// is left out, and readers see that cursors are missing.
func Open(o Options) (*Log, error) {
	if o.MaxEvents < 0 || o.MaxEach < 0 || o.MaxAge < 0 {
		return nil, fmt.Errorf("open events: a negative bound (%d events, %d of each, %s)", o.MaxEvents, o.MaxEach, o.MaxAge)
	}
	if o.MaxEvents == 0 {
		o.MaxEvents = defaultMaxEvents
	}
	if o.MaxAge == 0 {
		o.MaxAge = defaultMaxAge
	}
	if o.MaxEach == 0 {
		o.MaxEach = max(o.MaxEvents/5, 1)
	}
	l := &Log{maxEvents: o.MaxEvents, maxEach: o.MaxEach, maxAge: o.MaxAge, clean: o.Clean, counts: map[string]int{}, wake: make(chan struct{})}
	if o.Path == "" {
		return l, nil
	}
	f, kept, err := openFile(o.Path, o.MaxEvents, o.MaxEach)
	if err != nil {
		return nil, fmt.Errorf("open events: %w", err)
	}
	l.file, l.events, l.last = f, kept, f.last
	for _, e := range kept {
		l.counts[owner(e)]++
	}
	l.age(time.Now())
	// Events that have aged out must not stay in the file if few events follow.
	if f.torn || f.lines > 2*len(l.events)+slack {
		l.err = f.rewrite(l.events, l.last)
	}
	return l, nil
}

// Publish adds an event: it gives it the next cursor and, where it has none, the
// present time, and cuts what is too long. Readers never hold it up. An event
// that cannot be written is kept in memory, and Err says so; it is written when
// the disk works again. After Close nothing happens.
func (l *Log) Publish(e api.Event) {
	l.publishing.Lock()
	defer l.publishing.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	if l.clean != nil {
		e = l.clean(e)
	}
	e = bounded(e)
	if e.Time.IsZero() {
		e.Time = sane(now)
	}
	e.Cursor = l.last + 1

	l.mu.Lock()
	l.last = e.Cursor
	l.events = append(l.events, e)
	l.counts[owner(e)]++
	if o := owner(e); o != fixture {
		l.thin(o)
	}
	l.drop(len(l.events) - l.maxEvents)
	l.age(now)
	if l.waiting.Swap(false) {
		close(l.wake)
		l.wake = make(chan struct{})
	}
	l.mu.Unlock()

	if l.file == nil {
		return
	}
	// Only publishers change the list, so it can be read without mu here.
	err := l.file.add(e, l.events, l.maxEvents, now)
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
}

// drop forgets the n oldest. Readers have copies.
func (l *Log) drop(n int) {
	if n <= 0 {
		return
	}
	for _, e := range l.events[:n] {
		l.uncount(owner(e), 1)
	}
	clear(l.events[:n])
	l.events = l.events[n:]
}

func (l *Log) uncount(owner string, n int) {
	if l.counts[owner] -= n; l.counts[owner] <= 0 {
		delete(l.counts, owner)
	}
}

// thin forgets the oldest events of an owner that has too many. It does so for
// some at a time: it looks at the whole list.
func (l *Log) thin(owner string) {
	if l.counts[owner] <= l.maxEach+l.maxEach/8 {
		return
	}
	before := len(l.events)
	l.events = thinned(l.events, map[string]int{owner: l.counts[owner]}, l.maxEach)
	l.uncount(owner, before-len(l.events))
}

// thinned is the list without the oldest events of the owners who have more than
// each, of those who are counted.
func thinned(events []api.Event, counts map[string]int, each int) []api.Event {
	return slices.DeleteFunc(events, func(e api.Event) bool {
		o := owner(e)
		if o == fixture || counts[o] <= each {
			return false
		}
		counts[o]--
		return true
	})
}

// daemon is the owner of what the daemon tells of itself, its images and its rules. No
// caller can fill the list with it, so it has no share of its own.
const fixture = ""

// owner is whose event e is.
func owner(e api.Event) string {
	if e.Sandbox != "" {
		return "sandbox " + e.Sandbox
	}
	if e.Tenant == "" {
		return fixture
	}
	return "tenant " + e.Tenant
}

// age forgets what is older than MaxAge.
func (l *Log) age(now time.Time) {
	l.drop(l.aged(now))
}

// aged counts the oldest events that are older than MaxAge.
func (l *Log) aged(now time.Time) int {
	cutoff := now.Add(-l.maxAge)
	n := slices.IndexFunc(l.events, func(e api.Event) bool { return e.Time.After(cutoff) })
	if n < 0 {
		return len(l.events)
	}
	return n
}

// Err is why the last events are not on disk; nil while they are.
func (l *Log) Err() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.err
}

// Close writes down the last cursor and syncs; readers that follow end with
// fs.ErrClosed. It is idempotent.
func (l *Log) Close() error {
	l.publishing.Lock()
	defer l.publishing.Unlock()
	l.mu.Lock()
	was := l.closed
	l.closed = true
	if l.waiting.Swap(false) {
		close(l.wake)
		l.wake = make(chan struct{})
	}
	l.mu.Unlock()
	if was || l.file == nil {
		return nil
	}
	if err := l.file.close(l.events, l.last); err != nil {
		return fmt.Errorf("close events: %w", err)
	}
	return nil
}

// slack is how many lines a file may have beside its events before it is
// written anew at Open.
const slack = 64

// batch is how many events a reader takes at once.
const batch = 128

// Read calls fn with every kept event after o.After that o chooses and sees
// allows; a nil sees allows all. What an event points to is shared and must not
// be changed. With o.Follow it goes on with what happens next until ctx ends,
// whose cause is then the error; without, it ends at what there was when it
// began. An error of fn ends it and is returned as it is.
//
// Where cursors between o.After, or the event before, and an event are gone, the
// next event that fn gets says in Missed how many, of any tenant.
func (l *Log) Read(ctx context.Context, o api.EventOptions, sees func(api.Event) bool, fn func(api.Event) error) error {
	prev, until, err := l.begin(o)
	if err != nil {
		return err
	}
	var missed int64
	buf := make([]api.Event, 0, batch)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var wake <-chan struct{}
		buf, wake, err = l.take(buf[:0], prev)
		if err != nil {
			return err
		}
		for _, e := range buf {
			if !o.Follow && e.Cursor > until {
				return nil
			}
			missed += e.Cursor - prev - 1
			prev = e.Cursor
			if !chooses(o, e) || sees != nil && !sees(e) {
				continue
			}
			e.Missed, missed = missed, 0
			if err := fn(e); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		switch {
		case len(buf) > 0:
		case !o.Follow:
			return nil
		default:
			select {
			case <-wake:
			case <-ctx.Done():
			}
		}
	}
}

// begin returns the cursor after which o begins, and the last that there is.
func (l *Log) begin(o api.EventOptions) (prev, until int64, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case o.After > l.last:
		return 0, 0, api.Invalid("after", "after %d: the last event is %d", o.After, l.last).
			WithHint("this cursor is from another home; 0 begins with the oldest event that is kept")
	case o.After > 0:
		return o.After, l.last, nil
	case o.After < 0:
		return l.last, l.last, nil
	}
	if n := l.aged(time.Now()); n < len(l.events) {
		return l.events[n].Cursor - 1, l.last, nil
	}
	return l.last, l.last, nil
}

// take appends to buf what comes after prev, or returns what to wait for.
func (l *Log) take(buf []api.Event, prev int64) ([]api.Event, <-chan struct{}, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	first, _ := slices.BinarySearchFunc(l.events, prev+1, func(e api.Event, c int64) int { return cmp.Compare(e.Cursor, c) })
	first = max(first, l.aged(time.Now()))
	if first == len(l.events) {
		if l.closed {
			return buf, nil, fmt.Errorf("read events: %w", fs.ErrClosed)
		}
		l.waiting.Store(true)
		return buf, l.wake, nil
	}
	return append(buf, l.events[first:min(first+batch, len(l.events))]...), l.wake, nil
}

func chooses(o api.EventOptions, e api.Event) bool {
	if o.Sandbox != "" && o.Sandbox != e.Sandbox && o.Sandbox != e.Name {
		return false
	}
	if o.Endpoint != "" && o.Endpoint != e.Endpoint {
		return false
	}
	return len(o.Kinds) == 0 || slices.Contains(o.Kinds, e.Kind)
}
