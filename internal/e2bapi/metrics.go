package e2bapi

import (
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// metric is one sample. Sizes are in bytes.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int64     `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// usage remembers the last sample of each sandbox, for the CPU time between two.
type usage struct {
	mu   sync.Mutex
	last map[string]api.SandboxStats
}

// share returns the CPU time since the last sample as a part of the wall time, in percent of one core.
func (u *usage) share(st api.SandboxStats, began time.Time) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, ok := u.last[st.Sandbox]
	if u.last == nil {
		u.last = map[string]api.SandboxStats{}
	}
	u.last[st.Sandbox] = st
	if st.CPUMS == nil {
		return 0
	}
	used, since := *st.CPUMS, began
	if ok && before.CPUMS != nil {
		used, since = used-*before.CPUMS, before.ObservedAt
	}
	wall := st.ObservedAt.Sub(since).Milliseconds()
	if wall <= 0 || used <= 0 {
		return 0
	}
	return float64(used) / float64(wall) * 100
}

func (u *usage) forget(ref string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.last, ref)
}

// metrics answers with a sample of now. No earlier samples are kept, so a window in the past is empty.
func (s *Server) metrics(w http.ResponseWriter, r request) error {
	start, end, err := window(r.URL.Query())
	if err != nil {
		return err
	}
	kept, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	out := []metric{}
	if at := time.Now(); !at.Before(start) && !at.After(end) {
		st, err := s.core.Stats(r.Context(), r.caller, sb.ID)
		if err != nil {
			return err
		}
		out = append(out, metricOf(st, sb, s.usage.share(st, kept.Started)))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func metricOf(st api.SandboxStats, sb api.Sandbox, pct float64) metric {
	m := metric{
		Timestamp: st.ObservedAt, TimestampUnix: st.ObservedAt.Unix(), CPUCount: cpusOf(sb), CPUUsedPct: pct,
		MemTotal: sb.Limits.MemoryBytes, DiskTotal: sb.Limits.DiskBytes,
	}
	if st.MemoryBytes != nil {
		m.MemUsed = *st.MemoryBytes
	}
	if st.WorkspaceBytes != nil {
		m.DiskUsed = *st.WorkspaceBytes
	}
	return m
}

// window returns the times of a query, in seconds since 1970. An end of this second includes all of it.
func window(q url.Values) (start, end time.Time, err error) {
	start, end = time.Unix(0, 0), never
	for name, at := range map[string]*time.Time{"start": &start, "end": &end} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		sec, err := strconv.ParseInt(text, 10, 64)
		if err != nil || sec < 0 {
			return start, end, fail(http.StatusBadRequest, "%s is not a time in seconds", name)
		}
		if name == "end" {
			sec++
		}
		*at = time.Unix(sec, 0)
	}
	return start, end, nil
}
