package httpapi

import (
	"net/http"
	"strconv"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/api"
)

func (s *Server) images(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Images(r.Context(), r.caller)
	if err != nil {
		return err
	}
	l.Images = nonNil(l.Images)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s *Server) status(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.core.Status(r.Context(), r.caller))
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

func (s *Server) versionInfo(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
		API     string `json:"api"`
	}{s.version, cloche.APIVersion})
	return nil
}

func (s *Server) openapi(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	doc := api.OpenAPI()
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Content-Length", strconv.Itoa(len(doc)))
	_, err := w.Write(doc)
	return err
}
