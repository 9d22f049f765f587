package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
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
	// spaceReserve is the part of a filesystem, one of so many, that a workspace which was
	// over its bound must leave free: one that does not is removed.
	spaceReserve = 20
)

// space is what is known of what a workspace takes. The zero value is nothing.
type space struct {
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
	// told: it was told that it cannot be counted.
	told bool
}

// isWatched is true for a workspace whose bound this Manager holds.
func isWatched(ws api.Workspace) bool {
	own := ws.Name == "" && ws.Dir == "" && !ws.Volume && !ws.ReadOnly
	return own && (ws.Enforced == api.HeldByWatch || ws.Enforced == api.HeldByMeasure)
}

// watchedBounds are those that the watch holds. A bound that is measured before and after
// each command is not held while one runs: then all of the disk is.
func watchedBounds(info api.Sandbox) workspace.Bounds {
	if info.Workspace.Enforced == api.HeldByMeasure {
		if info.Limits.DiskBytes == 0 {
			return workspace.Bounds{}
		}
		return workspace.Bounds{SizeBytes: max(info.Limits.DiskBytes, info.Workspace.SizeBytes)}
	}
	return workspace.Bounds{SizeBytes: info.Workspace.SizeBytes, Inodes: info.Workspace.Inodes}
}

// watchSpace looks at the workspaces that are watched until the Manager closes. While none
// is, or all are paused, it sleeps.
func (m *Manager) watchSpace() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Stop()
		if next := m.lookAtSpace(); next > 0 {
			timer.Reset(next)
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.spaceWake:
		case <-timer.C:
		}
	}
}

// lookAtSpace has those counted that may be over their bounds, and says when to look
// again; 0 is when it is woken.
func (m *Manager) lookAtSpace() (next time.Duration) {
	var left workspace.Space
	for _, s := range m.all() {
		s.mu.Lock()
		limit := watchedBounds(s.info)
		watched := s.info.State == api.StateRunning && isWatched(s.info.Workspace) && s.excess == nil && limit.Any()
		s.mu.Unlock()
		if !watched {
			continue
		}
		if next == 0 {
			next = spaceSlow
			var err error
			if left, err = workspace.SpaceAt(m.sandboxesDir()); err != nil {
				m.log.Error("the bounds of workspaces are not held now", "error", err)
				return next
			}
		}
		next = min(next, m.lookAtOne(s, limit, left))
	}
	return next
}

