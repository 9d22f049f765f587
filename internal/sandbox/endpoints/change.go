package endpoints

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	// defaultDrain is how long what goes through an endpoint may take to end when it is
	// closed, maxDrain the most that a caller may ask for.
	defaultDrain = 5 * time.Second
	maxDrain     = 10 * time.Minute
)

// Add opens an endpoint of a running sandbox. One of the same name and content is that one; with
// another target and replace, what begins from now on goes there.
func (t *Table) Add(ctx context.Context, g policy.EndpointGrant, replace bool) (api.EndpointStatus, error) {
	defer t.sandbox.Use()()
	client, err := t.sandbox.Agent(ctx)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	t.lock(ctx)
	defer t.ops.Unlock()
	for _, old := range t.Grants() {
		if old.Spec.Name == g.Spec.Name {
			return t.replace(old, g, replace)
		}
	}
	if len(t.Specs()) >= api.MaxEndpoints {
		return api.EndpointStatus{}, api.Errorf(api.CodeTooLarge, "sandbox %s has %d endpoints, which is the most", t.names.Name, api.MaxEndpoints)
	}
	if g, err = t.findPort(ctx, g, client); err != nil {
		return api.EndpointStatus{}, t.sandbox.Explain(err)
	}
	e, err := t.open(t.service.o.Context, g)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	if err := t.bind(ctx, e, client); err != nil {
		e.shut(ctx, 0)
		if g.Auto {
			t.unlisten(context.WithoutCancel(ctx), e.name) // findPort's
		}
		return api.EndpointStatus{}, t.sandbox.Explain(err)
	}
	t.put(g, e)
	if err := t.save(); err != nil {
		t.unlisten(ctx, e.name)
		t.undeclare(e.name)
		e.shut(ctx, 0)
		t.drop(e)
		return api.EndpointStatus{}, err
	}
	t.startKeeper()
	return e.status(), nil
}

// replace gives an endpoint another target. The caller holds ops.
func (t *Table) replace(old, g policy.EndpointGrant, replace bool) (api.EndpointStatus, error) {
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
		err := api.Errorf(api.CodeExists, "sandbox %s has an endpoint named %s", t.names.Name, g.Spec.Name).
			WithHint("choose another name, or replace it")
		err.Field = "name"
		return api.EndpointStatus{}, err
	case old.Spec.Listen != g.Spec.Listen || old.Spec.ListenUser != g.Spec.ListenUser || old.Spec.Raw() != g.Spec.Raw() || old.Spec.Limits != g.Spec.Limits || recordingOf(old.Spec) != recordingOf(g.Spec):
		return api.EndpointStatus{}, api.Errorf(api.CodeConflict, "endpoint %s is open with another address, kind of target, recording or limits", g.Spec.Name).
			WithHint("remove it, and add it again; its target, headers and environment can be replaced")
	}
	if err := e.Switch(g.Spec, g.Ranges); err != nil {
		return api.EndpointStatus{}, api.Errorf(api.CodeInternal, "endpoint %s cannot be switched", e.name).WithCause(err)
	}
	t.put(g, nil)
	if err := t.save(); err != nil {
		return api.EndpointStatus{}, err
	}
	return e.status(), nil
}

// save puts what is declared on record.
func (t *Table) save() error {
	if err := t.sandbox.Save(t.Specs()); err != nil {
		return api.Errorf(api.CodeInternal, "the endpoints of sandbox %s cannot be put on record", t.names.Name).WithCause(err)
	}
	return nil
}

// CheckGrace returns the time that what goes through an endpoint has to end: grace, or the default
// for nil.
func CheckGrace(grace *time.Duration) (time.Duration, error) {
	if grace == nil {
		return defaultDrain, nil
	}
	if *grace < 0 || *grace > maxDrain {
		return 0, api.Invalid("grace_ms", "a grace of %s is not between 0 and %s", *grace, maxDrain)
	}
	return *grace, nil
}

// unlisten takes the listener away inside, if the sandbox can be reached.
func (t *Table) unlisten(ctx context.Context, name string) {
	client, err := t.sandbox.Agent(ctx)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err = client.Unlisten(ctx, name)
	}
	if err != nil {
		// What connects there is turned away.
		t.service.o.Logger.Warn("take an endpoint's listener away", "sandbox", t.names.ID, "endpoint", name, "error", err)
	}
}

// Remove closes an endpoint: nothing new begins, what is under way has
// the grace to end, and the rest is cut off.
func (t *Table) Remove(ctx context.Context, name string, grace time.Duration) (api.EndpointRemoval, error) {
	t.lock(ctx)
	e := t.named(name)
	if !slices.ContainsFunc(t.Specs(), func(o api.Endpoint) bool { return o.Name == name }) {
		t.ops.Unlock()
		return api.EndpointRemoval{}, t.missing(name)
	}
	// A daemon that finds the record does not open it again.
	t.undeclare(name)
	err := t.save()
	if e != nil {
		e.Enter(api.EndpointDraining, "")
		t.unlisten(context.WithoutCancel(ctx), name)
	}
	t.ops.Unlock()
	if err != nil || e == nil {
		return api.EndpointRemoval{}, err
	}
	r := e.shut(context.WithoutCancel(ctx), grace)
	t.drop(e)
	return r, nil
}

func (t *Table) missing(name string) error {
	return api.Errorf(api.CodeNotFound, "sandbox %s has no endpoint %.80q", t.names.Name, name).WithHint("cloche endpoint ls %s lists them", t.names.Name)
}

// Serve has a client serve an endpoint until detach is called.
func (t *Table) Serve(name string, o endpoint.Opener) (detach func(), err error) {
	e := t.named(name)
	if e == nil {
		return nil, t.missing(name)
	}
	release := t.sandbox.Use()
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
