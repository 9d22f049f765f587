package httpapitest

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Images has the host, and what was pulled, imported and built.
func (c *Core) Images(context.Context, core.Caller) (cloche.ImageList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	host := cloche.Image{Name: cloche.DefaultImage, Description: "this machine's own tools"}
	return cloche.ImageList{Images: append([]cloche.Image{host}, c.images...)}, nil
}

// InspectImage finds an image by its name.
func (c *Core) InspectImage(ctx context.Context, caller core.Caller, ref string) (cloche.Image, error) {
	all, err := c.Images(ctx, caller)
	if err != nil {
		return cloche.Image{}, err
	}
	for _, img := range all.Images {
		if img.Name == ref {
			return img, nil
		}
	}
	return cloche.Image{}, noImage(ref)
}

func noImage(ref string) error {
	return cloche.Errorf(cloche.CodeNotFound, "image %q is not on this machine", ref).WithHint("fetch it with `cloche image pull`")
}

// PullImage fetches anything but "gone:1", which no registry has, "broken:1", of
// which half a layer comes, and "forbidden:1", which a rule refuses.
func (c *Core) PullImage(ctx context.Context, _ core.Caller, req cloche.PullRequest) (cloche.Image, error) {
	ref, err := cloche.ParseImageRef(req.Image)
	if err != nil {
		return cloche.Image{}, err
	}
	tell := core.PullProgress(ctx)
	switch req.Image {
	case "gone:1":
		return cloche.Image{}, noImage(req.Image)
	case "forbidden:1":
		e := cloche.Errorf(cloche.CodeDenied, "image %q is not among those that the operator allows", req.Image).WithHint("images: [forbidden:1]")
		e.Rule, e.Field = "images", "image"
		return cloche.Image{}, e
	}
	name, layer := ref.Familiar(), Digest("layer of "+ref.String())
	for _, p := range []cloche.PullProgress{
		{Phase: cloche.PullResolve}, {Phase: cloche.PullDownload, Layer: layer, Bytes: 512, TotalBytes: 1024},
	} {
		p.Image = name
		tell(p)
	}
	if req.Image == "broken:1" {
		return cloche.Image{}, cloche.Errorf(cloche.CodeUnavailable, "image %q: the registry broke off while sending a layer", name).WithHint("try again later")
	}
	tell(cloche.PullProgress{Image: name, Phase: cloche.PullDone})
	return c.addImage(name, "registry", &cloche.ImageConfig{Env: []string{"PATH=/bin"}, Cmd: []string{"echo"}}, layer), nil
}

// ImportImage reads all of r, which must not be empty.
func (c *Core) ImportImage(_ context.Context, _ core.Caller, o cloche.ImportOptions, r io.Reader) (cloche.Image, error) {
	n, err := io.Copy(io.Discard, r)
	if err != nil {
		return cloche.Image{}, err
	}
	if n == 0 {
		return cloche.Image{}, cloche.Invalid("path", "import: the file is empty").WithHint("send an archive")
	}
	ref, err := cloche.ParseImageRef(o.Name)
	if err != nil {
		return cloche.Image{}, err
	}
	return c.addImage(ref.Familiar(), "tar", nil, ""), nil
}

// BuildImage builds of any paths.
func (c *Core) BuildImage(_ context.Context, _ core.Caller, req cloche.ImageBuildRequest) (cloche.Image, error) {
	if len(req.Paths) == 0 {
		return cloche.Image{}, cloche.Invalid("paths", "build %q: 0 paths were given", req.Name).WithHint("give 1 to 1024")
	}
	ref, err := cloche.ParseImageRef(req.Name)
	if err != nil {
		return cloche.Image{}, err
	}
	return c.addImage(ref.Familiar(), "build", req.Config, ""), nil
}

func (c *Core) addImage(name, source string, config *cloche.ImageConfig, layer string) cloche.Image {
	at := Epoch()
	img := cloche.Image{Name: name, Digest: Digest(name), SizeBytes: 4096, Platform: "linux/amd64", Source: source, Config: config, PulledAt: &at}
	if layer != "" {
		img.Layers = []cloche.ImageLayer{{Digest: layer, DiffID: layer, SizeBytes: 1024}}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images = append(slices.DeleteFunc(c.images, func(i cloche.Image) bool { return i.Name == name }), img)
	return img
}

// Digest makes a digest of a word.
func Digest(word string) string {
	sum := uint64(14695981039346656037)
	for _, b := range []byte(word) {
		sum = (sum ^ uint64(b)) * 1099511628211
	}
	return fmt.Sprintf("sha256:%016x%048x", sum, 0)
}

// RemoveImage takes away one that is not "busy:1".
func (c *Core) RemoveImage(_ context.Context, _ core.Caller, ref string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ref == "busy:1" {
		return cloche.Errorf(cloche.CodeConflict, "image %q is in use", ref).WithHint("remove its sandboxes first")
	}
	n := len(c.images)
	if c.images = slices.DeleteFunc(c.images, func(i cloche.Image) bool { return i.Name == ref }); len(c.images) == n {
		return noImage(ref)
	}
	return nil
}

// PruneImages takes all images away.
func (c *Core) PruneImages(_ context.Context, _ core.Caller, req cloche.ImagePruneRequest) (cloche.ImagePruneResult, error) {
	if req.MaxBytes == nil {
		return cloche.ImagePruneResult{}, cloche.Invalid("max_bytes", "it is not said how much images may occupy").WithHint("give a size")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := cloche.ImagePruneResult{Removed: slices.Clone(c.images), FreedBytes: 4096 * int64(len(c.images))}
	if !req.DryRun {
		c.images = nil
	}
	return out, nil
}
