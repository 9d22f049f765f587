// Package core is the only way in: one method for each verb, and each does the
// same three things. It lets policy decide, does what was permitted, and records
// what became of it.
package core

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/approval"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
	"github.com/cloche-dev/cloche/internal/event"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/key"
	"github.com/cloche-dev/cloche/internal/metrics"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/program"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/skill"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// API servers import core and nothing below it; these are the names that they
// need from there.
type (
	// Caller is who asks.
	Caller = policy.Caller
	// Event is one thing that a live exec said.
	Event = agent.Event
	// Verb is what a caller asks; see policy.
	Verb = policy.Verb
)

// UnixCaller names the peer of a unix socket.
func UnixCaller(peerUID, daemonUID int) Caller { return policy.UnixCaller(peerUID, daemonUID) }

// OwnerCaller is policy.OwnerCaller.
func OwnerCaller() Caller { return policy.OwnerCaller() }

// TCPCaller names whoever showed the token.
func TCPCaller() Caller { return policy.TCPCaller() }

// KeyCaller names whoever showed an API key.
func KeyCaller(k api.Key) Caller { return policy.KeyCaller(k) }

// AuthorizeVerb says whether the caller's key is for a verb; see Admit.
func AuthorizeVerb(caller Caller, verb Verb) error { return policy.AuthorizeVerb(caller, verb) }

// Verbs lists every verb.
func Verbs() []Verb { return policy.Verbs() }

// ViaInProcess is the Via of a caller whose own process this is.
const ViaInProcess = policy.ViaInProcess

// InProcessCaller names the user whose own process this is.
func InProcessCaller(uid int) Caller { return policy.InProcessCaller(uid) }

// Options are what a Service works with; all but Events, Keys, Redactor and ImagePins
// are required.
type Options struct {
	// Rules are those that a Service begins with; see UseRules.
	Rules policy.Rules
	// Keys is nil where nobody can come with one: in a run without a daemon.
	Keys      *key.Store
	Sandboxes *sandbox.Manager
	Images    *image.Store
	// Workspaces are the named ones.
	Workspaces *workspace.Store
	Snapshots  *snapshot.Store
	// Skills are packages of files; nil has none.
	Skills *skill.Store
	// Programs is nil in a run without a daemon.
	Programs *program.Store
	// Recordings are what endpoints recorded.
	Recordings *recording.Store
	Audit      *audit.Log
	// Redactor takes known secret values out of command lines before they are cut;
	// nil knows none. Audit has the same.
	Redactor audit.Redactor
	// Events is nil in a run without a daemon.
	Events *event.Log
	// Approvals is nil in a run without a daemon, where nobody could answer.
	Approvals *approval.Queue
	// NoInterception says why no TLS can be opened; nil is that it can.
	NoInterception *api.Error
	// ImagePins tells the digests of images that something of Cloche is made of
	// which Sandboxes does not know; nil is nothing.
	ImagePins func() ([]string, error)
	Prober    *Prober
	Logger    *slog.Logger
	Version   string
	// Home is Cloche's home, which no sandbox may see.
	Home string
	// HomeFull says what the file system of Home has run out of; nil asks the system.
	HomeFull func(home string) string
	// UserHome is the home directory of the user that Cloche runs as, or empty.
	UserHome string
	// SocketDirs are directories with sockets of Cloche's and of engines' daemons, which no
	// sandbox may see, by all names they are known by.
	SocketDirs []string
}

// Service has the verbs. It is safe for concurrent use.
type Service struct {
	opts  Options
	log   *slog.Logger
	inUse atomic.Pointer[policy.Rules]
	// rejected says why the policy file is not in force; nil is that it is.
	rejected atomic.Pointer[string]
	// running are the programs.
	running   programs
	rates     rates
	failures  failures
	readiness readiness
	metrics   *metrics.Set
}

// New makes a Service.
func New(opts Options) *Service {
	s := &Service{opts: opts, log: opts.Logger}
	if s.opts.HomeFull == nil {
		s.opts.HomeFull = hostfile.FullReason
	}
	s.metrics = metrics.New(metrics.Options{Version: opts.Version, Tally: s.tally, Redact: s.redact})
	s.inUse.Store(&opts.Rules)
	return s
}

// rules are those in force. Whoever decides more than once takes them once.
func (s *Service) rules() policy.Rules { return *s.inUse.Load() }

