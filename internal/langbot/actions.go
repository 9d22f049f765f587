package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
)

// action is one verb of the wire.
type action struct {
	// host: it needs no workspace. sandbox: it needs a grant, where grants are needed.
	host, sandbox bool
	// pace is its deadline.
	pace pace
	do   func(s *Server, ctx context.Context, c call) (any, error)
}

// call is one action with for whom it is.
type call struct {
	peer  *peer
	place placement
	data  json.RawMessage
}

// actions are all of them.
func actions() map[string]action {
	all := map[string]action{
		"__ping":       {host: true, pace: paceNone, do: func(*Server, context.Context, call) (any, error) { return nil, nil }},
		"__file_chunk": {host: true, pace: paceNone, do: func(_ *Server, _ context.Context, c call) (any, error) { return nil, c.peer.uploads.take(c.data) }},
		"box_init": {host: true, do: func(s *Server, ctx context.Context, c call) (any, error) {
			return s.initialize(ctx, c.data, c.peer != nil && c.peer.operator)
		}},
		"box_health":               {host: true, do: func(s *Server, ctx context.Context, _ call) (any, error) { return s.health(ctx) }},
		"box_get_backend_info":     {host: true, do: func(s *Server, ctx context.Context, _ call) (any, error) { return s.backendInfo(ctx), nil }},
		"box_shutdown":             {host: true, pace: paceChange, do: func(s *Server, ctx context.Context, _ call) (any, error) { return nil, s.shutdown(ctx) }},
		"box_status":               {do: func(s *Server, ctx context.Context, c call) (any, error) { return s.status(ctx, c.place), nil }},
		"box_get_storage_analysis": {pace: paceWork, do: (*Server).storage},
		"box_exec":                 {sandbox: true, pace: paceExec, do: (*Server).doExec},
		"box_create_session":       {sandbox: true, pace: paceWork, do: (*Server).doCreate},
		"box_get_session":          {sandbox: true, do: (*Server).doGet},
		"box_get_sessions":         {do: (*Server).doList},
		"box_delete_session":       {sandbox: true, pace: paceChange, do: (*Server).doDelete},

		"box_start_managed_process": {sandbox: true, pace: paceChange, do: (*Server).doStart},
		"box_get_managed_process":   {sandbox: true, do: (*Server).doGetProcess},
		"box_stop_managed_process":  {sandbox: true, pace: paceChange, do: (*Server).doStop},

		"box_upsert_sandbox_admission_grant": {host: true, do: func(s *Server, ctx context.Context, c call) (any, error) { return s.admit(ctx, c.data) }},
		"box_revoke_sandbox_admission_grant": {host: true, do: func(s *Server, ctx context.Context, c call) (any, error) { return s.revoke(ctx, c.data) }},
		"box_verify_shared_workspace":        {host: true, do: func(s *Server, _ context.Context, c call) (any, error) { return s.verifyShared(c.data) }},
	}
	maps.Copy(all, skillActions())
	return all
}

// do runs one action: it is known, it is for the instance that is served, a grant
// allows it, its generation is not old, and then it is done.
func (s *Server) do(ctx context.Context, p *peer, req request) (any, error) {
	a, known := actions()[req.action]
	if !known {
		return nil, failed(classValue, "Action %s not found", clipped(req.action))
	}
	if req.place != nil && req.place.Instance != p.who.instance {
		return nil, failed(classPermission, "the action's instance does not match the trusted instance")
	}
	c := call{peer: p, data: req.data}
	if a.host {
		return a.do(s, ctx, c)
	}
	if req.place == nil && p.who.plain {
		req.place = new(plainPlace())
	}
	if req.place == nil {
		return nil, failed(classPermission, "Action %s requires a trusted Workspace context", req.action)
	}
	c.place = *req.place
	if a.sandbox {
		if err := s.mayUse(ctx, c.place); err != nil {
			return nil, err
		}
	}
	flying, land, advanced, err := s.fence.observe(ctx, c.place)
	if err != nil {
		return nil, err
	}
	defer land()
	if advanced {
		s.retire(ctx, c.place)
	}
	s.core.KeepSkills(c.place.caller(), s.settings().skills)
	out, err := a.do(s, flying, c)
	if newest := s.fence.newest(c.place); newest.Generation != c.place.Generation {
		// What it made after all is discarded.
		s.retire(context.WithoutCancel(ctx), newest)
		return nil, stale()
	}
	if err != nil {
		if cause := context.Cause(flying); cause != nil && !errors.Is(cause, context.Canceled) {
			return nil, cause
		}
	}
	return out, err
}

// retire ends the sessions of a workspace's older generations.
func (s *Server) retire(ctx context.Context, now placement) {
	s.dropAll(ctx, func(x *session) bool {
		return x.place.durable() == now.durable() && x.place.Generation < now.Generation
	})
}

