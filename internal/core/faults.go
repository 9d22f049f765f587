package core

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/snapshot"
)

// faults are faults of the daemon's own state. Empty fields mean no fault.
type faults struct {
	home     string // the resource its file system has run out of
	audit    bool   // records cannot be written
	refuses  bool   // operations are refused because of that
	rejected string // why the policy file is not in force
}

// faults checks for present faults.
func (s *Service) faults() faults {
	f := faults{home: s.opts.HomeFull(s.opts.Home)}
	f.audit, f.refuses = s.opts.Audit.Failing()
	if why := s.rejected.Load(); why != nil {
		f.rejected = *why
	}
	return f
}

// blocks returns why no sandbox can be created. It is empty if no fault prevents it.
func (f faults) blocks() (reason api.StatusReason, message string) {
	switch {
	case f.home != "":
		return api.ReasonDiskFull, "the file system of the daemon's home " + f.home
	case f.refuses:
		return api.ReasonAuditFailing, "the audit log cannot be written, and nothing is done without a record"
	}
	return "", ""
}

// problems describes all faults to the operator.
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

// Unready says why the daemon cannot take work, for callers that may know no more.
type Unready string

// Reasons. API servers set UnreadyEnding themselves.
const (
	UnreadyStarting Unready = "starting"
	UnreadyDisk     Unready = "disk_full"
	UnreadyAudit    Unready = "audit_failing"
	UnreadyEngine   Unready = "no_engine"
	UnreadyEnding   Unready = "shutting_down"
)

// readyFor is how long an answer of Ready is cached.
const readyFor = time.Second

// readiness is the cached answer of Ready.
type readiness struct {
	mu      sync.Mutex
	known   bool
	asking  bool
	at      time.Time
	unready Unready
}

// Ready reports whether the home directory, the audit log and an engine can take work. Empty means
// that they can. Any caller can poll it: it checks at most once a second, and concurrent callers
// get the previous answer at once. It is still ready when the operator has disabled sandboxes,
// because it answers requests correctly.
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
	// The answer is for all callers, even if this one leaves.
	why = s.unready(context.WithoutCancel(ctx))
	return why
}

// last returns the last answer, and whether the caller must get a newer one.
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

// TellUnreadable reports, in the log and as events, which records cannot be read. What they
// describe is kept. Call it once, when the daemon starts.
func (s *Service) TellUnreadable(context.Context) {
	all := func(string) bool { return true }
	workspaces, err := s.opts.Workspaces.List(all)
	if err != nil {
		s.log.Error("look for workspaces without a record", "error", err)
	}
	for _, w := range workspaces {
		if w.State != "" {
			s.tellUnreadable(w.Tenant, "workspace "+w.Name+": "+w.Reason)
		}
	}
	snapshots, err := s.opts.Snapshots.List(all)
	if err != nil {
		s.log.Error("look for snapshots without a record", "error", err)
	}
	for _, snap := range snapshots {
		if snapshot.IsDamaged(snap) {
			s.tellUnreadable(snap.Tenant, "snapshot "+snap.ID+": its record cannot be read; it is kept until it is removed")
		}
	}
	for _, file := range s.opts.Images.Unreadable() {
		s.tellUnreadable("", "image: its record "+file+" cannot be read; its files are kept")
	}
	if s.opts.Jobs != nil {
		for _, file := range s.opts.Jobs.Unreadable {
			s.tellUnreadable("", "job: its record "+file+" cannot be read; its directory is kept")
		}
	}
}

func (s *Service) tellUnreadable(tenant, reason string) {
	s.log.Error("a record cannot be read", "what", reason)
	if s.opts.Events != nil {
		s.opts.Events.Publish(api.Event{Kind: api.EventRecord, Tenant: tenant, Reason: reason})
	}
}
