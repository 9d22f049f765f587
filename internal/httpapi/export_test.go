package httpapi

import "github.com/cloche-dev/cloche"

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
