package httpapi

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Routes lists every route as "METHOD /path".
func (s *Server) Routes() []string {
	var l []string
	for _, r := range slices.Concat((system{s}).probeRoutes(), s.routes()) {
		l = append(l, r.method+" "+r.path)
	}
	return l
}

// Paces has the kind of deadline of every route.
func (s *Server) Paces() map[string]string {
	l := map[string]string{}
	for _, r := range slices.Concat((system{s}).probeRoutes(), s.routes()) {
		l[r.method+" "+r.path] = string(r.pace)
	}
	return l
}

// Verbs has the verb of every route.
func (s *Server) Verbs() map[string]core.Verb {
	l := map[string]core.Verb{}
	for _, r := range s.routes() {
		l[r.method+" "+r.path] = r.verb
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
func StatusOf(c api.Code) int { return status(c) }

// ServeKnown serves one request of a known caller.
func (s *Server) ServeKnown(w http.ResponseWriter, r *http.Request, caller core.Caller) {
	d := listener{via: viaKnown, caller: caller}
	s.edge(w, r.WithContext(context.WithValue(r.Context(), listenerKey{}, d)))
}

// Hasten makes the server notice a vanished peer sooner.
func (s *Server) Hasten(pingEvery, vanished time.Duration) {
	s.pingEvery, s.vanished = pingEvery, vanished
}

// ToWire is an error as it answers a caller.
func ToWire(err error, caller core.Caller) *api.Error { return toWire(err, request{caller: caller}) }
