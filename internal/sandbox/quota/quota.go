// Package quota watches the workspaces whose bounds no kernel enforces.
package quota

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// The kernel does not enforce the limit of such a private workspace, so the daemon watches it. One
// goroutine asks the filesystem of all workspaces for its free space, which takes some
// microseconds. A workspace cannot have grown by more than the filesystem has lost, plus what
// others have freed in the meantime. Only a workspace that may exceed its limit by that is counted,
// and occasionally each one in a filesystem that changes.
const (
	// spaceSlow and spaceFast are how often the filesystem is asked: the less is left until
	// a bound may be passed, the more often.
	spaceSlow, spaceFast = time.Second, 20 * time.Millisecond
	// spaceRate is how many bytes a second a sandbox is taken to write at most, and
	// spaceFiles how many files it makes.
	spaceRate, spaceFiles = 4 << 30, 200_000
	// spaceAge is after what time a workspace is counted again at the latest, while
	// something changes in its filesystem.
	spaceAge = 10 * time.Second
	// spaceShare and spaceAgeShare bound the time that goes into counting one workspace:
	// one part of so many, when it may be over its bound and otherwise.
	spaceShare, spaceAgeShare = 4, 100
	// maxSpaceWalks is how many are counted at once.
	maxSpaceWalks = 2
)

// State is what is known of the space that a workspace takes. The zero value is that nothing is known. It
// is safe for concurrent use.
type State struct {
	mu sync.Mutex
	// counting means that a goroutine counts it now, since begun.
	counting bool
	begun    time.Time
	known    bool
	// used was counted while the filesystem had left what before says.
	used   workspace.Bounds
	before workspace.Space
	// at is when that was, and took how long it took.
	at   time.Time
	took time.Duration
	// told: it was reported that it cannot be counted.
	told bool
}

// Watches reports whether a workspace has a bound that the watch holds.
func Watches(ws api.Workspace) bool {
	own := ws.Name == "" && ws.Dir == "" && !ws.Volume && !ws.ReadOnly
	return own && (ws.Enforced == api.HeldByWatch || ws.Enforced == api.HeldByMeasure)
}

// BoundsOf returns the bounds that the watch holds. A bound that is measured before and after
// each command is not held while one runs: then all of the disk is.
func BoundsOf(info api.Sandbox) workspace.Bounds {
	if info.Workspace.Enforced == api.HeldByMeasure {
		if info.Limits.DiskBytes == 0 {
			return workspace.Bounds{}
		}
		return workspace.Bounds{SizeBytes: max(info.Limits.DiskBytes, info.Workspace.SizeBytes)}
	}
	return workspace.Bounds{SizeBytes: info.Workspace.SizeBytes, Inodes: info.Workspace.Inodes}
}

// Sandbox is what the watch needs of a sandbox. Its methods are safe for concurrent use.
type Sandbox interface {
	ID() string
	Running() bool
	// Bounds returns the bounds of the workspace, and whether they are watched now.
	Bounds() (_ workspace.Bounds, watched bool)
	// Count counts what the workspace takes. The error is an api.Error with a quota if that is over limit.
	Count(limit workspace.Bounds) (workspace.Taken, error)
	// Exceeded stops the sandbox, whose workspace is over its bounds.
	Exceeded(err *api.Error)
}

// Options are what a [Watch] works with.
type Options struct {
	// Context ends when the watch is over.
	Context context.Context //nolint:containedctx // the watch lives as long
	// Background runs a function that the owner waits for; it reports false, and runs nothing, when the
	// owner closes.
	Background func(func()) (runs bool)
	Logger     *slog.Logger
	// Dir is in the filesystem of all watched workspaces.
	Dir string
	// Sandboxes are the sandboxes, with what is known of their workspaces.
	Sandboxes func() iter.Seq2[Sandbox, *State]
}

// Watch holds the bounds of workspaces. It is safe for concurrent use.
type Watch struct {
	o Options
	// wake makes the watch look now, and walks bounds how many workspaces are counted at once.
	wake, walks chan struct{}
}

// New returns a watch, which [Watch.Run] runs.
func New(o Options) *Watch {
	return &Watch{o: o, wake: make(chan struct{}, 1), walks: make(chan struct{}, maxSpaceWalks)}
}

