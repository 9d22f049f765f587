package mockcore

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// ImageStore are the images, which are what was pulled, imported and built.
type ImageStore struct {
	mu     sync.Mutex
	images []api.Image // but the host
}

// Images has the host, and what was pulled, imported and built.
func (c *ImageStore) Images(context.Context, core.Caller) (api.ImageList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	host := api.Image{Name: api.DefaultImage, Description: "this machine's own tools"}
	return api.ImageList{Images: append([]api.Image{host}, c.images...)}, nil
}

// InspectImage finds an image by its name.
func (c *ImageStore) InspectImage(ctx context.Context, caller core.Caller, ref string) (api.Image, error) {
	all, err := c.Images(ctx, caller)
	if err != nil {
		return api.Image{}, err
	}
	for _, img := range all.Images {
		if img.Name == ref {
			return img, nil
		}
	}
	return api.Image{}, noImage(ref)
}

func noImage(ref string) error {
	return api.Errorf(api.CodeNotFound, "image %q is not on this machine", ref).WithHint("fetch it with `cloche image pull`")
}

// PullImage fetches anything but "gone:1", which no registry has, "broken:1", of
// which half a layer comes, and "forbidden:1", which a rule refuses.
func (c *ImageStore) PullImage(ctx context.Context, _ core.Caller, req api.PullRequest) (api.Image, error) {
	ref, err := api.ParseImageRef(req.Image)
	if err != nil {
		return api.Image{}, err
	}
	tell := core.PullProgress(ctx)
	switch req.Image {
	case "gone:1":
		return api.Image{}, noImage(req.Image)
	case "forbidden:1":
		e := api.Errorf(api.CodeDenied, "image %q is not among those that the operator allows", req.Image).WithHint("images: [forbidden:1]")
		e.Rule, e.Field = "images", "image"
		return api.Image{}, e
	}
	name, layer := ref.Familiar(), Digest("layer of "+ref.String())
	for _, p := range []api.PullProgress{
		{Phase: api.PullResolve}, {Phase: api.PullDownload, Layer: layer, Bytes: 512, TotalBytes: 1024},
	} {
		p.Image = name
		tell(p)
	}
	if req.Image == "broken:1" {
		return api.Image{}, api.Errorf(api.CodeUnavailable, "image %q: the registry broke off while sending a layer", name).WithHint("try again later")
	}
	tell(api.PullProgress{Image: name, Phase: api.PullDone})
	return c.addImage(name, "registry", &api.ImageConfig{Env: []string{"PATH=/bin"}, Cmd: []string{"echo"}}, layer), nil
}

// ImportImage reads all of r, which must not be empty.
func (c *ImageStore) ImportImage(_ context.Context, _ core.Caller, o api.ImportOptions, r io.Reader) (api.Image, error) {
	n, err := io.Copy(io.Discard, r)
	if err != nil {
		return api.Image{}, err
	}
	if n == 0 {
		return api.Image{}, api.Invalid("path", "import: the file is empty").WithHint("send an archive")
	}
	ref, err := api.ParseImageRef(o.Name)
	if err != nil {
		return api.Image{}, err
	}
	return c.addImage(ref.Familiar(), "tar", nil, ""), nil
}

// BuildImage "runs" each line of the Dockerfile.
func (c *ImageStore) BuildImage(_ context.Context, _ core.Caller, req api.ImageBuildRequest, files io.Reader, tell func(api.BuildEvent)) (api.Image, error) {
	if files != nil {
		if _, err := io.Copy(io.Discard, files); err != nil {
			return api.Image{}, err
		}
	}
	ref, err := api.ParseImageRef(req.Name)
	if err != nil {
		return api.Image{}, err
	}
	lines := slices.Collect(strings.Lines(req.Dockerfile))
	for i, line := range lines {
		step := &api.BuildStep{Number: i + 1, Total: len(lines), Text: strings.TrimSpace(line), Cached: strings.HasPrefix(line, "COPY")}
		tell(api.BuildEvent{Step: step})
		if command, ok := strings.CutPrefix(line, "RUN "); ok {
			tell(api.BuildEvent{Stream: api.Stdout, Data: api.Bytes(command)})
		}
		if line == "RUN false\n" {
			return api.Image{}, api.Errorf(api.CodeState, "line %d: RUN false: exit status 1", i+1)
		}
	}
	return c.addImage(ref.Familiar(), "build", nil, ""), nil
}

// CommitImage makes an image of any sandbox.
func (c *Core) CommitImage(ctx context.Context, caller core.Caller, ref string, req api.ImageCommitRequest) (api.Image, error) {
	if _, err := c.Get(ctx, caller, ref); err != nil {
		return api.Image{}, err
	}
	name, err := api.ParseImageRef(req.Name)
	if err != nil {
		return api.Image{}, err
	}
	return c.addImage(name.Familiar(), "build", req.Config, ""), nil
}

// ExportImage writes the name of an image.
func (c *ImageStore) ExportImage(ctx context.Context, caller core.Caller, ref string, w io.Writer) error {
	img, err := c.InspectImage(ctx, caller, ref)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, img.Name)
	return err
}

// PackImage packs any paths.
func (c *ImageStore) PackImage(_ context.Context, _ core.Caller, req api.ImagePackRequest) (api.Image, error) {
	if len(req.Paths) == 0 {
		return api.Image{}, api.Invalid("paths", "build %q: 0 paths were given", req.Name).WithHint("give 1 to 1024")
	}
	ref, err := api.ParseImageRef(req.Name)
	if err != nil {
		return api.Image{}, err
	}
	return c.addImage(ref.Familiar(), "build", req.Config, ""), nil
}

func (c *ImageStore) addImage(name, source string, config *api.ImageConfig, layer string) api.Image {
	at := Epoch()
	img := api.Image{Name: name, Digest: Digest(name), SizeBytes: 4096, Platform: "linux/amd64", Source: source, Config: config, PulledAt: &at}
	if layer != "" {
		img.Layers = []api.ImageLayer{{Digest: layer, DiffID: layer, SizeBytes: 1024}}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images = append(slices.DeleteFunc(c.images, func(i api.Image) bool { return i.Name == name }), img)
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
func (c *ImageStore) RemoveImage(_ context.Context, _ core.Caller, ref string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ref == "busy:1" {
		return api.Errorf(api.CodeConflict, "image %q is in use", ref).WithHint("remove its sandboxes first")
	}
	n := len(c.images)
	if c.images = slices.DeleteFunc(c.images, func(i api.Image) bool { return i.Name == ref }); len(c.images) == n {
		return noImage(ref)
	}
	return nil
}

// PruneImages takes all images away.
func (c *ImageStore) PruneImages(_ context.Context, _ core.Caller, req api.ImagePruneRequest) (api.ImagePruneResult, error) {
	if req.MaxBytes == nil {
		return api.ImagePruneResult{}, api.Invalid("max_bytes", "it is not said how much images may occupy").WithHint("give a size")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := api.ImagePruneResult{Removed: slices.Clone(c.images), FreedBytes: 4096 * int64(len(c.images))}
	if !req.DryRun {
		c.images = nil
	}
	return out, nil
}