// lookAtOne has one counted if that is due, and says when to look again.
func (m *Manager) lookAtOne(s *live, limit workspace.Bounds, left workspace.Space) time.Duration {
	t := &s.space
	t.mu.Lock()
	defer t.mu.Unlock()
	bytes, files := t.room(limit, left)
	if t.counting { // it wakes the watch when it is done
		if t.known && time.Since(t.begun) > spaceSlow && (bytes < -limit.SizeBytes || files < -limit.Inodes) {
			// It was made so that it cannot be counted in time.
			m.background(func() { m.overfull(s, workspace.Unseen(limit)) })
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
		t.counting = m.background(func() { m.countSpace(s, limit) })
		return spaceSlow / 4
	}
	return min(max(time.Duration(float64(bytes)/spaceRate*float64(time.Second)), spaceFast),
		max(time.Duration(float64(files)/spaceFiles*float64(time.Second)), spaceFast), spaceSlow)
}

// room returns how much can be written before a limit can be exceeded. The caller holds t.mu.
func (t *space) room(limit workspace.Bounds, left workspace.Space) (bytes, files int64) {
	bytes, files = spaceRate, spaceFiles
	if limit.SizeBytes > 0 {
		bytes = limit.SizeBytes - t.used.SizeBytes - (t.before.FreeBytes - left.FreeBytes)
	}
	if limit.Inodes > 0 {
		files = limit.Inodes - t.used.Inodes - (t.before.FreeInodes - left.FreeInodes)
	}
	return bytes, files
}

// countSpace counts what a workspace takes, and stops its sandbox if that is too much.
func (m *Manager) countSpace(s *live, limit workspace.Bounds) {
	defer m.wakeSpace()
	t := &s.space
	select {
	case m.spaceWalks <- struct{}{}:
	case <-m.ctx.Done():
		return
	}
	defer func() { <-m.spaceWalks }()
	begun := time.Now()
	left, err := workspace.SpaceAt(m.sandboxesDir())
	var taken workspace.Taken
	if err == nil {
		taken, err = m.take(s, limit)
	}
	over, _ := errors.AsType[*api.Error](err)
	t.mu.Lock()
	t.counting, t.at, t.took = false, time.Now(), time.Since(begun)
	switch {
	case over != nil && over.Quota != nil:
	case err != nil || taken.Partial:
		if !t.told && m.ctx.Err() == nil && s.snapshot().State == api.StateRunning {
			t.told = true
			m.log.Warn("a part of a workspace cannot be counted; only what its filesystem loses is held against its bound", "sandbox", s.id, "error", err)
		}
		// What cannot be seen is taken to be what the filesystem has lost since it could.
		if !t.known {
			t.known, t.used, t.before = true, taken.Bounds, left
		} else if bytes, files := t.room(limit, left); bytes <= 0 || files <= 0 {
			over = workspace.Unseen(limit)
		}
	default:
		t.known, t.used, t.before, t.told = true, taken.Bounds, left, false
	}
	t.mu.Unlock()
	if over != nil && over.Quota != nil && m.ctx.Err() == nil {
		m.overfull(s, over)
	}
}

// beginSpace notes that a workspace is empty, and what its filesystem has left.
func (m *Manager) beginSpace(s *live) {
	left, err := workspace.SpaceAt(m.sandboxesDir())
	if err != nil {
		return // it is counted
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	s.space.known, s.space.before, s.space.at = true, left, time.Now()
}

func (m *Manager) wakeSpace() {
	select {
	case m.spaceWake <- struct{}{}:
	default:
	}
}

// take counts the workspace and the layer over it.
func (m *Manager) take(s *live, limit workspace.Bounds) (workspace.Taken, error) {
	dir, err := m.workspaceOf(s)
	if err != nil {
		return workspace.Taken{}, err
	}
	defer dir.Close()
	dirs := []*workspace.Dir{dir}
	if s.snapshot().Workspace.Layered {
		layer, err := workspace.OpenDir(s.layerPath())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return workspace.Taken{}, err
		}
		if err == nil {
			defer layer.Close()
			dirs = append(dirs, layer)
		}
	}
	return workspace.Take(m.ctx, limit, dirs, m.processesOf(s))
}

// processesOf are the processes of the host that may hold files of a sandbox.
func (m *Manager) processesOf(s *live) []int {
	s.mu.Lock()
	held, ok := s.inst.(engine.FileHolder)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.ctx, callTimeout)
	defer cancel()
	pids, err := held.FileHolders(ctx)
	if err != nil {
		m.log.Debug("list who has files of a sandbox", "sandbox", s.id, "error", err)
	}
	return pids
}

// overfull stops a sandbox whose workspace holds more than it may, at once: a grace would
// be time to write more. What it wrote is kept, unless the disk is about to be full.
func (m *Manager) overfull(s *live, over *api.Error) {
	over.Quota.Phase = api.QuotaDuring
	over.TerminalReason = api.EndedQuota
	over.Message += ", so the sandbox was stopped; limits.disk_bytes and workspace.size_bytes allow more"
	s.mu.Lock()
	if s.excess != nil || s.info.State != api.StateRunning {
		s.mu.Unlock()
		return
	}
	s.excess = over
	s.info.TerminalReason = api.EndedQuota
	s.mu.Unlock()
	m.log.Warn("stop a sandbox for what its workspace holds", "sandbox", s.id, "error", over)
	w := why{cause: api.EndedQuota, text: over.Message}
	if left, err := workspace.SpaceAt(m.sandboxesDir()); err == nil && left.FreeBytes < left.TotalBytes/spaceReserve {
		w.text = fmt.Sprintf("%s, and left %d bytes of the disk free", over.Message, left.FreeBytes)
		if _, err := m.remove(m.ctx, s, w); err != nil {
			m.log.Error("remove a sandbox that has filled the disk; it is being retried", "sandbox", s.id, "error", err)
		}
		return
	}
	if _, err := m.end(m.ctx, s, w, nil); err != nil {
		m.log.Error("stop a sandbox for what its workspace holds; it is being retried", "sandbox", s.id, "error", err)
	}
}
