//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pool"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// The kinds of the pool are kept in a file, so that the next daemon has sandboxes ready before its first request.
const (
	kindsFile = "kinds.json"
	// maxKnown bounds how many are kept, the last used; maxKinds is more than a file of these has, in bytes.
	maxKnown      = 16
	maxKindsBytes = 1 << 20
	// knownFor is how long a kind is kept that is not used, and notedFor how long its last use may be off.
	knownFor = 24 * time.Hour
	notedFor = 10 * time.Minute
)

// known is a kind as it is kept. The plan has nothing of a request.
type known struct {
	Plan   engine.Plan `json:"plan"`
	Dirs   int         `json:"slot_dirs,omitempty"`
	Files  int         `json:"slot_files,omitempty"`
	Points string      `json:"mount_points,omitempty"`
	Floor  int         `json:"floor,omitempty"`
	Upto   int         `json:"ceiling"`
	UsedAt time.Time   `json:"used_at"`
}

// kinds keeps the file. It is safe for concurrent use.
type kinds struct {
	dir string

	mu    sync.Mutex
	noted map[bootedKind]time.Time
}

// note keeps a kind, unless it was kept just before.
func (s *kinds) note(k bootedKind, p engine.Plan, size pool.Size) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.noted[k]) < notedFor {
		return nil
	}
	is := known{Plan: p, Dirs: k.slots.dirs, Files: k.slots.files, Points: k.points, Floor: size.Floor, Upto: size.Ceiling, UsedAt: now}
	all := slices.DeleteFunc(s.read(), func(other known) bool { return other.same(is) || now.Sub(other.UsedAt) > knownFor })
	all = append([]known{is}, all...)
	b, err := json.Marshal(all[:min(len(all), maxKnown)])
	if err != nil {
		return err
	}
	if err := hostfile.ReplaceIn(s.dir, kindsFile, b); err != nil {
		return err
	}
	if s.noted == nil {
		s.noted = map[bootedKind]time.Time{}
	}
	s.noted[k] = now
	return nil
}

// same reports whether two are kept of one kind.
func (k known) same(other known) bool {
	a, aerr := json.Marshal(k.Plan)
	b, berr := json.Marshal(other.Plan)
	return aerr == nil && berr == nil && string(a) == string(b) && k.Dirs == other.Dirs && k.Files == other.Files && k.Points == other.Points
}

// read reads the file; a file that is missing or damaged has no kinds.
func (s *kinds) read() []known {
	f, err := os.Open(filepath.Join(s.dir, kindsFile))
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKindsBytes))
	if err != nil {
		return nil
	}
	var all []known
	if json.Unmarshal(b, &all) != nil {
		return nil
	}
	return all
}

// PrepareKnown has sandboxes ready of the kinds that an owner's last daemon used, without waiting for them. They
// are of no use with another agent than image returns.
func (e *Engine) PrepareKnown(owner string, image func() (string, error)) error {
	all := e.kinds.read()
	if len(all) == 0 {
		return nil
	}
	agent, err := image()
	if err != nil {
		return err
	}
	for _, is := range all {
		p := is.Plan
		if p.Owner != owner || p.Agent.Image != agent || time.Since(is.UsedAt) > knownFor || p.Validate() != nil {
			continue
		}
		k, ok := e.kindOf(p)
		k.slots, k.points = slots{is.Dirs, is.Files}, is.Points
		if !ok || k.slots != (slots{}) && !e.late.usable() {
			continue
		}
		e.booted.Prepare(k, e.demandBooted(k, p, engine.Pool{Floor: is.Floor, Ceiling: is.Upto}))
	}
	return nil
}

// demandBooted asks for sandboxes of a kind, which boot as p says.
func (e *Engine) demandBooted(k bootedKind, p engine.Plan, of engine.Pool) pool.Demand[*booted] {
	size := pool.Size{Floor: of.Floor, Ceiling: of.Ceiling}
	return pool.Demand[*booted]{User: of.User, Size: size, Make: func(ctx context.Context, name string) (*booted, error) {
		b, err := e.bootAhead(ctx, name, k, p)
		if err != nil {
			return nil, err
		}
		if err := e.kinds.note(k, p, size); err != nil {
			e.log.Warn("the next daemon will not know what to have ready", "error", err)
		}
		return b, nil
	}}
}
