package httpapi

import (
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) info(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	info := s.core.Info(r.Context(), r.caller)
	info.Profiles = nonNil(info.Profiles)
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (s *Server) resolveName(w http.ResponseWriter, r request) error {
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