// Run watches the workspaces until the context of the options ends. It sleeps while none is watched, or
// all are paused.
func (w *Watch) Run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Stop()
		if next := w.look(); next > 0 {
			timer.Reset(next)
		}
		select {
		case <-w.o.Context.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// look has those counted that may be over their bounds, and says when to look
// again; 0 is when it is woken.
func (w *Watch) look() (next time.Duration) {
	var left workspace.Space
	for s, t := range w.o.Sandboxes() {
		limit, watched := s.Bounds()
		if !watched {
			continue
		}
		if next == 0 {
			next = spaceSlow
			var err error
			if left, err = workspace.SpaceAt(w.o.Dir); err != nil {
				w.o.Logger.Error("the bounds of workspaces are not held now", "error", err)
				return next
			}
		}
		next = min(next, w.lookAt(s, t, limit, left))
	}
	return next
}

// lookAt has one counted if that is due, and says when to look again.
func (w *Watch) lookAt(s Sandbox, t *State, limit workspace.Bounds, left workspace.Space) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	bytes, files := t.left(limit, left)
	if t.counting { // it wakes the watch when it is done
		if t.known && time.Since(t.begun) > spaceSlow && (bytes < -limit.SizeBytes || files < -limit.Inodes) {
			// It was made so that it cannot be counted in time.
			w.o.Background(func() { s.Exceeded(workspace.Unseen(limit)) })
		}
		return spaceSlow / 4
	}
	since := time.Since(t.at)
	due := !t.known
	switch {
	case due:
	case bytes <= 0 || files <= 0:
		if wait := spaceShare*t.took - since; wait > 0 {
			return max(wait, spaceFast)
		}
		due = true
	case left != t.before && since > max(spaceAge, spaceAgeShare*t.took):
		due = true
	}
	if due {
		t.begun = time.Now()
		t.counting = w.o.Background(func() { w.count(s, t, limit) })
		return spaceSlow / 4
	}
	return min(max(time.Duration(float64(bytes)/spaceRate*float64(time.Second)), spaceFast),
		max(time.Duration(float64(files)/spaceFiles*float64(time.Second)), spaceFast), spaceSlow)
}

// left returns how much can be written before a limit can be exceeded. The caller holds t.mu.
func (t *State) left(limit workspace.Bounds, left workspace.Space) (bytes, files int64) {
	bytes, files = spaceRate, spaceFiles
	if limit.SizeBytes > 0 {
		bytes = limit.SizeBytes - t.used.SizeBytes - (t.before.FreeBytes - left.FreeBytes)
	}
	if limit.Inodes > 0 {
		files = limit.Inodes - t.used.Inodes - (t.before.FreeInodes - left.FreeInodes)
	}
	return bytes, files
}

// count counts what a workspace takes, and stops its sandbox if that is too much.
func (w *Watch) count(s Sandbox, t *State, limit workspace.Bounds) {
	defer w.Wake()
	select {
	case w.walks <- struct{}{}:
	case <-w.o.Context.Done():
		return
	}
	defer func() { <-w.walks }()
	begun := time.Now()
	left, err := workspace.SpaceAt(w.o.Dir)
	var taken workspace.Taken
	if err == nil {
		taken, err = s.Count(limit)
	}
	over, _ := errors.AsType[*api.Error](err)
	t.mu.Lock()
	t.counting, t.at, t.took = false, time.Now(), time.Since(begun)
	switch {
	case over != nil && over.Quota != nil:
	case err != nil || taken.Partial:
		if !t.told && w.o.Context.Err() == nil && s.Running() {
			t.told = true
			w.o.Logger.Warn("a part of a workspace cannot be counted; only what its filesystem loses is held against its bound", "sandbox", s.ID(), "error", err)
		}
		// What cannot be seen is taken to be what the filesystem has lost since it could.
		if !t.known {
			t.known, t.used, t.before = true, taken.Bounds, left
		} else if bytes, files := t.left(limit, left); bytes <= 0 || files <= 0 {
			over = workspace.Unseen(limit)
		}
	default:
		t.known, t.used, t.before, t.told = true, taken.Bounds, left, false
	}
	t.mu.Unlock()
	if over != nil && over.Quota != nil && w.o.Context.Err() == nil {
		s.Exceeded(over)
	}
}

// Begin notes that the workspace of a new sandbox is empty, and what its filesystem has left.
func (w *Watch) Begin(t *State) {
	left, err := workspace.SpaceAt(w.o.Dir)
	if err != nil {
		return // it is counted
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.before, t.at = true, left, time.Now()
}

// Wake makes the watch look now.
func (w *Watch) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
