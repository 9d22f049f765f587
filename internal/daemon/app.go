//go:build linux || darwin || windows

package daemon

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/embed"
	"github.com/cloche-dev/cloche/internal/approval"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/event"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/job"
	"github.com/cloche-dev/cloche/internal/key"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/rulefile"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
	"github.com/cloche-dev/cloche/internal/sandbox/pressure"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
	"github.com/cloche-dev/cloche/internal/secret"
	"github.com/cloche-dev/cloche/internal/skill"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// usualCPUs are those of a sandbox that asks for no other number: the built-in
// profile's. Where they are not, the first sandbox waits a little longer.
const usualCPUs = 2

// ephemeralPrefix begins the name of an in-process run's owner.
const ephemeralPrefix = "r-"

// app is everything, wired. Closers run in reverse.
type app struct {
	home *home
	// ruleFile has the operator's rules, and began is what it said at the start.
	ruleFile rulefile.File
	began    rulefile.Loaded
	rules    rules.Rules
	// keys is nil in a run without a daemon.
	keys    *key.Store
	core    *core.Service
	secrets *secret.Store
	// roots are those by which hosts are verified whose TLS is opened; nil is the
	// machine's.
	roots   *x509.CertPool
	manager *sandbox.Manager
	// listeners are where this daemon listens; nil until it does.
	listeners atomic.Pointer[listeners]
	// e2b is where clients of E2B are served; nil until they are.
	e2b atomic.Pointer[e2bAddress]
	// ports is where it serves ports of sandboxes; nil until it does.
	ports   atomic.Pointer[ports]
	log     *slog.Logger
	closers []func(context.Context) error
}

// resumeUsed resumes a suspended sandbox that is used.
func (h *app) resumeUsed(ctx context.Context, creator core.Caller, sb api.Sandbox) error {
	_, err := h.core.Resume(ctx, creator, sb.ID)
	return err
}

// build wires the packages. With ephemeral, the sandboxes die with this process.
func build(ctx context.Context, cfg Config, ephemeral bool) (h *app, err error) {
	h = &app{secrets: secret.New(cfg.logger())}
	logger := h.secrets.Logger()
	h.log = logger
	defer func() {
		if err != nil {
			if cerr := h.close(ctx); cerr != nil {
				logger.Error("close after a failed start", "error", cerr)
			}
			h = nil
		}
	}()
	owner, err := h.enter(ctx, cfg, ephemeral)
	if err != nil {
		return h, err
	}
	// It is there before anything is recorded.
	var events *event.Log
	log, err := audit.Open(auditOptions(h.home.dir, h.rules, h.secrets, func(e api.Event) {
		if events != nil {
			events.Publish(e)
		}
	}))
	if err != nil {
		return h, err
	}
	h.closers = append(h.closers, func(context.Context) error { return log.Close() })
	images, err := h.openImages()
	if err != nil {
		return h, err
	}
	workspaces, snapshots, recordings, err := h.openStores()
	if err != nil {
		return h, err
	}
	gv, engines, err := h.openEngines(cfg, ephemeral)
	if err != nil {
		return h, err
	}
	workspaces.RemoveVolume = removeVolume(context.WithoutCancel(ctx), engines)
	h.takeOver(ctx, engines, workspaces, ephemeral)
	options := sandbox.Options{
		Dir: h.home.ownerDir(), Owner: owner, Ephemeral: ephemeral, Engines: engines, Images: images,
		Workspaces: workspaces, Snapshots: snapshots, AgentImage: agentImage(images), Logger: logger,
		Ended: func(sb api.Sandbox) { h.core.Ended(sb) }, Retention: retentionOf(h.rules.Retention), Suspended: suspendedOf(h.rules.Retention, cfg), Pressure: pressure.Options{Available: hostfile.AvailableMemory, Below: cfg.Available},
		MaySuspend: func(tenant string, bytes int64) error { return h.core.MaySuspend(tenant, bytes) }, Admission: cfg.Admission, AgentSilence: cfg.AgentSilence,
		Resume: h.resumeUsed, Used: func(sb api.Sandbox, u api.AuditUsed) { h.core.Used(sb, u) }, Refused: func(sb api.Sandbox, r pathrule.Denial) { h.core.Refused(sb, r) },
		Secrets: h.secrets.Value, Redact: h.secrets.Redact, Exchanged: func(x api.Exchange) { h.core.Exchanged(x) }, OwnAddress: h.isListener,
		Recordings: recordings, EndpointSockets: endpointSockets(), Pool: poolOf(cfg.Pool, ephemeral),
	}
	var approvals *approval.Queue // of a daemon, where an operator can answer
	if !ephemeral {
		if events, err = h.openEvents(); err != nil {
			return h, err
		}
		approvals = h.listen(&options, events)
	}
	h.openManager(ctx, options)
	userHome, _ := os.UserHomeDir()
	kept, err := h.openJobs(ephemeral)
	if err != nil {
		return h, err
	}
	h.core = core.New(core.Options{
		Jobs: kept, Rules: h.rules, Keys: h.keys, Sandboxes: h.manager, Images: images, Workspaces: workspaces, Snapshots: snapshots, Audit: log, Events: events, Approvals: approvals, Prober: h.prober(engines),
		Logger: logger, Redactor: h.secrets, Version: cfg.Version, Home: h.home.dir, UserHome: userHome, SocketDirs: socketDirs(cfg), E2B: h.e2bAt,
		ImagePins:  func() ([]string, error) { return h.imagePins(snapshots) },
		Recordings: recordings, Skills: skill.Open(cmp.Or(cfg.SkillsDir, h.home.path("skills"))), PortOrigin: h.portOriginOf(ephemeral),
	})
	h.closers = append(h.closers, h.core.CloseJobs)
	if err := snapshots.Sweep(); err != nil {
		logger.Error("sweep what is left of snapshots", "error", err)
	}
	if !ephemeral {
		h.recover(ctx, gv, snapshots)
		h.startPools(ctx, gv, options)
	}
	return h, nil
}

