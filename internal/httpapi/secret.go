package httpapi

import "net/http"

func (s *Server) secrets(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Secrets(r.Context(), r.caller)
	if err != nil {
		return err
	}
	l.Secrets = nonNil(l.Secrets)
	writeJSON(w, http.StatusOK, l)
	return nil
}
