// Package metrics counts what the operator's monitoring asks for, in Prometheus' terms.
package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/cloche-dev/cloche/api"
)

// Endpoints have the names that their callers like. What comes after so many different
// ones is counted as otherNames.
const (
	maxNames   = 200
	otherNames = "(others)"
)

// Placed is a state on an engine.
type Placed struct {
	State  api.State
	Engine string
}

// Use is what a running sandbox has used; 0 is not measured.
type Use struct {
	Engine      string
	CPU         time.Duration
	MemoryBytes int64
	// InBytes and OutBytes crossed their network links.
	InBytes, OutBytes int64
}

// Tally is what there is at one moment.
type Tally struct {
	// Sandboxes are counted by their state and engine.
	Sandboxes map[Placed]int
	// Starting are being made, Queued wait for that.
	Starting, Queued int
	// Active are the requests that go on, by the name of their endpoint.
	Active map[string]int64
	// Uses are by the ids of sandboxes, which are in no label.
	Uses map[string]Use
	// Pools count what engines keep ready, by the name of the engine.
	Pools map[string]api.PoolCounts
	// SuspendedBytes is the saved memory of suspended sandboxes on the disk. SnapshotBytes is the size of all Snapshots.
	SuspendedBytes, SnapshotBytes int64
	Snapshots                     int
	// ImageBytes is what images occupy, HomeBytes the size of the filesystem of the home
	// and HomeFreeBytes what it has left; -1 is not known.
	ImageBytes, HomeBytes, HomeFreeBytes int64
}

// Options are what a Set works with.
type Options struct {
	Version string
	// Tally is asked at each scrape.
	Tally func() Tally
	// Redact takes the values of secrets out of labels; nil knows none.
	Redact func(string) string
}

// Set is the metrics of a daemon. It is safe for concurrent use.
type Set struct {
	opts      Options
	requests  *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	firstByte *prometheus.HistogramVec
	creates   *prometheus.HistogramVec
	execs     *prometheus.HistogramVec
	failures  *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	audit     prometheus.Counter
	http      *prometheus.HistogramVec
	moment    *moment

	mu    sync.Mutex
	names map[string]struct{}

	// once makes handler: who is not scraped has no registry.
	once    sync.Once
	handler http.Handler
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// New makes a Set.
func New(opts Options) *Set {
	waits := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	s := &Set{
		opts:      opts,
		requests:  counter("cloche_bridge_requests_total", "Requests through endpoints that have ended, and connections of raw TCP.", "endpoint", "outcome"),
		bytes:     counter("cloche_bridge_bytes_total", "Bytes of bodies through endpoints: of requests, which leave sandboxes, and of responses.", "endpoint", "direction"),
		firstByte: histogram("cloche_bridge_first_byte_seconds", "Time from a request to the first byte of its answer.", waits, "endpoint"),
		creates:   histogram("cloche_create_seconds", "Time of a create from its permit to a sandbox that runs, or to its failure.", waits, "engine", "outcome"),
		execs:     histogram("cloche_exec_seconds", "Time that commands ran, by how they ended.", append(slices.Clone(waits), 900, 3600), "engine", "outcome"),
		failures:  counter("cloche_failures_total", "What callers asked for and did not get, by verb and error code.", "verb", "code"),
		refusals:  counter("cloche_egress_refusals_total", "Connections and requests of sandboxes that no rule allowed.", "engine"),
		audit:     prometheus.NewCounter(prometheus.CounterOpts{Name: "cloche_audit_failures_total", Help: "Records that could not be written to the audit log."}),
		http:      histogram("cloche_http_request_seconds", "Time of requests to the API, streams until their end.", waits, "route", "status"),
		names:     map[string]struct{}{},
	}
	s.moment = newMoment(s)
	return s
}

// collectors are all metrics but those of the process and of Go.
func (s *Set) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		s.requests, s.bytes, s.firstByte, s.creates, s.execs, s.failures, s.refusals, s.audit, s.http, s.moment,
	}
}

// Handler serves all of it in the formats that Prometheus reads.
func (s *Set) Handler() http.Handler {
	s.once.Do(func() {
		s.handler = promhttp.HandlerFor(s.gatherer(), promhttp.HandlerOpts{EnableOpenMetrics: true})
	})
	return s.handler
}

func (s *Set) gatherer() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(append(s.collectors(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))...)
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := r.Gather()
		if s.opts.Redact != nil {
			for _, f := range families {
				for _, m := range f.Metric {
					for _, l := range m.Label {
						if said := s.opts.Redact(l.GetValue()); said != l.GetValue() {
							l.Value = &said
						}
					}
				}
			}
		}
		return families, err
	})
}

// Created counts a create on an engine, which is empty where none was chosen.
func (s *Set) Created(engine string, took time.Duration, err error) {
	s.creates.WithLabelValues(engineName(engine), outcomeOf(err)).Observe(took.Seconds())
}

// Ran counts a command that ended; err is that it could not be run.
func (s *Set) Ran(engine string, r api.Result, err error) {
	outcome := "signal"
	switch {
	case err != nil:
		outcome = "failed"
	case r.SandboxLost:
		outcome = "lost"
	case r.TimedOut:
		outcome = "timeout"
	case r.OOM:
		outcome = "oom"
	case r.ExitCode != nil && *r.ExitCode == 0:
		outcome = "ok"
	case r.ExitCode != nil:
		outcome = "nonzero"
	}
	s.execs.WithLabelValues(engineName(engine), outcome).Observe(float64(r.DurationMS) / 1000)
}

// Failed counts what was refused or failed. The verb and the code are of closed lists.
func (s *Set) Failed(verb string, code api.Code) {
	s.failures.WithLabelValues(verb, string(code)).Inc()
}

// EgressRefused counts what was not let out of a sandbox, and n more like it.
func (s *Set) EgressRefused(engine string, n int64) {
	s.refusals.WithLabelValues(engineName(engine)).Add(float64(1 + max(n, 0)))
}

// AuditFailed counts a record that could not be written.
func (s *Set) AuditFailed() { s.audit.Inc() }

// Answered counts a request by the pattern of its route, which is empty where it has none.
func (s *Set) Answered(route string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	s.http.WithLabelValues(route, strconv.Itoa(status)).Observe(took.Seconds())
}

func outcomeOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// engineName is a label: engines are a closed list.
func engineName(engine string) string {
	if engine == "" {
		return "none"
	}
	return engine
}

// Exchanged counts one request that went through an endpoint.
func (s *Set) Exchanged(x api.Exchange) {
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