// Status tells whether sandboxes can be had.
func (s *Service) Status(ctx context.Context, caller Caller) api.Status {
	count, all := s.opts.Sandboxes.Count(caller.Tenant)
	if caller.Operator {
		count = all
	}
	rules := s.rules()
	st := api.Status{
		Version: s.opts.Version, Enabled: rules.IsEnabled(), Sandboxes: count, RecentErrors: s.failures.count(caller.Tenant),
		Profile: policy.InfoOf(caller, rules).DefaultProfile,
	}
	st.Starting, st.Queued = s.opts.Sandboxes.Starting()
	report, err := policy.ChooseEngine(caller, rules, s.opts.Prober.Reports(ctx))
	st.Engine = api.EngineStatus{Name: report.Name, Available: err == nil}
	if err != nil {
		st.Engine.Reason = err.Error()
	}
	faults := s.faults()
	reason, message := faults.blocks()
	st.Available = st.Enabled && st.Engine.Available && reason == ""
	if caller.Operator {
		st.Problems = faults.problems()
	}
	switch {
	case !st.Enabled:
		st.Reason, st.Message = api.ReasonDisabled, "the operator switched sandboxes off"
	case err != nil && policy.EngineNamed(rules):
		st.Reason, st.Message = api.ReasonEngineDown, err.Error()
	case err != nil:
		st.Reason, st.Message = api.ReasonNoEngine, err.Error()
	default:
		st.Reason, st.Message = reason, message
	}
	return st
}

// Engines tells what each engine can do on this machine, as far as that was found out
// a few seconds ago: who asks often costs nothing.
func (s *Service) Engines(ctx context.Context, caller Caller) ([]api.EngineReport, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbDoctor); err != nil {
		return nil, err
	}
	return slices.Clone(s.opts.Prober.Reports(ctx)), nil
}

// EngineAtLeast says why an engine isolates less than the operator's own choice: the engine
// own, or where that is empty the one that the rules name, or the least tier that they
// accept. Nil is that it does not, or that there is no such engine.
func (s *Service) EngineAtLeast(ctx context.Context, name, own string) error {
	rules, reports := s.rules(), s.opts.Prober.Reports(ctx)
	tier := func(name string) (api.Tier, bool) {
		i := slices.IndexFunc(reports, func(r api.EngineReport) bool { return r.Name == name })
		if i < 0 {
			return "", false
		}
		return reports[i].Tier, true
	}
	least := cmp.Or(rules.MinTier, api.TierGVisor)
	if t, ok := tier(cmp.Or(own, rules.Engine)); ok {
		least = t
	}
	if t, ok := tier(name); ok && !policy.AtLeast(t, least) {
		return api.Errorf(api.CodeDenied, "engine %s isolates by tier %s, and the operator's choice by %s", name, t, least).
			WithHint("the operator names the engine in BOX_BACKEND, or accepts less by min_tier of the rules")
	}
	return nil
}

// Doctor tells what each engine can do on this machine.
func (s *Service) Doctor(ctx context.Context, caller Caller) (api.Doctor, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbDoctor); err != nil {
		return api.Doctor{}, err
	}
	host := s.opts.Prober.Host()
	if score := oomScore(); score != "" {
		host["oom_score_adj"] = score
	}
	engines := slices.Clone(s.opts.Prober.Refresh(ctx))
	host["workspace_size"] = "held by the kernel"
	if can := workspace.HardQuota(s.opts.Home); !can.OK {
		host["workspace_size"] = "refused: " + can.Reason
	}
	host["workspace_default"] = defaultBound(s.opts.Home, engines)
	return api.Doctor{
		Version: s.opts.Version, Host: host,
		Engines: engines, Problems: s.faults().problems(),
	}, nil
}

// defaultBound says what holds a private workspace whose size nobody names. It is a volume
// of engines that share no files with this host.
func defaultBound(home string, engines []api.EngineReport) string {
	said := "watched while programs write"
	if workspace.HasProjects(home) {
		said = "held by the kernel"
	}
	var volumes []string
	here := false
	for _, e := range engines {
		switch {
		case !e.Usable:
		case e.SharesHostFS:
			here = true
		default:
			volumes = append(volumes, e.Name)
		}
	}
	none := "no bound on " + strings.Join(volumes, ", ") + ", where workspaces are volumes"
	_, err := workspace.SpaceAt(home)
	switch {
	case len(volumes) > 0 && (!here || err != nil):
		return none
	case err != nil:
		return "no bound: " + err.Error()
	case len(volumes) > 0:
		return said + "; " + none
	}
	return said
}
