package sandbox

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/secret"
)

const (
	// defaultDrain is how long what goes through an endpoint may take to end when it is
	// taken away, maxDrain the most that can be asked for.
	defaultDrain = 5 * time.Second
	maxDrain     = 10 * time.Minute
	// maxExchanges bounds the records of exchanges that wait to be told.
	maxExchanges = 10_000
	// maxCaptured bounds what they hold of headers and bodies.
	maxCaptured = 8 << 20
)

// endpointTable holds the endpoints of a sandbox. The zero value has none.
type endpointTable struct {
	// ops serialises what changes the table. It is taken before live.mu.
	ops sync.Mutex

	mu sync.Mutex // guards what follows; nothing is called with it
	// all are those that are open, and declared those on record, in one order.
	all      []*servedEndpoint
	declared []policy.EndpointGrant
	// stop ends the keeper, which closes kept. It is nil if there is none.
	stop context.CancelFunc
	kept chan struct{}
	// share is what all of them have together.
	share endpoint.Share
	// over: the sandbox has ended, and nothing is opened any more.
	over bool
}

// servedEndpoint is one that is open.
type servedEndpoint struct {
	*endpoint.Endpoint
	name string
	// unrecorded counts exchanges that were dropped.
	unrecorded atomic.Int64

	mu sync.Mutex
	// ln takes what connects inside, on the connection on; nil while the sandbox is out
	// of reach.
	ln *agent.Listener
	on *agent.Client
	// serving waits for those who serve it.
	serving sync.WaitGroup
}

// adopt takes over what is on record.
func (t *endpointTable) adopt(grants []policy.EndpointGrant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.declared = grants
}

// grants are what goes on record.
func (t *endpointTable) grants() []policy.EndpointGrant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.declared)
}

// specs are the declared endpoints.
func (t *endpointTable) specs() []api.Endpoint {
	var out []api.Endpoint
	for _, g := range t.grants() {
		out = append(out, g.Spec)
	}
	return out
}

// open are the endpoints that are open now.
func (t *endpointTable) open() []*servedEndpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// named returns an open endpoint by name, or nil.
func (t *endpointTable) named(name string) *servedEndpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.IndexFunc(t.all, func(e *servedEndpoint) bool { return e.name == name }); i >= 0 {
		return t.all[i]
	}
	return nil
}

// exports is what processes of a phase find in their environment. It is made anew
// for each, and nothing of it is kept.
func (t *endpointTable) exports(phase string) map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out map[string]string
	for _, g := range t.declared {
		if i := slices.IndexFunc(t.all, func(e *servedEndpoint) bool { return e.name == g.Spec.Name }); i < 0 || !usable(t.all[i].State()) {
			continue // an unusable address is not exported to processes
		}
		for k, v := range g.Spec.Exports(phase) {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}

// usable says whether what is exported of an endpoint leads somewhere.
func usable(s api.EndpointState) bool {
	return s == api.EndpointBinding || s == api.EndpointReady || s == api.EndpointDegraded
}

// put adds an endpoint, or its other declaration.
func (t *endpointTable) put(g policy.EndpointGrant, e *servedEndpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.IndexFunc(t.declared, func(d policy.EndpointGrant) bool { return d.Spec.Name == g.Spec.Name }); i >= 0 {
		t.declared[i] = g
	} else {
		t.declared = append(t.declared, g)
	}
	if e != nil {
		t.all = append(t.all, e)
	}
}

// undeclare takes an endpoint off the record, drop out of the open ones.
func (t *endpointTable) undeclare(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.declared = slices.DeleteFunc(slices.Clone(t.declared), func(g policy.EndpointGrant) bool { return g.Spec.Name == name })
}

func (t *endpointTable) drop(e *servedEndpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = slices.DeleteFunc(slices.Clone(t.all), func(o *servedEndpoint) bool { return o == e })
}

// HasSecrets says whether endpoints can be given the values of secrets.
func (m *Manager) HasSecrets() bool { return m.opts.Secrets != nil }

// endpointSecrets are where endpoints find the values that they add; nil is nowhere.
// Policy has said which of them may go to the target.
func (m *Manager) endpointSecrets() endpoint.Secrets {
	if m.opts.Secrets == nil {
		return nil
	}
	return secretValues(m.opts.Secrets)
}

// secretValues is a function that is endpoint.Secrets.
type secretValues func(ctx context.Context, name string) (string, error)

// Value implements endpoint.Secrets.
func (f secretValues) Value(ctx context.Context, name, _ string) (string, error) { return f(ctx, name) }

// watchEndpoint is who is told what happens at one endpoint.
type watchEndpoint struct {
	m *Manager
	s *live
	e *servedEndpoint
}

// Exchanged implements endpoint.Observer.
func (w *watchEndpoint) Exchanged(x api.Exchange) {
	if w.m.exchanges == nil {
		return
	}
	x = secret.In(w.m.opts.Redact, x)
	if n := x.Capture.Size(); n > 0 && w.m.captured.Add(n) > maxCaptured {
		w.m.captured.Add(-n)
		x.Capture = &api.ExchangeCapture{Omitted: []string{"too much waits to be recorded"}}
	}
	for {
		select {
		case w.m.exchanges <- x:
			return
		default:
		}
		select {
		case old := <-w.m.exchanges: // the oldest gives way
			w.m.captured.Add(-old.Capture.Size())
			w.e.unrecorded.Add(1)
		default:
		}
	}
}

// Changed implements endpoint.Observer.
func (w *watchEndpoint) Changed(state api.EndpointState, reason string) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if !w.s.making.announced() {
		return // it belongs to the create
	}
	w.m.opts.Events(api.Event{
		Time: now(), Kind: api.EventKind("endpoint." + string(state)), Tenant: w.s.tenant, Sandbox: w.s.id, Name: w.s.name,
		Endpoint: w.e.name, Reason: reason,
	})
}

