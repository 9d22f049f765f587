package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// measured is what an instance had used just before it was ended.
type measured struct {
	stat engine.Stat
	ok   bool
	at   time.Time
	net  api.EgressLimits
}

// measure reads what an instance used; afterwards nothing of it is there to ask.
func measure(ctx context.Context, inst engine.Instance) measured {
	got, ok := stat(ctx, inst)
	return measured{stat: got, ok: ok, at: now()}
}

// used tells what a sandbox used from its create to its end, once.
func (m *Manager) used(s *live, u measured) {
	if m.opts.Used == nil {
		return
	}
	info := s.snapshot()
	if info.StoppedAt != nil && info.StoppedAt.Before(u.at) { // it died before the cleanup
		u.at = *info.StoppedAt
	}
	out := api.AuditUsed{Seconds: max(u.at.Sub(info.CreatedAt), 0).Seconds(), Partial: !u.ok, BytesIn: u.net.BytesIn, BytesOut: u.net.BytesOut}
	if u.ok {
		out.CPUSeconds = u.stat.CPU.Seconds()
	}
	held := !slices.ContainsFunc(info.Unenforced, func(l api.Unenforced) bool { return l.Field == "limits.memory_bytes" })
	if n := info.Limits.MemoryBytes; n > 0 && held {
		out.GiBSeconds = float64(n) / (1 << 30) * out.Seconds
	} else {
		out.Partial = true
	}
	m.opts.Used(info, out)
}
