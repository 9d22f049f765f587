// Package core implements every operation of the API and is the only entry point to it. Each
// operation is one method of [Service] that does three things: it asks policy for a decision, does
// what was permitted, and records the result in the audit log.
//
// Create a Service with [New]. API servers import core and no package below it.
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
	"github.com/cloche-dev/cloche/internal/core/hostfacts"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
	"github.com/cloche-dev/cloche/internal/event"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/job"
	"github.com/cloche-dev/cloche/internal/key"
	"github.com/cloche-dev/cloche/internal/metrics"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/skill"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// API servers import core and no package below it. These are the names that they need from there.
type (
	// Caller is who asks.
	Caller = policy.Caller
	// Event is one event of a running exec.
	Event = agent.Event
	// Verb is an operation of the API. See policy.
	Verb = policy.Verb
)

// UnixCaller returns the caller at the other end of a unix socket.
func UnixCaller(peerUID, daemonUID int) Caller { return policy.UnixCaller(peerUID, daemonUID) }

// OwnerCaller is policy.OwnerCaller.
func OwnerCaller() Caller { return policy.OwnerCaller() }

// TCPCaller returns the caller that presented the token.
func TCPCaller() Caller { return policy.TCPCaller() }

// KeyCaller returns the caller that presented an API key.
func KeyCaller(k api.Key) Caller { return policy.KeyCaller(k) }

// AuthorizeVerb checks whether the caller's key allows an operation. See Admit.
func AuthorizeVerb(caller Caller, verb Verb) error { return policy.AuthorizeVerb(caller, verb) }

// Verbs returns every operation.
func Verbs() []Verb { return policy.Verbs() }

// ViaInProcess is the Via of a caller in this process.
const ViaInProcess = policy.ViaInProcess

// InProcessCaller returns the user of this process as a caller.
func InProcessCaller(uid int) Caller { return policy.InProcessCaller(uid) }

// Options configures a Service. All fields are required except Events, Keys, Redactor and
// ImagePins.
type Options struct {
	// Rules are the initial rules. See UseRules.
	Rules rules.Rules
	// Keys is nil in a run without a daemon, which has no callers with keys.
	Keys      *key.Store
	Sandboxes *sandbox.Manager
	Images    *image.Store
	// Workspaces is the store of named workspaces.
	Workspaces *workspace.Store
	Snapshots  *snapshot.Store
	// Skills is the store of skills. Nil is no skills.
	Skills *skill.Store
	// Jobs is nil in a run without a daemon.
	Jobs *job.Store
	// Recordings is the store of endpoint recordings.
	Recordings *recording.Store
	Audit      *audit.Log
	// Redactor removes known secret values from command lines before they are truncated. Nil
	// knows none. Audit has the same one.
	Redactor audit.Redactor
	// Events is nil in a run without a daemon.
	Events *event.Log
	// Approvals is nil in a run without a daemon, where no caller could answer.
	Approvals *approval.Queue
	// NoInterception says why TLS cannot be intercepted. Nil means that it can.
	NoInterception *api.Error
	// ImagePins returns the digests of images that something other than Sandboxes uses. It may be
	// nil.
	ImagePins func() ([]string, error)
	Prober    *Prober
	Logger    *slog.Logger
	Version   string
	// E2B returns the address of the API server for clients of E2B, or "", and whether all of them need a
	// key there. It can be nil.
	E2B func() (url string, needsKey bool)
	// PortOrigin returns the origin of a port's URL, such as "http://8000-ID.localhost:PORT", and
	// starts to serve it if needed. Nil in a run without a daemon, where no port has a URL.
	PortOrigin func(ctx context.Context, sandbox string, port int) (string, error)
	// Home is Cloche's home directory, which no sandbox may see.
	Home string
	// HomeFull returns which resource the file system of Home has run out of. Nil asks the
	// system.
	HomeFull func(home string) string
	// UserHome is the home directory of the user that runs Cloche, or empty.
	UserHome string
	// SocketDirs are directories with sockets of Cloche and of engine daemons, under all their
	// names. No sandbox may see them.
	SocketDirs []string
}

// Service implements the operations of the API. It is safe for concurrent use.
type Service struct {
	opts  Options
	log   *slog.Logger
	inUse atomic.Pointer[rules.Rules]
	// rejected says why the policy file is not in force. Nil means that it is.
	rejected atomic.Pointer[string]
	// running holds the jobs that run.
	running   jobs
	rates     rates
	failures  failures
	readiness readiness
	ports     portRefusals
	metrics   *metrics.Set
}

// New returns a Service.
func New(opts Options) *Service {
	s := &Service{opts: opts, log: opts.Logger}
	if s.opts.HomeFull == nil {
		s.opts.HomeFull = hostfile.FullReason
	}
	s.metrics = metrics.New(metrics.Options{Version: opts.Version, Tally: s.tally, Redact: s.redact})
	s.inUse.Store(&opts.Rules)
	return s
}

// rules returns the rules in force. A method that decides more than once must call it only once.
func (s *Service) rules() rules.Rules { return *s.inUse.Load() }

// Status reports whether sandboxes can be created.
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

// Info returns what a caller can learn about the daemon before any other request.
func (s *Service) Info(_ context.Context, caller Caller) api.Info {
	info := policy.InfoOf(caller, s.rules())
	info.Version = s.opts.Version
	if s.opts.E2B != nil {
		info.E2BURL, info.E2BNeedsKey = s.opts.E2B()
	}
	return info
}

// ResolveName returns the sandbox that an identity selects, and whether it exists.
func (s *Service) ResolveName(ctx context.Context, caller Caller, asked api.Naming) (api.ResolvedName, error) {
	t, err := policy.DecideTarget(api.RefByNaming, asked, caller, s.rules())
	if err != nil {
		return api.ResolvedName{}, s.refused(ctx, caller, policy.VerbGet, "", nil, err)
	}
	out := api.ResolvedName{Name: t.Ref()}
	switch sb, err := s.opts.Sandboxes.Get(caller, t.Ref()); {
	case err == nil && t.Check(sb) == nil:
		out.Sandbox = sb.ID
	case err != nil && api.CodeOf(err) != api.CodeNotFound:
		return api.ResolvedName{}, err
	}
	return out, nil
}

// Engines returns what each engine can do on this machine. The reports are cached for a few
// seconds, so frequent calls are cheap.
func (s *Service) Engines(ctx context.Context, caller Caller) ([]api.EngineReport, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbDoctor); err != nil {
		return nil, err
	}
	return slices.Clone(s.opts.Prober.Reports(ctx)), nil
}

// EngineAtLeast returns why an engine isolates less than the operator's own choice. That choice is
// the engine own or, if own is empty, the engine that the rules name, or the weakest tier that they
// accept. It returns nil if the isolation is sufficient, or if there is no such engine.
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

// Doctor reports what each engine can do on this machine.
func (s *Service) Doctor(ctx context.Context, caller Caller) (api.Doctor, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbDoctor); err != nil {
		return api.Doctor{}, err
	}
	host := s.opts.Prober.Host()
	if score := hostfacts.OOMScore(); score != "" {
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

// defaultBound returns what enforces the default size limit of a private workspace. With engines
// that share no files with this host, the workspace is a volume.
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
