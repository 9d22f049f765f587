package e2b

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Probe implements engine.Engine.
func (e *Engine) Probe(ctx context.Context) engine.Report {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	byTemplate := api.Enforcement{Reason: "the service gives a sandbox the limits of its template"}
	elsewhere := api.Enforcement{OK: true} // nothing of this machine is there
	r := engine.Report{
		Name: Name, Tier: api.TierRemote, CopiesFiles: copiesFiles, OwnImages: true,
		Enforces: map[string]api.Enforcement{
			"cpus": byTemplate, "memory_bytes": byTemplate, "disk_bytes": byTemplate,
			"pids":                           {Reason: "the service limits no number of processes"},
			"egress":                         {Reason: "the service's network is not under the rules of this machine"},
			api.EnforcesMountSockets:         elsewhere,
			api.EnforcesReadOnlyMountSockets: elsewhere,
			api.EnforcesKernelFiles:          elsewhere,
			api.EnforcesKernelTables:         elsewhere,
		},
		Facts: map[string]string{"template": e.opts.Template},
	}
	if e.service.api != nil {
		r.Facts["api"] = e.service.api.Redacted()
	}
	if e.problem != nil {
		r.Problems = []api.Problem{*e.problem}
		return r
	}
	if _, err := e.service.call(ctx, http.MethodGet, "/v2/sandboxes", url.Values{"limit": {"1"}}, nil, nil); err != nil && !hasStatus(err, http.StatusNotFound) && !hasStatus(err, http.StatusMethodNotAllowed) {
		r.Problems = []api.Problem{{What: "the service at " + e.service.api.Host + " does not answer as it should: " + clip(err.Error()), Mend: "check e2b.api_url and e2b.api_key, or E2B_API_URL and E2B_API_KEY"}}
	}
	r.Usable = len(r.Problems) == 0
	return r
}
