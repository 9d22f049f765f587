// Package metrics counts what the operator's monitoring asks for, in Prometheus' terms.
package metrics

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/cloche-dev/cloche"
)

// ContentType is that of Text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Endpoints have the names that their callers like. What comes after so many different
// ones is counted as otherNames.
const (
	maxNames   = 200
	otherNames = "(others)"
)

// Tally is what there is at one moment.
type Tally struct {
	// Sandboxes are counted by their state.
	Sandboxes map[cloche.State]int
	// Starting are being made, Queued wait for that.
	Starting, Queued int
	// Active are the requests that go on, by the name of their endpoint.
	Active map[string]int64
}

// Set is the metrics of a daemon. It is safe for concurrent use.
type Set struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	firstByte *prometheus.HistogramVec

	mu    sync.Mutex
	names map[string]struct{}
}

// New makes a Set. tally is asked at each look.
func New(version string, tally func() Tally) *Set {
	s := &Set{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloche_bridge_requests_total", Help: "Requests through endpoints that have ended, and connections of raw TCP.",
		}, []string{"endpoint", "outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloche_bridge_bytes_total", Help: "Bytes of bodies through endpoints: of requests, which leave sandboxes, and of responses.",
		}, []string{"endpoint", "direction"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cloche_bridge_first_byte_seconds", Help: "Time from a request to the first byte of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
		}, []string{"endpoint"}),
		names: map[string]struct{}{},
	}
	s.registry.MustRegister(s.requests, s.bytes, s.firstByte, newMoment(s, version, tally))
	return s
}

// Exchanged counts one request that went through an endpoint.
func (s *Set) Exchanged(x cloche.Exchange) {
	name := s.name(x.Endpoint)
	s.requests.WithLabelValues(name, x.Outcome).Inc()
	s.bytes.WithLabelValues(name, "response").Add(float64(max(0, x.BytesOut)))
	s.bytes.WithLabelValues(name, "request").Add(float64(max(0, x.BytesIn)))
	if x.Upstream != 0 {
		s.firstByte.WithLabelValues(name).Observe(float64(x.FirstByteMS) / 1000)
	}
}

// name is what an endpoint is counted as.
func (s *Set) name(endpoint string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.names[endpoint]; !known {
		if len(s.names) >= maxNames {
			return otherNames
		}
		s.names[endpoint] = struct{}{}
	}
	return endpoint
}

// Text is all of it in the text format that Prometheus reads.
func (s *Set) Text() ([]byte, error) {
	families, err := s.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var out bytes.Buffer
	e := expfmt.NewEncoder(&out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := e.Encode(f); err != nil {
			return nil, fmt.Errorf("write metrics: %w", err)
		}
	}
	return out.Bytes(), nil
}

// moment is a prometheus.Collector of a Tally.
type moment struct {
	set     *Set
	version string
	tally   func() Tally

	build, sandboxes, starting, queued, active *prometheus.Desc
}

func newMoment(s *Set, version string, tally func() Tally) *moment {
	return &moment{
		set: s, version: version, tally: tally,
		build:     prometheus.NewDesc("cloche_build_info", "The version of the daemon.", []string{"version"}, nil),
		sandboxes: prometheus.NewDesc("cloche_sandboxes", "Sandboxes by state.", []string{"state"}, nil),
		starting:  prometheus.NewDesc("cloche_sandboxes_starting", "Sandboxes that are being made.", nil, nil),
		queued:    prometheus.NewDesc("cloche_sandboxes_queued", "Creates that wait for others.", nil, nil),
		active:    prometheus.NewDesc("cloche_bridge_active", "Requests through endpoints that go on.", []string{"endpoint"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *moment) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.build, m.sandboxes, m.starting, m.queued, m.active} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *moment) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	t := m.tally()
	gauge(m.build, 1, m.version)
	gauge(m.starting, float64(t.Starting))
	gauge(m.queued, float64(t.Queued))
	for state, n := range t.Sandboxes {
		gauge(m.sandboxes, float64(n), string(state))
	}
	byName := map[string]int64{}
	for name, n := range t.Active {
		byName[m.set.name(name)] += n
	}
	for name, n := range byName {
		gauge(m.active, float64(n), name)
	}
}
