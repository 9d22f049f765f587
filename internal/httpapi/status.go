package httpapi

import (
	"net/http"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/api/openapi"
	"github.com/cloche-dev/cloche/internal/core"
)

func (s *Server) status(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.core.Status(r.Context(), r.caller))
	return nil
}

// healthz says that this process answers.
func (s *Server) healthz(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
	return nil
}

// readyz says whether a sandbox could be made now, and if not, why, in one word.
func (s *Server) readyz(w http.ResponseWriter, r request) error {
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

func (s *Server) doctor(w http.ResponseWriter, r request) error {
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

func (s *Server) metrics(w http.ResponseWriter, r request) error {
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

func (s *Server) versionInfo(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
		API     string `json:"api"`
	}{s.version, api.APIVersion})
	return nil
}

func (s *Server) openapi(w http.ResponseWriter, r request) error {
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