// tellExchanges tells records on, until the Manager closes and no more come.
func (m *Manager) tellExchanges() {
	for {
		select {
		case x := <-m.exchanges:
			m.tellExchange(x)
			continue
		case <-m.ctx.Done():
		}
		for {
			select {
			case x := <-m.exchanges:
				m.tellExchange(x)
			default:
				return
			}
		}
	}
}

func (m *Manager) tellExchange(x api.Exchange) {
	m.captured.Add(-x.Capture.Size())
	m.opts.Exchanged(x)
}

// newEndpoint makes an endpoint that serves nothing yet.
func (m *Manager) newEndpoint(ctx context.Context, s *live, g policy.EndpointGrant) (*servedEndpoint, error) {
	e := &servedEndpoint{name: g.Spec.Name}
	record, play, err := m.recordings(s, g.Spec)
	if err != nil {
		return nil, err
	}
	e.Endpoint, err = endpoint.New(ctx, endpoint.Options{
		Record: record, Play: play,
		Spec: g.Spec, Ranges: g.Ranges, Own: m.opts.OwnAddress, Tenant: s.tenant, Sandbox: s.id, Secrets: m.endpointSecrets(), Redact: m.opts.Redact,
		Observer: &watchEndpoint{m, s, e}, Share: &s.endpoints.share, Sockets: m.sockets, Logger: m.log,
	})
	if err != nil {
		if record != nil {
			record.Close()
		}
		if play != nil {
			play.Close()
		}
		return nil, api.Errorf(api.CodeInternal, "endpoint %s cannot be made", g.Spec.Name).WithCause(err)
	}
	return e, nil
}

// bind puts an endpoint in its place inside, and serves it.
func (m *Manager) bind(ctx context.Context, s *live, e *servedEndpoint, client *agent.Client) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	spec := e.Status().Endpoint
	o := agent.ListenOptions{ID: e.name, Port: spec.Port(), HTTP: !spec.Raw(), Connections: spec.Limits.Connections}
	if o.Socket = spec.Socket(); o.Socket != "" {
		o.User, o.Outside = spec.ListenUser, s.sharedDirs()
	}
	ln, err := client.Listen(ctx, o)
	if err != nil {
		if api.CodeOf(err) == api.CodeConflict {
			ce := api.Errorf(api.CodeConflict, "the address of endpoint %s is in use: something has %s in the sandbox", e.name, spec.Listen).
				WithHint("choose another, or end what has it")
			ce.Field = "listen"
			return ce
		}
		return err
	}
	e.mu.Lock()
	e.ln, e.on = ln, client
	e.mu.Unlock()
	e.serving.Go(func() { e.Serve(ln) })
	return nil
}

// sharedDirs are where others see what the sandbox has too.
func (s *live) sharedDirs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirs := []string{s.info.Workspace.Path}
	for _, m := range s.info.Mounts {
		dirs = append(dirs, m.Target)
	}
	return dirs
}

// unbind ends what serves an endpoint; inside it stays.
func (e *servedEndpoint) unbind() {
	e.mu.Lock()
	ln := e.ln
	e.ln, e.on = nil, nil
	e.mu.Unlock()
	if ln != nil {
		ln.Close()
	}
}

