package core

import (
	"context"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/metrics"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// measureTimeout limits the measurement of all sandboxes for one scrape.
const measureTimeout = 5 * time.Second

// Metrics serves the metrics of all tenants in the formats of Prometheus.
func (s *Service) Metrics(_ context.Context, caller Caller) (http.Handler, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbMetrics); err != nil {
		return nil, err
	}
	return s.metrics.Handler(), nil
}

// Answered counts a request that an API server answered, by the pattern of its route.
func (s *Service) Answered(route string, status int, took time.Duration) {
	s.metrics.Answered(route, status, took)
}

// record writes to the audit log, and counts records that cannot be written.
func (s *Service) record(ctx context.Context, e audit.Event) error {
	err := s.opts.Audit.Record(ctx, e)
	if err != nil {
		s.metrics.AuditFailed()
	}
	return err
}

// tally returns the present counts.
func (s *Service) tally() metrics.Tally {
	ctx, cancel := context.WithTimeout(context.Background(), measureTimeout) //nolint:forbidigo // a collector has no context: bounded by itself
	defer cancel()
	t := metrics.Tally{Sandboxes: map[metrics.Placed]int{}, Uses: map[string]metrics.Use{}, ImageBytes: -1, HomeBytes: -1, HomeFreeBytes: -1}
	states, suspended, active := s.opts.Sandboxes.Tally()
	for p, n := range states {
		t.Sandboxes[metrics.Placed(p)] = n
	}
	t.Active, t.SuspendedBytes = active, suspended
	if list, err := s.opts.Snapshots.List(func(string) bool { return true }); err == nil {
		t.Snapshots = len(list)
		for _, snap := range list {
			t.SnapshotBytes += snap.SizeBytes
		}
	}
	t.Starting, t.Queued = s.opts.Sandboxes.Starting()
	for _, u := range s.opts.Sandboxes.Uses(ctx) {
		t.Uses[u.ID] = metrics.Use{Engine: u.Engine, CPU: u.CPU, MemoryBytes: u.MemoryBytes, InBytes: u.NetworkInBytes, OutBytes: u.NetworkOutBytes}
	}
	t.Pools = s.opts.Prober.pools()
	if n, err := s.opts.Images.Usage(); err == nil {
		t.ImageBytes = n
	}
	if space, err := workspace.SpaceAt(s.opts.Home); err == nil {
		t.HomeBytes, t.HomeFreeBytes = space.TotalBytes, space.FreeBytes
	}
	return t
}
