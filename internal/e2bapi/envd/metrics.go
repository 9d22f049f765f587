package envd

import (
	"math"
	"net/http"
)

// usage is a sandbox's resource usage in E2B's form. What cannot be measured is 0.
type usage struct {
	Timestamp   int64   `json:"ts"`
	CPUCount    int64   `json:"cpu_count"`
	CPUUsed     float64 `json:"cpu_used_pct"`
	MemTotalMiB int64   `json:"mem_total_mib"`
	MemUsedMiB  int64   `json:"mem_used_mib"`
	MemTotal    int64   `json:"mem_total"`
	MemUsed     int64   `json:"mem_used"`
	MemCache    int64   `json:"mem_cache"`
	DiskUsed    int64   `json:"disk_used"`
	DiskTotal   int64   `json:"disk_total"`
}

// serveMetrics answers with the usage of the sandbox. The share of the CPU is the mean since the
// start of the sandbox.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request, sb Sandbox) {
	box, err := s.core.Get(r.Context(), sb.Caller, sb.Ref)
	if err != nil {
		writeFailure(w, statusOf(err), textOf(err))
		return
	}
	st, err := s.core.Stats(r.Context(), sb.Caller, sb.Ref)
	if err != nil {
		writeFailure(w, statusOf(err), textOf(err))
		return
	}
	u := usage{
		Timestamp: st.ObservedAt.Unix(), CPUCount: max(int64(math.Ceil(st.Limits.CPUs)), 1), MemTotal: st.Limits.MemoryBytes,
		MemUsed: value(st.MemoryBytes), DiskUsed: value(st.WorkspaceBytes), DiskTotal: st.Limits.DiskBytes,
	}
	u.MemTotalMiB, u.MemUsedMiB = u.MemTotal>>20, u.MemUsed>>20
	if life := st.ObservedAt.Sub(box.CreatedAt).Milliseconds(); life > 0 {
		u.CPUUsed = math.Round(float64(value(st.CPUMS))/float64(life)/float64(u.CPUCount)*10_000) / 100
	}
	writeJSON(w, http.StatusOK, u)
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
