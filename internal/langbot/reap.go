package langbot

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

// drop takes a session out, and then ends its sandbox.
func (s *Server) drop(ctx context.Context, x *session) {
	s.mu.Lock()
	if s.sessions[x.physical] != x {
		s.mu.Unlock()
		return
	}
	delete(s.sessions, x.physical)
	s.closing++
	var relays []*relay
	for _, m := range x.processes {
		if m.relay != nil {
			relays = append(relays, m.relay)
		}
	}
	s.mu.Unlock()
	for _, r := range relays {
		r.end(websocket.StatusNormalClosure, "the session was deleted")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	err := s.core.Remove(ctx, x.place.caller(), x.sandbox)
	if err != nil && api.CodeOf(err) != api.CodeNotFound {
		s.log.Error("end the sandbox of a session; core tries it again", "session", x.physical, "error", err)
	}
	if err := s.store.remove(x.physical); err != nil {
		s.log.Error("forget a session", "session", x.physical, "error", err)
	}
	s.mu.Lock()
	s.closing--
	s.mu.Unlock()
}

// dropAll ends all sessions of a kind, each behind what is being done to it, if it is of
// that kind then.
func (s *Server) dropAll(ctx context.Context, which func(*session) bool) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	turn := make(chan struct{}, dropsAtOnce)
	for _, x := range all {
		if !which(x) {
			continue
		}
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			unlock, err := s.ops.lock(ctx, x.physical)
			if err != nil {
				return
			}
			defer unlock()
			if which(x) {
				s.drop(ctx, x)
			}
		})
	}
}

// dropIdle ends the sessions that were not used for too long, except those with an
// operation under way: its caller may hold another.
func (s *Server) dropIdle(ctx context.Context, cfg *settings) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	for _, x := range all {
		if !s.idle(x, cfg) {
			continue
		}
		unlock, ok := s.ops.try(x.physical)
		if !ok {
			continue
		}
		if s.idle(x, cfg) {
			s.drop(ctx, x)
		}
		unlock()
	}
}

// idle reports whether a session may be ended because it was not used for too long.
func (s *Server) idle(x *session, cfg *settings) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.spec.Persistent || x.active > 0 || time.Since(x.used) < cfg.ttl {
		return false
	}
	for _, m := range x.processes {
		if !m.ended {
			return false
		}
	}
	return true
}

// dropsAtOnce bounds how many sandboxes are ended at the same time.
const dropsAtOnce = 8

// reap ends unused sessions until the server ends.
func (s *Server) reap() {
	every := time.NewTicker(reapEvery)
	defer every.Stop()
	for {
		select {
		case <-s.live.Done():
			return
		case <-every.C:
			s.reapOnce(s.live)
		}
	}
}

func (s *Server) reapOnce(ctx context.Context) {
	cfg := s.settings()
	now := time.Now()
	s.refresh(ctx)
	s.dropAll(ctx, func(x *session) bool { return s.idle(x, cfg) })
	s.expireGrants(ctx, now)
	s.forgetEnded(ctx, cfg, now)
}

// recover finds the sessions of an earlier runtime. One whose sandbox is gone is
// forgotten.
func (s *Server) recover(ctx context.Context) {
	records, err := s.store.all()
	if err != nil {
		s.log.Error("read the sessions of an earlier runtime", "error", err)
	}
	for _, r := range records {
		x := &session{
			physical: r.Physical, asked: r.Asked, place: r.Place, spec: r.Spec, sandbox: r.Sandbox, engine: r.Engine,
			created: r.Created, used: time.Now(), processes: map[string]*managed{}, adjusted: r.Adjusted, unenforced: r.Unenforced,
		}
		sb, err := s.core.Get(ctx, r.Place.caller(), r.Sandbox)
		if err != nil || sb.State != api.StateRunning && !sb.State.Held() && !x.startable(sb.State) {
			s.log.Info("a session of an earlier runtime is gone", "session", r.Physical, "state", sb.State)
			// One that failed is kept, because its data may be needed: a user can
			// remove it by name.
			if sb.State != api.StateFailed {
				_ = s.core.Remove(ctx, r.Place.caller(), r.Sandbox)
			}
			if err := s.store.remove(r.Physical); err != nil {
				s.log.Error("forget a session", "session", r.Physical, "error", err)
			}
			continue
		}
		for _, p := range r.Processes {
			x.processes[p.ID] = &managed{rec: p, next: fromEnd}
		}
		s.fence.recovered(r.Place)
		s.sessions[r.Physical] = x
	}
	if len(s.sessions) > 0 {
		s.log.Info("found sessions of an earlier runtime", "sessions", len(s.sessions))
	}
}
