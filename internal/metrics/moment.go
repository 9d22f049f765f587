package metrics

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// moment is a prometheus.Collector of a Tally.
type moment struct {
	set *Set

	build, sandboxes, starting, queued, active, memory, cpu, network, pool, poolBytes, poolUses, suspended, snapshots, snapBytes, images, home, free *prometheus.Desc

	mu sync.Mutex
	// total is by engine: a sandbox that ended, or does not answer, makes none fall.
	total map[string]Use
	// seen is what each sandbox had used at the last scrape.
	seen map[string]Use
}

func newMoment(s *Set) *moment {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &moment{
		set: s, total: map[string]Use{}, seen: map[string]Use{},
		build:     d("cloche_build_info", "The version of the daemon.", "version"),
		sandboxes: d("cloche_sandboxes", "Sandboxes by state.", "state", "engine"),
		starting:  d("cloche_sandboxes_starting", "Sandboxes that are being made."),
		queued:    d("cloche_sandboxes_queued", "Creates that wait for others."),
		active:    d("cloche_bridge_active", "Requests through endpoints that go on.", "endpoint"),
		memory:    d("cloche_sandboxes_memory_bytes", "Memory of the running sandboxes together.", "engine"),
		cpu:       d("cloche_sandboxes_cpu_seconds_total", "Processor time of sandboxes, as seen at scrapes.", "engine"),
		network:   d("cloche_sandboxes_network_bytes_total", "Bytes over the network links of sandboxes, as seen at scrapes.", "engine", "direction"),
		pool:      d("cloche_pool_ready", "Sandboxes that are kept ready for the next requests.", "engine"),
		poolBytes: d("cloche_pool_memory_bytes", "Memory of the sandboxes that are kept ready.", "engine"),
		poolUses:  d("cloche_pool_requests_total", "Requests that took a ready sandbox, found none of their kind, or asked for what a sandbox has to start with.", "engine", "outcome"),
		suspended: d("cloche_suspended_bytes", "What the memory of suspended sandboxes occupies on disk."),
		snapshots: d("cloche_snapshots", "Snapshots of files and of memory."),
		snapBytes: d("cloche_snapshots_bytes", "What snapshots occupy on disk."),
		images:    d("cloche_images_bytes", "What images occupy on disk."),
		home:      d("cloche_home_size_bytes", "The size of the filesystem where Cloche keeps its state."),
		free:      d("cloche_home_free_bytes", "What that filesystem has left."),
	}
}

// Describe implements prometheus.Collector.
func (m *moment) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.build, m.sandboxes, m.starting, m.queued, m.active, m.memory, m.cpu, m.network, m.pool, m.poolBytes, m.poolUses, m.suspended, m.snapshots, m.snapBytes, m.images, m.home, m.free} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *moment) Collect(out chan<- prometheus.Metric) {
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, n, labels...)
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) { tell(d, prometheus.GaugeValue, n, labels...) }
	t := m.set.opts.Tally()
	gauge(m.build, 1, m.set.opts.Version)
	gauge(m.starting, float64(t.Starting))
	gauge(m.queued, float64(t.Queued))
	gauge(m.suspended, float64(t.SuspendedBytes))
	gauge(m.snapshots, float64(t.Snapshots))
	gauge(m.snapBytes, float64(t.SnapshotBytes))
	for name, c := range t.Pools {
		gauge(m.pool, float64(c.Ready), name)
		gauge(m.poolBytes, float64(c.MemoryBytes), name)
		for outcome, n := range map[string]int64{"taken": c.Taken, "missed": c.Missed, "unfit": c.Unfit} {
			tell(m.poolUses, prometheus.CounterValue, float64(n), name, outcome)
		}
	}
	for p, n := range t.Sandboxes {
		gauge(m.sandboxes, float64(n), string(p.State), engineName(p.Engine))
	}
	byName := map[string]int64{}
	for name, n := range t.Active {
		byName[m.set.name(name)] += n
	}
	for name, n := range byName {
		gauge(m.active, float64(n), name)
	}
	for d, n := range map[*prometheus.Desc]int64{m.images: t.ImageBytes, m.home: t.HomeBytes, m.free: t.HomeFreeBytes} {
		if n >= 0 {
			gauge(d, float64(n))
		}
	}
	memory := map[string]int64{}
	for _, u := range t.Uses {
		if u.MemoryBytes > 0 {
			memory[u.Engine] += u.MemoryBytes
		}
	}
	for engine, n := range memory {
		gauge(m.memory, float64(n), engineName(engine))
	}
	for engine, u := range m.counters(t.Uses) {
		tell(m.cpu, prometheus.CounterValue, u.CPU.Seconds(), engineName(engine))
		tell(m.network, prometheus.CounterValue, float64(u.InBytes), engineName(engine), "in")
		tell(m.network, prometheus.CounterValue, float64(u.OutBytes), engineName(engine), "out")
	}
}

// counters adds what each sandbox has used since the scrape before.
func (m *moment) counters(now map[string]Use) map[string]Use {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := make(map[string]Use, len(now))
	for id, u := range now {
		total, before := m.total[u.Engine], m.seen[id]
		most := Use{Engine: u.Engine, CPU: max(u.CPU, before.CPU), InBytes: max(u.InBytes, before.InBytes), OutBytes: max(u.OutBytes, before.OutBytes)}
		total.CPU += most.CPU - before.CPU
		total.InBytes += most.InBytes - before.InBytes
		total.OutBytes += most.OutBytes - before.OutBytes
		m.total[u.Engine], seen[id] = total, most
	}
	m.seen = seen
	return maps.Clone(m.total)
}