// shut ends an endpoint. What is under way has the grace.
func (e *servedEndpoint) shut(ctx context.Context, grace time.Duration) api.EndpointRemoval {
	e.unbind()
	r := e.Close(ctx, grace)
	e.serving.Wait()
	return r
}

// Endpoints tells of the endpoints of a sandbox, by name.
func (m *Manager) Endpoints(caller policy.Caller, ref string) (api.EndpointList, error) {
	s, err := m.find(caller, policy.VerbEndpoints, ref)
	if err != nil {
		return api.EndpointList{}, err
	}
	out := api.EndpointList{Endpoints: []api.EndpointStatus{}}
	seen := map[string]bool{}
	for _, e := range s.endpoints.open() {
		out.Endpoints, seen[e.name] = append(out.Endpoints, e.status()), true
	}
	stopped := s.snapshot().StoppedAt
	for _, spec := range s.endpoints.specs() {
		if seen[spec.Name] {
			continue
		}
		st := api.EndpointStatus{Endpoint: spec, State: api.EndpointClosed}
		if stopped != nil {
			st.Since = *stopped
		}
		out.Endpoints = append(out.Endpoints, withViews(st))
	}
	slices.SortFunc(out.Endpoints, func(a, b api.EndpointStatus) int { return strings.Compare(a.Endpoint.Name, b.Endpoint.Name) })
	return out, nil
}

// status is the endpoint's, as both sides see it.
func (e *servedEndpoint) status() api.EndpointStatus {
	st := withViews(e.Status())
	st.Counters.Unrecorded = e.unrecorded.Load()
	return st
}

func withViews(st api.EndpointStatus) api.EndpointStatus {
	st.HostView.URL = st.Endpoint.Target
	switch {
	case st.Endpoint.Socket() != "":
		st.SandboxView.URL = st.Endpoint.Listen
	case st.Endpoint.Raw():
		st.SandboxView.URL = "tcp://" + st.Endpoint.Listen
	default:
		st.SandboxView.URL = "http://" + st.Endpoint.Listen
	}
	st.SandboxView.Env = st.Endpoint.Exports(api.PhaseRun)
	return st
}

// Declared are the endpoints of a sandbox as they were granted.
func (m *Manager) Declared(caller policy.Caller, verb policy.Verb, ref string) ([]api.Endpoint, error) {
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return nil, err
	}
	return s.endpoints.specs(), nil
}

// AddEndpoint puts an endpoint into a running sandbox. One of the same name and
// content is that one; with another target and replace, what begins from now on goes
// there.
func (m *Manager) AddEndpoint(ctx context.Context, caller policy.Caller, ref string, permit policy.EndpointPermit, replace bool) (api.EndpointStatus, error) {
	s, err := m.find(caller, policy.VerbAddEndpoint, ref)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	if !permit.Valid() {
		return api.EndpointStatus{}, api.Errorf(api.CodeDenied, "no policy has granted this endpoint")
	}
	defer s.use()()
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	t, g := &s.endpoints, permit.Grant()
	t.lock(ctx)
	defer t.ops.Unlock()
	for _, old := range t.grants() {
		if old.Spec.Name == g.Spec.Name {
			return m.replaceEndpoint(s, old, g, replace)
		}
	}
	if len(t.specs()) >= api.MaxEndpoints {
		return api.EndpointStatus{}, api.Errorf(api.CodeTooLarge, "sandbox %s has %d endpoints, which is the most", s.name, api.MaxEndpoints)
	}
	if g, err = m.findPort(ctx, s, g, client); err != nil {
		return api.EndpointStatus{}, s.explain(err)
	}
	e, err := m.newEndpoint(m.ctx, s, g)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	if err := m.bind(ctx, s, e, client); err != nil {
		e.shut(ctx, 0)
		if g.Auto {
			m.unlisten(context.WithoutCancel(ctx), s, e.name) // findPort's
		}
		return api.EndpointStatus{}, s.explain(err)
	}
	t.put(g, e)
	if err := m.saveEndpoints(s); err != nil {
		m.unlisten(ctx, s, e.name)
		t.undeclare(e.name)
		e.shut(ctx, 0)
		t.drop(e)
		return api.EndpointStatus{}, err
	}
	m.keepEndpoints(s)
	return e.status(), nil
}

