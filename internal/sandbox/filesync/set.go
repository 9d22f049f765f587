package filesync

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/internal/workspace"
)

// interval is how often the copies of a sandbox in use are synchronized. They are synchronized before a
// program starts and after it ended, too.
const interval = 3 * time.Second

// Set is the copies of one sandbox. The zero value has none. It is safe for concurrent use after the last
// Add.
type Set struct {
	// Told is called with the report of each sync that did or left out something. Required.
	Told func(target string, r Report)

	list []*Copy
	dirs []workspace.Attached
	used atomic.Bool
	// running is held by a sync.
	running sync.Mutex
}

// Add adds a directory, which it takes over. State is a directory for files of the Set's own.
func (s *Set) Add(state string, dir *workspace.Dir, target string, readOnly bool) error {
	defer dir.Close()
	root, err := dir.Root()
	if err != nil {
		return err
	}
	o := Options{Root: root, Target: target, ReadOnly: readOnly, UID: -1, GID: -1, Path: filepath.Join(state, "copy-"+strconv.Itoa(len(s.list))+".json")}
	if os.Geteuid() == 0 {
		uid, gid := dir.Owner()
		o.UID, o.GID = int(uid), int(gid)
	}
	c, err := New(o)
	if err != nil {
		return errors.Join(err, root.Close())
	}
	s.list, s.dirs = append(s.list, c), append(s.dirs, dir.AttachedAs(target, readOnly))
	return nil
}

// Reopen adds the directories of an earlier Set.
func (s *Set) Reopen(state string, dirs []workspace.Attached) error {
	for _, d := range dirs {
		dir, err := d.Open()
		if err == nil {
			err = s.Add(state, dir, d.Target, d.ReadOnly)
		}
		if err != nil {
			return fmt.Errorf("open the directory of the copy at %s: %w", d.Target, err)
		}
	}
	return nil
}

// Dirs are the directories of the Set.
func (s *Set) Dirs() []workspace.Attached { return s.dirs }

// Len is how many copies there are.
func (s *Set) Len() int { return len(s.list) }

// Use notes that the sandbox is in use.
func (s *Set) Use() { s.used.Store(true) }

// Fill carries every directory into the new sandbox.
func (s *Set) Fill(ctx context.Context, a Agent) error { return s.each(ctx, a, (*Copy).Fill) }

// Sync synchronizes every copy, or without all those whose directory has changed on this machine.
func (s *Set) Sync(ctx context.Context, a Agent, all bool) error {
	if all {
		return s.each(ctx, a, (*Copy).Sync)
	}
	return s.each(ctx, a, (*Copy).Refresh)
}

func (s *Set) each(ctx context.Context, a Agent, do func(*Copy, context.Context, Agent) (Report, error)) error {
	s.running.Lock()
	defer s.running.Unlock()
	var errs []error
	for _, c := range s.list {
		rep, err := do(c, ctx, a)
		if rep.In+rep.Out+len(rep.Skipped)+len(rep.Conflicts) > 0 {
			s.Told(c.o.Target, rep)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("synchronize %s: %w", c.o.Target, err))
		}
	}
	return errors.Join(errs...)
}

// Keep calls sync again and again while the sandbox is in use, or busy says that a program runs, until
// ctx ends or ended is closed. What fails is tried again.
func (s *Set) Keep(ctx context.Context, ended <-chan struct{}, busy func() bool, sync func(context.Context) error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
		if (s.used.Swap(false) || busy()) && sync(ctx) != nil {
			s.used.Store(true)
		}
	}
}

// Close lets go of the directories.
func (s *Set) Close() {
	for _, c := range s.list {
		_ = c.o.Root.Close()
	}
}
