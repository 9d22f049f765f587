package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// volumePrefix begins the daemon's names of volumes that outlive their sandboxes.
const volumePrefix = "cloche-"

// volumes are the mounts of a plan's volumes. One without a name is the daemon's to
// name, and goes with the container.
func volumes(p engine.Plan) []mount.Mount {
	var out []mount.Mount
	for _, v := range p.Volumes {
		m := mount.Mount{
			Type: mount.TypeVolume, Target: v.Target, ReadOnly: v.ReadOnly,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: map[string]string{labelOwner: p.Owner, labelSandbox: p.ID}},
		}
		if v.Name != "" {
			m.Source, m.VolumeOptions.Labels = volumePrefix+v.Name, map[string]string{labelVolume: v.Name}
		}
		out = append(out, m)
	}
	return out
}

// makeVolumes makes the volumes of a plan that have names, where they are not there yet:
// Podman does not label those that it makes for a container, and by its label one is known
// as ours when it is removed.
func (d *daemon) makeVolumes(ctx context.Context, p engine.Plan) error {
	for _, v := range p.Volumes {
		if v.Name == "" {
			continue
		}
		o := client.VolumeCreateOptions{Name: volumePrefix + v.Name, Labels: map[string]string{labelVolume: v.Name}}
		if _, err := d.VolumeCreate(ctx, o); err != nil {
			return fmt.Errorf("make volume: %w", err)
		}
	}
	return nil
}

// writable are the places of the volumes that a sandbox may write to.
func writable(list []engine.Volume) []string {
	var out []string
	for _, v := range list {
		if !v.ReadOnly {
			out = append(out, v.Target)
		}
	}
	return out
}

// RemoveVolume implements engine.VolumeKeeper.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	if !safe(name) {
		return api.Errorf(api.CodeInternal, "remove volume: %q is no name", name)
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	d, problems := e.findDaemon(ctx)
	if d == nil {
		return e.noDaemon("remove volume "+name, problems)
	}
	list, err := d.VolumeList(ctx, client.VolumeListOptions{Filters: withLabel(labelVolume, name)})
	if err != nil {
		return e.classify(ctx, "remove volume "+name, err)
	}
	for _, v := range list.Items {
		// A volume that another program made under such a name is kept.
		if v.Name != volumePrefix+name || v.Labels[labelVolume] != name {
			continue
		}
		if _, err := d.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
			return e.classify(ctx, "remove volume "+name, err)
		}
	}
	return nil
}

// dropVolumes removes the volumes of an owner's sandboxes whose containers are gone,
// which happens when another program removes one: whose says of which.
func (d *daemon) dropVolumes(ctx context.Context, owner string, whose func(sandbox string) bool) error {
	list, err := d.VolumeList(ctx, client.VolumeListOptions{Filters: withLabel(labelOwner, owner)})
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range list.Items {
		if id := v.Labels[labelSandbox]; v.Labels[labelOwner] != owner || id == "" || !whose(id) {
			continue
		}
		if _, err := d.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