// replaceEndpoint gives an endpoint another target. The caller holds ops.
func (m *Manager) replaceEndpoint(s *live, old, g policy.EndpointGrant, replace bool) (api.EndpointStatus, error) {
	t := &s.endpoints
	e := t.named(g.Spec.Name)
	if g.Auto && old.Auto {
		g.Spec.Listen = old.Spec.Listen // which was chosen, and stays
	}
	switch {
	case e == nil:
		return api.EndpointStatus{}, api.Errorf(api.CodeState, "endpoint %s is not open", g.Spec.Name).WithHint("remove it, and add it again")
	case reflect.DeepEqual(old.Spec, g.Spec):
		return e.status(), nil
	case !replace:
		err := api.Errorf(api.CodeExists, "sandbox %s has an endpoint named %s", s.name, g.Spec.Name).
			WithHint("choose another name, or replace it")
		err.Field = "name"
		return api.EndpointStatus{}, err
	case old.Spec.Listen != g.Spec.Listen || old.Spec.ListenUser != g.Spec.ListenUser || old.Spec.Raw() != g.Spec.Raw() || old.Spec.Limits != g.Spec.Limits || taped(old.Spec) != taped(g.Spec):
		return api.EndpointStatus{}, api.Errorf(api.CodeConflict, "endpoint %s is open with another address, kind of target, recording or limits", g.Spec.Name).
			WithHint("remove it, and add it again; its target, headers and environment can be replaced")
	}
	if err := e.Switch(g.Spec, g.Ranges); err != nil {
		return api.EndpointStatus{}, api.Errorf(api.CodeInternal, "endpoint %s cannot be switched", e.name).WithCause(err)
	}
	t.put(g, nil)
	if err := m.saveEndpoints(s); err != nil {
		return api.EndpointStatus{}, err
	}
	return e.status(), nil
}

// saveEndpoints puts what is declared on record.
func (m *Manager) saveEndpoints(s *live) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.Endpoints = s.endpoints.specs()
	if err := s.save(); err != nil {
		return api.Errorf(api.CodeInternal, "the endpoints of sandbox %s cannot be put on record", s.name).WithCause(err)
	}
	return nil
}

// unlisten takes the listener away inside, if the sandbox can be reached.
func (m *Manager) unlisten(ctx context.Context, s *live, name string) {
	client, err := m.agentOf(ctx, s)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err = client.Unlisten(ctx, name)
	}
	if err != nil {
		// What connects there is turned away.
		m.log.Warn("take an endpoint's listener away", "sandbox", s.id, "endpoint", name, "error", err)
	}
}

// RemoveEndpoint takes an endpoint away: nothing new begins, what is under way has
// the grace to end, which nil is defaultDrain, and the rest is cut off.
func (m *Manager) RemoveEndpoint(ctx context.Context, caller policy.Caller, ref, name string, grace *time.Duration) (api.EndpointRemoval, error) {
	wait := defaultDrain
	if grace != nil {
		if wait = *grace; wait < 0 || wait > maxDrain {
			return api.EndpointRemoval{}, api.Invalid("grace_ms", "a grace of %s is not between 0 and %s", wait, maxDrain)
		}
	}
	s, err := m.find(caller, policy.VerbRemoveEndpoint, ref)
	if err != nil {
		return api.EndpointRemoval{}, err
	}
	t := &s.endpoints
	t.lock(ctx)
	e := t.named(name)
	if !slices.ContainsFunc(t.specs(), func(o api.Endpoint) bool { return o.Name == name }) {
		t.ops.Unlock()
		return api.EndpointRemoval{}, noEndpoint(s, name)
	}
	// Whoever finds the record does not open it again.
	t.undeclare(name)
	err = m.saveEndpoints(s)
	if e != nil {
		e.Enter(api.EndpointDraining, "")
		m.unlisten(context.WithoutCancel(ctx), s, name)
	}
	t.ops.Unlock()
	if err != nil || e == nil {
		return api.EndpointRemoval{}, err
	}
	r := e.shut(context.WithoutCancel(ctx), wait)
	t.drop(e)
	return r, nil
}

func noEndpoint(s *live, name string) error {
	return api.Errorf(api.CodeNotFound, "sandbox %s has no endpoint %.80q", s.name, name).WithHint("cloche endpoint ls %s lists them", s.name)
}

// ServeEndpoint has a client serve an endpoint until detach is called.
func (m *Manager) ServeEndpoint(caller policy.Caller, ref, name string, o endpoint.Opener) (detach func(), err error) {
	s, err := m.find(caller, policy.VerbServeEndpoint, ref)
	if err != nil {
		return nil, err
	}
	e := s.endpoints.named(name)
	if e == nil {
		return nil, noEndpoint(s, name)
	}
	release := s.use()
	letGo, err := e.Attach(o)
	if err != nil {
		release()
		return nil, err
	}
	return func() {
		letGo()
		release()
	}, nil
}
