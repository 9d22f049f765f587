package core

import (
	"context"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/metrics"
	"github.com/cloche-dev/cloche/internal/policy"
)

// MetricsType is the content type of Metrics.
const MetricsType = metrics.ContentType

// Metrics are those of all tenants, in the text format of Prometheus.
func (s *Service) Metrics(_ context.Context, caller Caller) ([]byte, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbMetrics); err != nil {
		return nil, err
	}
	text, err := s.metrics.Text()
	if err != nil {
		return nil, cloche.Errorf(cloche.CodeInternal, "the metrics cannot be told").WithCause(err)
	}
	return []byte(s.redact(string(text))), nil
}

// tally is what there is now.
func (s *Service) tally() metrics.Tally {
	var t metrics.Tally
	t.Sandboxes, t.Active = s.opts.Sandboxes.Tally()
	t.Starting, t.Queued = s.opts.Sandboxes.Starting()
	return t
}
