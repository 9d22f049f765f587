package core

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// faults are what is wrong with the daemon's own state; empty fields are fine.
type faults struct {
	home     string // what its file system has run out of
	audit    bool   // records cannot be written
	refuses  bool   // what needs a record is refused for that
	rejected string // why the policy file is not in force
}

// faults looks for what is wrong now.
func (s *Service) faults() faults {
	f := faults{home: s.opts.HomeFull(s.opts.Home)}
	f.audit, f.refuses = s.opts.Audit.Failing()
	if why := s.rejected.Load(); why != nil {
		f.rejected = *why
	}
	return f
}

// blocks says why no sandbox can be made; empty is that nothing here prevents it.
func (f faults) blocks() (reason api.StatusReason, message string) {
	switch {
	case f.home != "":
		return api.ReasonDiskFull, "the file system of the daemon's home " + f.home
	case f.refuses:
		return api.ReasonAuditFailing, "the audit log cannot be written, and nothing is done without a record"
	}
	return "", ""
}

// problems tells all of it to the operator.
func (f faults) problems() []api.Problem {
	var out []api.Problem
	if f.home != "" {
		out = append(out, api.Problem{What: "the file system of the daemon's home " + f.home, Mend: "remove unneeded files, or make it larger"})
	}
	if f.audit {
		does := "requests are served without a record, and counted"
		if f.refuses {
			does = "what needs a record is refused"
		}
		out = append(out, api.Problem{What: "the audit log cannot be written: " + does, Mend: "the reason is in the daemon's log"})
	}
	if f.rejected != "" {
		out = append(out, api.Problem{
			What: fmt.Sprintf("the policy file was rejected, and the older rules stay in force: %s", f.rejected), Mend: "correct the policy file",
		})
	}
	return out
}

// Unready is why no work can be taken, for who may know no more than that.
type Unready string

// The reasons. UnreadyEnding is for who serves requests to tell.
const (
	UnreadyStarting Unready = "starting"
	UnreadyDisk     Unready = "disk_full"
	UnreadyAudit    Unready = "audit_failing"
	UnreadyEngine   Unready = "no_engine"
	UnreadyEnding   Unready = "shutting_down"
)

// readyFor is how long an answer of Ready is good for.
const readyFor = time.Second

// readiness is the last answer of Ready.
type readiness struct {
	mu      sync.Mutex
	known   bool
	asking  bool
	at      time.Time
	unready Unready
}

// Ready says whether the home, the audit log and an engine can take work; empty is that
// they can. Anyone may ask as often as they like: it looks at most once a second, and
// who asks meanwhile gets the older answer at once. That the operator switched sandboxes
// off makes it no less ready, for that is answered as it should be.
func (s *Service) Ready(ctx context.Context) (why Unready) {
	r := &s.readiness
	if known, ask := r.last(); !ask {
		return known
	}
	why = UnreadyEngine
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asking, r.known, r.at, r.unready = false, true, time.Now(), why
	}()
	// The answer is for all, also where this caller leaves.
	why = s.unready(context.WithoutCancel(ctx))
	return why
}

// last is the last answer, and whether the caller is to find a newer one.
func (r *readiness) last() (known Unready, ask bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.asking && (!r.known || time.Since(r.at) >= readyFor):
		r.asking = true
		return "", true
	case !r.known:
		return UnreadyStarting, false
	}
	return r.unready, false
}

func (s *Service) unready(ctx context.Context) Unready {
	f := s.faults()
	switch {
	case f.home != "":
		return UnreadyDisk
	case f.refuses:
		return UnreadyAudit
	}
	if _, err := policy.ChooseEngine(Caller{Operator: true}, s.rules(), s.opts.Prober.Reports(ctx)); err != nil {
		return UnreadyEngine
	}
	return ""
}
