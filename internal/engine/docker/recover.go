package docker

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Recover implements engine.Engine. A daemon that does not answer is
// api.CodeUnavailable: the state of the sandbox is not known then.
func (e *Engine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	rec, err := parseRecord(state)
	if err != nil {
		return nil, api.Errorf(api.CodeNotFound, "recover sandbox: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	d, err := e.daemonAt(rec.Host)
	if err != nil {
		return nil, err
	}
	answer, err := d.inspect(ctx, rec.Container)
	switch {
	case errdefs.IsNotFound(err):
		return nil, e.gone(ctx, d, rec)
	case err != nil:
		return nil, e.classify(ctx, "recover sandbox "+rec.ID, err)
	}
	c := answer.Container
	if c.Config == nil || c.Config.Labels[labelOwner] != rec.Owner || c.Config.Labels[labelSandbox] != rec.ID {
		return nil, notFound(rec) // it is not ours
	}
	if c.State == nil || !c.State.Running && !c.State.Paused || rec.Parent != nil && !rec.Parent.alive() {
		if err := d.remove(ctx, rec.Container); err != nil {
			return nil, e.classify(ctx, "remove what is left of sandbox "+rec.ID, err)
		}
		return nil, e.gone(ctx, d, rec)
	}
	i, err := e.instance(d, rec, nil)
	if err != nil {
		return nil, err
	}
	i.state = slices.Clone(state)
	return i, nil
}

// gone removes what is left of an instance that has no container, and says that it is
// dead.
func (e *Engine) gone(ctx context.Context, d *daemon, rec record) error {
	if !rec.Volumes {
		return notFound(rec)
	}
	if err := d.dropVolumes(ctx, rec.Owner, func(id string) bool { return id == rec.ID }); err != nil {
		return e.classify(ctx, "remove what is left of sandbox "+rec.ID, err)
	}
	return notFound(rec)
}

func notFound(rec record) error {
	return api.Errorf(api.CodeNotFound, "recover sandbox %s: it is dead", rec.ID)
}

// Sweep implements engine.Engine. It looks at each daemon that answers.
func (e *Engine) Sweep(ctx context.Context, owner string, keep func(id string) bool) error {
	if !safe(owner) {
		return api.Errorf(api.CodeInternal, "sweep: no owner")
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var errs []error
	for _, host := range e.opts.Hosts {
		if checkHost(host, e.opts.CertDir) != nil {
			continue
		}
		d, err := e.daemonAt(host)
		if err == nil {
			err = d.sweep(ctx, owner, keep)
		}
		if err != nil && !unreachable(err) {
			errs = append(errs, e.classify(ctx, "sweep", err))
		}
	}
	return errors.Join(errs...)
}

func (d *daemon) sweep(ctx context.Context, owner string, keep func(id string) bool) error {
	list, err := d.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: withLabel(labelOwner, owner)})
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list.Items {
		// The daemon's filter is not taken at its word.
		if id := c.Labels[labelSandbox]; c.Labels[labelOwner] != owner || id == "" || engine.Keeps(keep, id) {
			continue
		}
		errs = append(errs, d.remove(ctx, c.ID))
	}
	errs = append(errs, d.dropVolumes(ctx, owner, func(id string) bool { return !engine.Keeps(keep, id) }))
	return errors.Join(errs...)
}
