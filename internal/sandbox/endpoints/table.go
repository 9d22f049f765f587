package endpoints

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Table holds the endpoints of a sandbox. The zero value has none; [Table.Init] comes before any is
// opened. It is safe for concurrent use.
type Table struct {
	service *Service
	names   Names
	sandbox Sandbox

	// ops serialises what changes the table. It is taken before the sandbox's own lock.
	ops sync.Mutex

	mu sync.Mutex // guards what follows; nothing is called with it
	// all are those that are open, and declared those on record, in one order.
	all      []*served
	declared []policy.EndpointGrant
	// stop ends the keeper, which closes kept. It is nil without a keeper.
	stop context.CancelFunc
	kept chan struct{}
	// share is what all of them have together.
	share endpoint.Share
	// over: the sandbox has ended, and nothing is opened any more.
	over bool
}

// Init gives the table its service and its sandbox. It is called before the table is used.
func (t *Table) Init(service *Service, names Names, sandbox Sandbox) {
	t.service, t.names, t.sandbox = service, names, sandbox
}

// lock locks the table for a call.
func (t *Table) lock(ctx context.Context) {
	defer await.For(ctx, "another change of the sandbox's endpoints")()
	t.ops.Lock()
}

// Len is how many endpoints are open.
func (t *Table) Len() int { return len(t.served()) }

// Active adds to sums the requests under way at each endpoint, by the endpoint's name.
func (t *Table) Active(sums map[string]int64) {
	for _, e := range t.served() {
		sums[e.name] += e.Status().Counters.Active
	}
}

// Adopt takes over what is on record.
func (t *Table) Adopt(grants []policy.EndpointGrant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.declared = grants
}

// Grants are what goes on record.
func (t *Table) Grants() []policy.EndpointGrant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.declared)
}

// Specs are the declared endpoints.
func (t *Table) Specs() []api.Endpoint {
	var out []api.Endpoint
	for _, g := range t.Grants() {
		out = append(out, g.Spec)
	}
	return out
}

// served are the endpoints that are open now.
func (t *Table) served() []*served {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// named returns an open endpoint by name, or nil.
func (t *Table) named(name string) *served {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.IndexFunc(t.all, func(e *served) bool { return e.name == name }); i >= 0 {
		return t.all[i]
	}
	return nil
}

// Exports is what processes of a phase find in their environment. It is made anew
// for each, and nothing of it is kept.
func (t *Table) Exports(phase string) map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out map[string]string
	for _, g := range t.declared {
		if i := slices.IndexFunc(t.all, func(e *served) bool { return e.name == g.Spec.Name }); i < 0 || !usable(t.all[i].State()) {
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
func (t *Table) put(g policy.EndpointGrant, e *served) {
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
func (t *Table) undeclare(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.declared = slices.DeleteFunc(slices.Clone(t.declared), func(g policy.EndpointGrant) bool { return g.Spec.Name == name })
}

func (t *Table) drop(e *served) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = slices.DeleteFunc(slices.Clone(t.all), func(o *served) bool { return o == e })
}

// List describes the endpoints, by name.
func (t *Table) List() api.EndpointList {
	out := api.EndpointList{Endpoints: []api.EndpointStatus{}}
	seen := map[string]bool{}
	for _, e := range t.served() {
		out.Endpoints, seen[e.name] = append(out.Endpoints, e.status()), true
	}
	stopped := t.sandbox.StoppedAt()
	for _, spec := range t.Specs() {
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
	return out
}
