package e2bapi

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// The states of E2B's sandboxes.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// listed is a sandbox in a list.
type listed struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	CPUCount    int64             `json:"cpuCount"`
	MemoryMB    int64             `json:"memoryMB"`
	DiskSizeMB  int64             `json:"diskSizeMB"`
	State       string            `json:"state"`
	EnvdVersion string            `json:"envdVersion"`
	Alias       string            `json:"alias,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// detail is the answer to a get.
type detail struct {
	listed
	EnvdAccessToken string    `json:"envdAccessToken"`
	Domain          *string   `json:"domain"`
	Internet        *bool     `json:"allowInternetAccess"`
	Network         *network  `json:"network,omitempty"`
	Lifecycle       lifecycle `json:"lifecycle"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

// onTimeout is what happens at the end of a sandbox.
func onTimeout(r *record) string {
	if r.AutoPause {
		return "pause"
	}
	return "kill"
}

// never is the end of a sandbox whose lifetime has no bound.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func listedOf(r *record, sb api.Sandbox) listed {
	out := listed{
		TemplateID: r.Template, SandboxID: idOf(sb.ID), ClientID: clientID, StartedAt: r.Started, EndAt: endOf(r, sb),
		CPUCount: cpusOf(sb), MemoryMB: sb.Limits.MemoryBytes >> 20, DiskSizeMB: sb.Limits.DiskBytes >> 20,
		State: r.stateOf(sb), EnvdVersion: envdVersion, Alias: r.Template, Metadata: r.Metadata,
	}
	return out
}

// stateOf is the state that core has, which another API can change too.
func (r *record) stateOf(sb api.Sandbox) string {
	if r.paused(sb) {
		return statePaused
	}
	return stateRunning
}

// endOf returns when the sandbox ends, with the precision of milliseconds; of a paused one, when it was
// paused.
func endOf(r *record, sb api.Sandbox) time.Time {
	switch {
	case r.paused(sb) && !r.Paused.IsZero():
		return r.Paused
	case r.AutoPause && !r.End.IsZero():
		return r.End
	case sb.ExpiresAt == nil:
		return never
	}
	return sb.ExpiresAt.UTC().Truncate(time.Millisecond)
}

func cpusOf(sb api.Sandbox) int64 {
	if n := int64(sb.Limits.CPUs); n > 0 {
		return n
	}
	return int64(runtime.NumCPU())
}

func (s *Server) info(w http.ResponseWriter, r request) error {
	kept, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, detail{
		listed: listedOf(kept, sb), EnvdAccessToken: kept.Token, Domain: s.domainOf(), Internet: kept.Internet, Network: kept.Network,
		Lifecycle: lifecycle{AutoResume: kept.AutoResume, OnTimeout: onTimeout(kept)},
	})
	return nil
}

// kill removes a sandbox, and then breaks its connections off: E2B's clients take a connection that ends
// politely for one that lost its end.
func (s *Server) kill(w http.ResponseWriter, r request) error {
	kept, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	if _, err := s.core.Delete(r.Context(), r.caller, sb.ID); err != nil && api.CodeOf(err) != api.CodeNotFound {
		return err
	}
	s.cut(kept.Sandbox)
	s.usage.forget(kept.Sandbox)
	if err := s.records.remove(kept.Sandbox); err != nil {
		s.log.Warn("remove the record of a sandbox; it is tried again", "sandbox", kept.Sandbox, "error", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// timeout sets the end of a sandbox, earlier or later.
func (s *Server) timeout(w http.ResponseWriter, r request) error {
	var req struct {
		Timeout int64 `json:"timeout"` // seconds
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	if req.Timeout < 0 || req.Timeout > maxTimeout {
		return fail(http.StatusBadRequest, "timeout is %d: it can be 0 to %d seconds", req.Timeout, maxTimeout)
	}
	kept, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	if kept.paused(sb) {
		return notFound(r.PathValue("id"))
	}
	switch {
	case req.Timeout == 0 && kept.AutoPause:
		if err := s.pauseNow(r, sb.ID, kept.ColdPause); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	case req.Timeout == 0:
		return s.kill(w, r)
	}
	if kept.AutoPause {
		_, err = s.records.update(sb.ID, func(next *record) { next.setEnd(req.Timeout) })
	} else {
		_, err = s.core.Extend(r.Context(), r.caller, sb.ID, api.Extension{LifetimeMS: req.Timeout * 1000, Exact: true})
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// refresh only extends.
func (s *Server) refresh(w http.ResponseWriter, r request) error {
	var req struct {
		Duration int64 `json:"duration"` // seconds
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	_, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	if err := s.extend(r, sb.ID, min(max(req.Duration, timeoutV1), maxTimeout)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) extend(r request, ref string, seconds int64) error {
	if kept := s.records.get(ref); kept != nil && kept.AutoPause {
		_, err := s.records.update(ref, func(next *record) {
			if end := time.Now().Add(time.Duration(seconds) * time.Second); end.After(next.End) {
				next.setEnd(seconds)
			}
		})
		return err
	}
	_, err := s.core.Extend(r.Context(), r.caller, ref, api.Extension{LifetimeMS: seconds * 1000})
	return err
}

// connect returns the handler of one version of the route. It extends what runs and resumes what is
// paused.
func (s *Server) connect(timeout int64, status int) handler {
	return func(w http.ResponseWriter, r request) error {
		var req struct {
			Timeout *int64 `json:"timeout"` // seconds
			Memory  *bool  `json:"memory"`
		}
		if err := decode(r.Request, &req); err != nil {
			return err
		}
		if req.Timeout == nil {
			req.Timeout = &timeout
		}
		switch {
		case *req.Timeout <= 0 || *req.Timeout > maxTimeout:
			return fail(http.StatusBadRequest, "timeout is %d: it can be 1 to %d seconds", *req.Timeout, maxTimeout)
		}
		kept, sb, err := s.sandbox(r)
		if err != nil {
			return err
		}
		if !kept.paused(sb) {
			if status != 0 {
				return fail(http.StatusConflict, "sandbox %q runs already", clip(r.PathValue("id")))
			}
			if err := s.extend(r, sb.ID, *req.Timeout); err != nil {
				return err
			}
			writeJSON(w, http.StatusOK, s.answerOf(kept))
			return nil
		}
		if req.Memory != nil && !*req.Memory && sb.State.Held() {
			// It is resumed for the stop, so that its files are kept.
			if err := s.hold(context.WithoutCancel(r.Context()), r.caller, sb.ID, true); err != nil {
				return err
			}
		}
		next, err := s.resume(r.Context(), r.caller, kept, *req.Timeout)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusCreated, s.answerOf(next))
		return nil
	}
}

// setNetwork replaces what may leave a sandbox. What the request omits is cleared.
func (s *Server) setNetwork(w http.ResponseWriter, r request) error {
	var req struct {
		network
		Internet *bool `json:"allow_internet_access"`
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	kept, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	nw, egress, err := s.egressOf(&req.network, req.Internet)
	if err != nil {
		return err
	}
	if _, err := s.core.ReplaceEgress(r.Context(), r.caller, sb.ID, api.EgressPolicy{Network: nw, Egress: egress}); err != nil {
		return err
	}
	if kept.Network != nil {
		req.AllowPublicTraffic = kept.Network.AllowPublicTraffic
	}
	if _, err := s.records.update(sb.ID, func(next *record) { next.Internet, next.Network = req.Internet, &req.network }); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
