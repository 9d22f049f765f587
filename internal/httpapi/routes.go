package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/core"
)

// route is one path of the API with one method.
type route struct {
	method, path string
	// verb is what it asks: every request is admitted for it before it is served.
	verb core.Verb
	// pace is its deadline.
	pace  pace
	serve handler
}

// oldRoutes returns the routes of jobs below their deprecated path. Their answers have the old
// name too. They are not in the contract, which describes one name.
func oldRoutes(routes []route) []route {
	var old []route
	for _, r := range routes {
		rest, ok := strings.CutPrefix(r.path, "/v1/jobs")
		if !ok {
			continue
		}
		serve := r.serve
		r.path = "/v1/programs" + rest
		r.serve = func(w http.ResponseWriter, q request) error {
			q.oldJobs = true
			return serve(w, q)
		}
		old = append(old, r)
	}
	return old
}

// ofProbes is the verb of what is served to callers who are not named.
const ofProbes core.Verb = ""

// probeRoutes are for what watches the daemon, such as a kubelet: they ask for no token
// and tell nothing of tenants.
func (s system) probeRoutes() []route {
	return []route{
		{http.MethodGet, "/healthz", ofProbes, paceCall, s.healthz},
		{http.MethodGet, "/readyz", ofProbes, paceCall, s.readyz},
	}
}

// routes is the whole API except the probes. A test holds it against the contract.
func (s *Server) routes() []route {
	return slices.Concat(
		sandboxes{s}.routes(),
		processes{s}.routes(),
		files{s}.routes(),
		images{s}.routes(),
		storage{s}.routes(),
		skills{s}.routes(),
		endpoints{s}.routes(),
		egress{s}.routes(),
		jobs{s}.routes(),
		keys{s}.routes(),
		auditLog{s}.routes(),
		system{s}.routes(),
	)
}
