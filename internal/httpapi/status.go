package httpapi

import (
	"net/http"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/api/openapi"
	"github.com/cloche-dev/cloche/internal/core"
)

// system serves the routes of the daemon: status, events, and what callers may know.
type system struct{ *Server }

func (s system) routes() []route {
	return []route{
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}/events", "events", paceWait, s.endpointEvents},
		{http.MethodGet, "/v1/events", "events", paceWait, s.events},
		{http.MethodGet, "/v1/status", "status", paceCall, s.status},
		{http.MethodGet, "/v1/errors", "list_errors", paceCall, s.errors},
		{http.MethodGet, "/v1/guidance", "guidance", paceCall, s.guidance},
		{http.MethodGet, "/v1/doctor", "doctor", paceCall, s.doctor},
		{http.MethodGet, "/v1/metrics", "metrics", paceCall, s.metrics},
		{http.MethodGet, "/v1/info", "version", paceCall, s.info},
		{http.MethodPost, "/v1/names/resolve", "get", paceCall, s.resolveName},
		{http.MethodGet, "/v1/version", "version", paceCall, s.versionInfo},
		{http.MethodGet, "/v1/openapi.yaml", "version", paceCall, s.openapi},
	}
}

func (s system) status(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.core.Status(r.Context(), r.caller))
	return nil
}

// healthz says that this process answers.
func (s system) healthz(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
	return nil
}

// readyz says whether a sandbox could be made now, and if not, why, in one word.
func (s system) readyz(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	why := s.core.Ready(r.Context())
	if s.live.Err() != nil {
		why = core.UnreadyEnding
	}
	status := http.StatusOK
	if why != "" {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, struct {
		Ready  bool         `json:"ready"`
		Reason core.Unready `json:"reason,omitempty"`
	}{why == "", why})
	return nil
}

func (s system) doctor(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	d, err := s.core.Doctor(r.Context(), r.caller)
	if err != nil {
		return err
	}
	d.Engines = nonNil(d.Engines)
	writeJSON(w, http.StatusOK, d)
	return nil
}

func (s system) metrics(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	h, err := s.core.Metrics(r.Context(), r.caller)
	if err != nil {
		return err
	}
	h.ServeHTTP(w, r.Request)
	return nil
}

func (s system) versionInfo(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
		API     string `json:"api"`
	}{s.version, api.APIVersion})
	return nil
}

func (s system) openapi(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return writeText(w, "application/yaml", openapi.OpenAPI())
}

func writeText(w http.ResponseWriter, kind string, text []byte) error {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, err := w.Write(text)
	return err
}

func (s system) info(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	info := s.core.Info(r.Context(), r.caller)
	info.Profiles = nonNil(info.Profiles)
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (s system) resolveName(w http.ResponseWriter, r request) error {
	var asked api.Naming
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &asked); err != nil {
		return err
	}
	name, err := s.core.ResolveName(r.Context(), r.caller, asked)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, name)
	return nil
}

func (s system) errors(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.ErrorOptions{Tenant: q.str("tenant"), Limit: int(q.integer("limit", 0, 1, 1000))}
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.Errors(r.Context(), r.caller, o)
	if err != nil {
		return err
	}
	l.Errors = nonNil(l.Errors)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s system) guidance(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.GuidanceOptions{Sandbox: q.str("sandbox"), Profile: q.str("profile"), AllSkills: q.boolean("all_skills")}
	if err := q.end(); err != nil {
		return err
	}
	if o.Sandbox != "" && !api.ValidName(o.Sandbox) {
		return noSandbox(o.Sandbox)
	}
	g, err := s.core.Guidance(r.Context(), r.caller, o)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, g)
	return nil
}
