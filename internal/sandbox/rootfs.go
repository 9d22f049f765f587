package sandbox

import (
	"context"
	"os"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// resolveImage finds the root filesystem, which was fetched before if it had to
// be, and what its image says of the processes in it.
func (c *creation) resolveImage(ctx context.Context) error {
	if c.m.copier.remote(c.permit.Engine()) != nil {
		return c.nameTemplate()
	}
	root, err := c.m.opts.Images.Resolve(ctx, c.s.info.Image, image.Need{
		MountPoints: c.mountPoints(), ReadOnlyRoot: c.s.info.ReadOnlyRoot,
	})
	if err != nil {
		return err
	}
	// A name may have moved on since it was judged.
	if err := c.permit.Image().Check(root.Digest, root.Index); err != nil {
		return err
	}
	for _, dir := range root.Masks {
		c.plan.Tmpfs = append(c.plan.Tmpfs, engine.Tmpfs{Target: dir, SizeBytes: maskBytes, Mode: 0o755})
	}
	for _, m := range root.Mounts {
		c.plan.Mounts = append(c.plan.Mounts, engine.Mount{Source: m.Source, Target: m.Target, ReadOnly: true, Static: true, OfImage: true})
	}
	c.plan.Root = engine.Root{Image: root.Image, ReadOnly: c.s.info.ReadOnlyRoot}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.memory != nil {
		return c.pinnedRoot(root.Digest)
	}
	c.s.info.ImageDigest = root.Digest
	stage.TakeUser(&c.s.info, root.User, os.Geteuid() != 0)
	if dir := root.WorkingDir(); dir != "" && c.permit.CwdOpen() {
		c.s.info.Cwd, c.makeCwd = dir, !c.s.info.ReadOnlyRoot
	}
	c.s.image = record.Image{Env: root.Env, Path: root.Image, MissingHint: root.MissingHint}
	return nil
}

// nameTemplate has the image be a template of the service. Its digest is not known here, so a rule about
// digests refuses it.
func (c *creation) nameTemplate() error {
	if err := c.permit.Image().Check("", ""); err != nil {
		return err
	}
	if c.s.info.Image != api.DefaultImage {
		c.plan.Root.Template = c.s.info.Image
	}
	c.plan.Root.ReadOnly = c.s.info.ReadOnlyRoot
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.info.User == "" {
		c.s.info.User = "root"
	}
	c.s.image = record.Image{Env: map[string]string{"PATH": image.DefaultPath}}
	return nil
}

// mountPoints are the paths at which the request puts something.
func (c *creation) mountPoints() []string {
	points := []string{c.s.info.Workspace.Path}
	for _, m := range c.permit.Mounts() {
		points = append(points, m.Target)
	}
	return points
}

// prepareCwd makes the image's working directory, which an image may name
// without having it.
func (c *creation) prepareCwd(ctx context.Context) {
	if !c.makeCwd {
		return
	}
	if err := c.client.MakeDir(ctx, c.s.info.Cwd, 0o755, "root"); err != nil {
		c.m.log.Info("the image's working directory could not be made", "sandbox", c.s.id, "error", err)
	}
}

// ImagesInUse are the digests of the images that the Manager's sandboxes are made
// of, also of those that are stopped and kept.
func (m *Manager) ImagesInUse() []string {
	var digests []string
	for _, s := range m.all() {
		if info := s.snapshot(); info.ImageDigest != "" {
			digests = append(digests, info.ImageDigest)
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests)
}