func (s *Server) doExec(ctx context.Context, c call) (any, error) {
	spec, err := s.spec(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.exec(ctx, c.place, spec)
}

// spec reads the spec of an action, within what a grant allows.
func (s *Server) spec(ctx context.Context, c call) (boxSpec, error) {
	spec, err := parseSpec(c.data)
	if err != nil {
		return spec, err
	}
	return s.normalise(ctx, c.place, spec)
}

func (s *Server) doCreate(ctx context.Context, c call) (any, error) {
	spec, err := s.spec(ctx, c)
	if err != nil {
		return nil, err
	}
	x, done, err := s.obtain(ctx, c.place, spec)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.info(x), nil
}

// ref is the session of an action, and its process.
type ref struct {
	SessionID *string         `json:"session_id"`
	ProcessID string          `json:"process_id"`
	Spec      json.RawMessage `json:"spec"`
}

func (s *Server) ref(c call) (ref, error) {
	r, err := decode[ref](c.data)
	if err != nil {
		return r, err
	}
	if r.SessionID == nil {
		return r, failed(classKey, "'session_id'")
	}
	if r.ProcessID == "" {
		r.ProcessID = usualProcess
	}
	return r, s.onlyGlobal(*r.SessionID)
}

func (s *Server) doGet(ctx context.Context, c call) (any, error) {
	r, err := s.ref(c)
	if err != nil {
		return nil, err
	}
	x, err := s.lookup(c.place, *r.SessionID)
	if err != nil {
		return nil, err
	}
	out := s.info(x)
	s.mu.Lock()
	all := make([]*managed, 0, len(x.processes))
	for _, m := range x.processes {
		all = append(all, m)
	}
	s.mu.Unlock()
	for _, m := range all {
		p, err := s.processInfo(ctx, x, m)
		if err != nil {
			continue // it ended in between
		}
		if out.Processes == nil {
			out.Processes = map[string]processInfo{}
		}
		out.Processes[p.ProcessID] = p
		if p.ProcessID == usualProcess {
			out.Process = &p
		}
	}
	return out, nil
}

func (s *Server) doList(_ context.Context, c call) (any, error) {
	found := []sessionInfo{}
	for _, x := range s.of(c.place) {
		found = append(found, s.info(x))
	}
	return map[string]any{"sessions": found}, nil
}

// of are the sessions of exactly one placement, the oldest first.
func (s *Server) of(p placement) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*session
	for _, x := range s.sessions {
		if x.place == p {
			out = append(out, x)
		}
	}
	sortSessions(out)
	return out
}

func (s *Server) doDelete(ctx context.Context, c call) (any, error) {
	r, err := s.ref(c)
	if err != nil {
		return nil, err
	}
	physical, err := c.place.physical(*r.SessionID)
	if err != nil {
		return nil, err
	}
	unlock, err := s.ops.lock(ctx, physical)
	if err != nil {
		return nil, err
	}
	defer unlock()
	x, err := s.lookup(c.place, *r.SessionID)
	if err != nil {
		return nil, err
	}
	s.drop(ctx, x)
	return map[string]string{"deleted": *r.SessionID}, nil
}

func (s *Server) doStart(ctx context.Context, c call) (any, error) {
	r, err := s.ref(c)
	if err != nil {
		return nil, err
	}
	if len(r.Spec) == 0 {
		return nil, failed(classKey, "'spec'")
	}
	spec, err := parseProcessSpec(r.Spec)
	if err != nil {
		return nil, err
	}
	return s.startProcess(ctx, c.place, *r.SessionID, spec)
}

func (s *Server) doGetProcess(ctx context.Context, c call) (any, error) {
	r, err := s.ref(c)
	if err != nil {
		return nil, err
	}
	x, err := s.lookup(c.place, *r.SessionID)
	if err != nil {
		return nil, err
	}
	m, err := s.process(x, r.ProcessID)
	if err != nil {
		return nil, err
	}
	return s.processInfo(ctx, x, m)
}

func (s *Server) doStop(ctx context.Context, c call) (any, error) {
	r, err := s.ref(c)
	if err != nil {
		return nil, err
	}
	if err := s.stopProcess(ctx, c.place, *r.SessionID, r.ProcessID); err != nil {
		return nil, err
	}
	return map[string]string{"stopped": r.ProcessID}, nil
}

// shutdown ends sessions. The runtime goes on and takes new ones afterwards.
func (s *Server) shutdown(ctx context.Context) error {
	all := bool(s.settings().box.Compat.ShutdownDropsPersistent)
	s.mu.Lock()
	s.shutting = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.shutting = false
		s.mu.Unlock()
	}()
	s.allMade(ctx)
	s.dropAll(ctx, func(x *session) bool { return all || !x.spec.Persistent })
	return nil
}
