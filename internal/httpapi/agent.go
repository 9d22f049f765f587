package httpapi

import (
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) errors(w http.ResponseWriter, r request) error {
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

func (s *Server) guidance(w http.ResponseWriter, r request) error {
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