// startPools has a sentry and sandboxes ready for the first requests.
func (h *app) startPools(ctx context.Context, gv kernels, o sandbox.Options) {
	gv.Prepare(o.Owner, usualCPUs, false)
	if o.Pool.Ceiling == 0 {
		return
	}
	if err := gv.PrepareKnown(o.Owner, func() (string, error) { return o.AgentImage(ctx) }); err != nil {
		h.log.Warn("no sandbox is ready before the first request", "error", err)
	}
}

// openEvents opens the list of events, which holds no values of secrets.
func (h *app) openEvents() (*event.Log, error) {
	events, err := event.Open(event.Options{
		Path:  h.home.path("events.ndjson"),
		Clean: func(e api.Event) api.Event { return secret.In(h.secrets.Redact, e) },
	})
	if err == nil {
		h.closers = append(h.closers, func(context.Context) error { return events.Close() })
	}
	return events, err
}

// listen has events of sandboxes published and recorded, and their questions put where an operator can
// answer.
func (h *app) listen(o *sandbox.Options, events *event.Log) *approval.Queue {
	approvals := approval.New(func(a api.Approval) { h.core.Asked(a) })
	o.Ask = approvals.Ask
	o.Events = func(e api.Event) {
		events.Publish(e)
		h.core.Happened(e)
		switch e.Kind {
		case api.EventStopped, api.EventLost, api.EventRemoved:
			approvals.Forget(e.Sandbox)
		}
	}
	return approvals
}

// openManager makes the manager of sandboxes and, below it, their networks. Links that
// outlive this process have an fd store.
func (h *app) openManager(ctx context.Context, o sandbox.Options) {
	networks := openNetworks(ctx, o, network.Options{Logger: h.log, Redact: h.secrets.Redact, Roots: h.roots})
	h.closers = append(h.closers, func(context.Context) error { return networks.Close() })
	o.Networks = networks
	o.Egress = func(sb api.Sandbox, rec api.EgressRecord) { h.core.Left(sb, rec) }
	h.manager = sandbox.New(o)
	h.manager.Files.Unpacker = unpacker()
	h.closers = append(h.closers, h.manager.Close)
}

// openJobs opens the records of jobs, which only a daemon has.
func (h *app) openJobs(ephemeral bool) (*job.Store, error) {
	if ephemeral {
		return nil, nil
	}
	kept, err := job.Open(job.Options{Dir: h.home.path("jobs"), Old: h.home.path("programs")})
	if err == nil {
		h.closers = append(h.closers, func(context.Context) error { return kept.Close() })
	}
	return kept, err
}

// openImages opens the store of images, which all owners share.
func (h *app) openImages() (*image.Store, error) {
	return image.OpenWith(h.home.path("images"), image.Options{Registries: image.RegistryConfig{
		Mirrors: h.rules.Mirrors(), Insecure: h.rules.InsecureRegistries(),
	}})
}

// imagePins are the images that sandboxes of any owner and snapshots are made of.
func (h *app) imagePins(snapshots *snapshot.Store) ([]string, error) {
	pins, err := directory.RecordedImages(h.home.path("owners"))
	if err != nil {
		return nil, err
	}
	kept, err := snapshots.ImageDigests()
	return append(pins, kept...), err
}

// recover finds the world of an earlier daemon again. What cannot be found or
// cleaned now does not keep the daemon from serving.
func (h *app) recover(ctx context.Context, gv kernels, snapshots *snapshot.Store) {
	if err := h.manager.Recover(ctx); err != nil {
		h.log.Error("recover sandboxes", "error", err)
	}
	if err := h.sweepExecutables(gv, snapshots); err != nil {
		h.log.Warn("remove executables that no sandbox uses", "error", err)
	}
	h.core.TellUnreadable(ctx)
	h.core.RecoverJobs(ctx)
	h.core.RefreshEgress(ctx)
	h.core.TidyImages(ctx)
}

