package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Routes lists every route as "METHOD /path".
func (s *Server) Routes() []string {
	var l []string
	for _, r := range s.routes() {
		l = append(l, r.method+" "+r.path)
	}
	return l
}

// The parsers of foreign bytes.
var (
	DecodeJSON    = decodeJSON
	HeaderJSON    = headerJSON
	ReportTrailer = reportTrailer
	HostName      = hostName
)

// StatusOf is the mapping of codes.
func StatusOf(c cloche.Code) int { return status(c) }

// ServeKnown serves one request of a known caller.
func (s *Server) ServeKnown(w http.ResponseWriter, r *http.Request, caller core.Caller) {
	d := door{via: viaKnown, caller: caller}
	s.edge(w, r.WithContext(context.WithValue(r.Context(), doorKey{}, d)))
}
