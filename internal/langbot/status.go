package langbot

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// probes answers the probes of those who watch the runtime.
type probes struct{ *Server }

// backendInfo is what is told of the engine.
type backendInfo struct {
	Name      *string    `json:"name"`
	Available bool       `json:"available"`
	Reason    string     `json:"reason,omitempty"`
	Readiness *readiness `json:"readiness,omitempty"`
}

func (s *Server) backendInfo(ctx context.Context) backendInfo {
	c := s.choice(ctx)
	b := backendInfo{Available: c.available}
	if c.name != "" {
		b.Name = &c.name
	}
	if !c.available {
		b.Reason = c.reason
	}
	if s.settings().policy.required {
		r := s.readiness(ctx)
		b.Available, b.Readiness = r.Ready, &r
	}
	return b
}

func (s *Server) health(ctx context.Context) (any, error) {
	if !s.settings().policy.required {
		return s.backendInfo(ctx), nil
	}
	r := s.readiness(ctx)
	if !r.Ready {
		return nil, r.notReady()
	}
	return r, nil
}

// statusInfo is the answer of box_status.
type statusInfo struct {
	Backend  backendInfo   `json:"backend"`
	Choice   backendChoice `json:"backend_choice"`
	Sessions int           `json:"active_sessions"`
	Managed  int           `json:"managed_processes"`
	TTLSec   int64         `json:"session_ttl_sec"`
	Limits   limits        `json:"limits"`
	Capacity capacity      `json:"capacity"`
}

// capacity is how many sessions a workspace may have, has, and may still make.
type capacity struct {
	Limit     int `json:"limit"`
	Used      int `json:"used"`
	Remaining int `json:"remaining"`
}

// capacity counts the sessions of a workspace against the bound of the runtime and of the workspace's grant.
func (s *Server) capacity(cfg *settings, p placement) capacity {
	limit := cfg.limits.Sessions
	if cfg.policy.required {
		limit = min(limit, s.grant.sessions(p))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := capacity{Limit: limit}
	for _, x := range s.sessions {
		if x.place == p {
			c.Used++
		}
	}
	c.Remaining = max(0, min(limit-c.Used, cfg.limits.Sessions-len(s.sessions)-s.creating-s.closing))
	return c
}

// backendChoice is the effective value and who set it.
type backendChoice struct {
	Value  string `json:"value"`
	Source string `json:"source"`
}

func (s *Server) status(ctx context.Context, p placement) statusInfo {
	s.refresh(ctx)
	cfg := s.settings()
	out := statusInfo{
		Backend: s.backendInfo(ctx), Choice: backendChoice{cfg.backend, cfg.source}, TTLSec: int64(cfg.ttl.Seconds()), Limits: cfg.limits,
	}
	out.Capacity = s.capacity(cfg, p)
	all := s.of(p)
	out.Sessions = len(all)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range all {
		for _, m := range x.processes {
			if !m.ended {
				out.Managed++
			}
		}
	}
	return out
}

// resources are the counters of the probes.
func (s *Server) resources() map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := 0
	for _, x := range s.sessions {
		for _, m := range x.processes {
			if m.ended {
				ended++
			}
		}
	}
	return map[string]any{
		"event_loop": struct{}{}, "blocking_executor": struct{}{}, "sessions": len(s.sessions), "managed_processes": s.running(),
		"completed_processes": ended, "creating_session_tasks": s.creating, "closing_session_tasks": s.closing, "background_tasks": 1,
	}
}

func (s probes) serveHealth(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"live": true, "resources": s.resources()})
}

func (s probes) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.deadlines.Call)
	defer cancel()
	ready := s.readiness(ctx)
	code := http.StatusOK
	if !ready.Ready {
		code = http.StatusServiceUnavailable
	}
	answer(w, code, struct {
		readiness
		Resources map[string]any `json:"resources"`
	}{ready, s.resources()})
}

// initialize takes a configuration. One that is wrong changes nothing, and one that is
// good changes sessions that are made from now on. Directories of a client that is not the
// operator are those that the operator granted, or fewer.
func (s *Server) initialize(ctx context.Context, data json.RawMessage, operator bool) (any, error) {
	s.mu.Lock()
	now := s.cfg
	s.mu.Unlock()
	by := said{source: fromInit, before: now.source}
	if !operator {
		by.within = s.operator
	}
	next, err := s.o.configure(now.sections, data, by)
	if err != nil {
		return nil, err
	}
	if next.unused {
		s.log.Warn("the client's directories of this host are not used, for the operator granted none: set BOX__LOCAL__ALLOWED_MOUNT_ROOTS, or local in LANGBOT_BOX_CONFIG")
	}
	if len(next.relative) > 0 {
		s.log.Warn("the client's directories are relative to its own working directory, and are left as the operator granted them: set BOX__LOCAL__HOST_ROOT to the directory that is meant",
			"relative", next.relative, "roots", next.roots)
	}
	next.policy = now.policy.followedBy(next.policy)
	s.mu.Lock()
	s.cfg = next
	s.mu.Unlock()
	c := s.choice(ctx)
	s.warnOfLocal(next, c)
	s.log.Info("box configuration", "backend", next.backend, "source", next.source, "name", c.name, "available", c.available, "reason", c.reason)
	return map[string]bool{"initialized": true}, nil
}

// warnOfLocal tells once what LangBot's stock backend stands for here.
func (s *Server) warnOfLocal(cfg *settings, c choice) {
	if cfg.backend != backendLocal || cfg.source != fromInit {
		return
	}
	s.localOnce.Do(func() {
		s.log.Warn("LangBot asks for backend local, which is its default: sessions run on the engine that the operator's rules choose; set BOX_BACKEND to choose one, such as BOX_BACKEND=gvisor or BOX_BACKEND=docker",
			"engine", c.name, "available", c.available)
	})
}

func sortSessions(all []*session) {
	slices.SortFunc(all, func(a, b *session) int {
		if c := a.created.Compare(b.created); c != 0 {
			return c
		}
		return strings.Compare(a.physical, b.physical)
	})
}