// takeOver ends what dead owners of the home left, and adopts the sandboxes of a home
// that was moved. What fails does not keep the daemon from serving.
func (h *app) takeOver(ctx context.Context, engines []engine.Engine, workspaces *workspace.Store, ephemeral bool) {
	if err := h.home.sweepDead(ctx, engines, workspaces); err != nil {
		h.log.Error("sweep what dead runs left", "error", err)
	}
	if ephemeral {
		return
	}
	adopted, err := h.home.adoptMoved(workspaces)
	if err != nil {
		h.log.Error("adopt the sandboxes of a home that was moved", "error", err)
	}
	if len(adopted) > 0 {
		h.log.Warn("this home was moved or restored: its sandboxes are lost, their files and logs are kept", "owners", adopted)
	}
}

// enter opens the home, reads the operator's rules and becomes an owner, whose
// name it returns. A daemon then reads the keys, which are its alone.
func (h *app) enter(ctx context.Context, cfg Config, ephemeral bool) (owner string, err error) {
	if h.home, err = openHome(cfg.Home); err != nil {
		return "", err
	}
	// One that was named must be there, the usual one need not.
	h.ruleFile = rulefile.File{Path: cmp.Or(cfg.Rules, h.home.path("policy.yaml")), Optional: cfg.Rules == "", Over: cfg.RulesOver}
	if h.began, err = h.ruleFile.Load(); err != nil {
		return "", err
	}
	h.rules = h.began.Rules
	if h.roots, err = roots(h.rules); err != nil {
		return "", err
	}
	h.useSecrets(ctx, h.rules)
	owner = h.home.daemonOwner()
	if ephemeral {
		owner = api.NewID(ephemeralPrefix)
	}
	patiently(ctx, func() bool {
		err = h.home.claim(owner)
		return errors.Is(err, errOwned)
	})
	if errors.Is(err, errOwned) {
		return "", api.Errorf(api.CodeState, "a daemon for %s is running already", h.home.dir).
			WithHint("stop it, or choose another directory with --home")
	} else if err != nil {
		return "", err
	}
	h.closers = append(h.closers, func(context.Context) error { return h.home.close(ephemeral) })
	if ephemeral {
		return owner, nil
	}
	if h.keys, err = key.Open(ctx, h.home.dir); err != nil {
		return "", err
	}
	h.closers = append(h.closers, func(context.Context) error { return h.keys.Close() })
	return owner, nil
}

// auditOptions are the operator's rules about the audit log.
func auditOptions(home string, r rules.Rules, secrets *secret.Store, alarm func(api.Event)) audit.Options {
	return audit.Options{
		Home: home, Logger: secrets.Logger(), Redactor: secrets, Degrade: r.AuditDegrades(), Alarm: alarm,
		SegmentBytes: int64(r.Audit.SegmentSize), SegmentAge: time.Duration(r.Audit.SegmentAge),
		KeepBytes: int64(r.Audit.KeepSize), KeepFor: time.Duration(r.Audit.KeepFor),
	}
}

// retentionOf is the operator's rule; without one, the default.
func retentionOf(r rules.RetentionRule) retention.Rule {
	out := retention.Rule{Count: r.Count}
	if r.For != nil {
		// Nothing is kept of what ended a moment ago.
		out.For = max(time.Duration(*r.For), time.Nanosecond)
	}
	return out
}

// suspendedOf is what is done with the memory of sandboxes that stay suspended.
func suspendedOf(r rules.RetentionRule, cfg Config) retention.Suspended {
	out := retention.Suspended{CompressAfter: cfg.CompressAfter}
	if r.Suspended != nil {
		out.KeepFor = time.Duration(*r.Suspended)
	}
	return out
}

// close undoes build in reverse.
func (h *app) close(ctx context.Context) error {
	var errs []error
	for _, c := range slices.Backward(h.closers) {
		errs = append(errs, c(ctx))
	}
	h.closers = nil
	return errors.Join(errs...)
}

// agentImage returns what makes the image of the agent: the one that the build
// embedded, or this very executable, which plays the agent when it is started
// under its name. It is found once; the program does not change while it runs.
func agentImage(images *image.Store) func(context.Context) (string, error) {
	var mu sync.Mutex
	var found string
	return func(ctx context.Context) (path string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if found != "" && images.Touch(found) {
			return found, nil
		}
		if binary, ok := embed.Binary(); ok {
			path, err = images.AgentImage(ctx, binary)
		} else {
			path, err = ownAgent(ctx, images)
		}
		if err == nil {
			found = path
		}
		return path, err
	}
}

// openStores opens what outlives sandboxes beside images.
func (h *app) openStores() (*workspace.Store, *snapshot.Store, *recording.Store, error) {
	workspaces, err := workspace.Open(h.home.dir)
	if err != nil {
		return nil, nil, nil, err
	}
	workspaces.Alive = h.home.alive
	snapshots, err := snapshot.Open(snapshot.Options{Home: h.home.dir, RemoveTree: workspace.RemoveTree})
	if err != nil {
		return nil, nil, nil, err
	}
	recordings, err := recording.Open(h.home.path("recordings"))
	if err != nil {
		return nil, nil, nil, err
	}
	h.closers = append(h.closers, func(context.Context) error { return recordings.Close() })
	return workspaces, snapshots, recordings, nil
}
