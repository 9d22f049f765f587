package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/ctxio"
)

// ImportOptions say how to import.
type ImportOptions struct {
	// Format is what a tar must be; empty takes what it is.
	Format api.ImageFormat
	// Ref chooses one image of an archive or layout that holds several, by the name
	// it has there.
	Ref string
	// Platform is as in PullOptions.
	Platform string
	// Config is for what brings none of its own: a plain tar or a directory.
	Config api.ImageConfig
	Limits archive.Limits
	// Progress, which may be nil, is told how far it is; one call at a time.
	Progress func(api.PullProgress)
}

// Import makes an image called name of what is at path: an OCI layout (a
// directory or a tar), an archive of `docker save`, or a root filesystem as a
// tar or a directory. Tars may be compressed. With an empty name it has the one
// that it has there. Nothing of path is followed out of it.
func (s *Store) Import(ctx context.Context, name, path string, o ImportOptions) (api.Image, error) {
	info, err := os.Stat(path)
	if err != nil {
		return api.Image{}, api.Invalid("path", "import %s: it cannot be looked at", clip(path)).WithCause(err)
	}
	im, err := s.newImport(name, o)
	if err != nil {
		return api.Image{}, err
	}
	if info.IsDir() {
		return im.end(ctx, im.directory(ctx, path))
	}
	f, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return api.Image{}, api.Invalid("path", "import %s: it cannot be opened", clip(path)).WithCause(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return api.Image{}, api.Invalid("path", "import %s: it is neither a file nor a directory", clip(path)).WithCause(err)
	}
	return im.end(ctx, im.file(ctx, f))
}

// ImportStream is Import of a tar of any of these kinds that comes as a stream.
func (s *Store) ImportStream(ctx context.Context, name string, r io.Reader, o ImportOptions) (api.Image, error) {
	im, err := s.newImport(name, o)
	if err != nil {
		return api.Image{}, err
	}
	f, err := im.spool(ctx, r)
	if err != nil {
		return im.end(ctx, err)
	}
	defer f.Close()
	return im.end(ctx, im.file(ctx, f))
}

// importing is one import on its way.
type importing struct {
	store   *Store
	ref     api.ImageRef // zero until the name is known
	want    v1.Platform
	options ImportOptions
	report  *reporter
	record  imageRecord
}

func (s *Store) newImport(name string, o ImportOptions) (*importing, error) {
	want, err := platform(o.Platform)
	if err != nil {
		return nil, err
	}
	switch o.Format {
	case "", api.FormatOCIArchive, api.FormatDockerArchive, api.FormatTar:
	default:
		return nil, api.Invalid("format", "there is no format %q", clip(string(o.Format))).
			WithHint("%s, %s or %s; leave it out to take what it is", api.FormatOCIArchive, api.FormatDockerArchive, api.FormatTar)
	}
	im := &importing{
		store: s, want: want, options: o, report: &reporter{image: name, tell: o.Progress},
		record: imageRecord{Version: imageRecordVersion, Platform: want.String(), Pulled: time.Now().UTC()},
	}
	s.oci.sweepTemps()
	if name == "" {
		return im, nil
	}
	return im, im.name(name)
}

// name settles what the image is called.
func (im *importing) name(name string) error {
	ref, err := api.ParseImageRef(name)
	if err != nil {
		return err
	}
	if name == api.DefaultImage || ref.Digest != "" {
		return api.Invalid("name", "an image cannot be imported as %q", clip(name)).WithHint(`choose a name such as "base" or "team/base:1"`)
	}
	im.ref = ref
	im.report.image = ref.Familiar()
	return nil
}

// end makes what was imported seen, unless err says that nothing was.
func (im *importing) end(ctx context.Context, err error) (api.Image, error) {
	r := im.record
	if err == nil {
		err = im.store.oci.edit(ctx, func(n names) { n[im.ref.String()] = r.Digest })
	}
	switch {
	case err == nil:
		im.report.say(api.PullProgress{Phase: api.PullDone})
		return r.image(im.ref.Familiar()), nil
	case isDiskFull(err):
		return api.Image{}, diskFull(im.report.image, err)
	case ctx.Err() != nil:
		return api.Image{}, api.Errorf(api.CodeCanceled, "import %q: it was canceled", im.report.image).WithCause(err)
	}
	return api.Image{}, hinted(err, "what is imported is damaged, or not what it should be: make it again, with `docker save`, as an OCI layout or as a tar of a root filesystem")
}

// spool keeps a stream in a file without a name, uncompressed.
func (im *importing) spool(ctx context.Context, r io.Reader) (_ *os.File, err error) {
	z, err := archive.Decompress(ctxio.Reader(ctx, r))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	f, err := im.store.oci.temp("import-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	most := im.options.Limits.Bytes
	if most <= 0 {
		most = 64 << 30
	}
	n, err := io.Copy(f, io.LimitReader(z, most+1))
	switch {
	case err != nil && isDiskFull(err), err != nil && ctx.Err() != nil:
	case err != nil:
		err = api.Invalid("path", "import: what is compressed cannot be read").WithCause(err)
	case n > most:
		err = api.Errorf(api.CodeTooLarge, "import: it has more than %d bytes", most)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// file imports a tar, which f is, compressed or not.
func (im *importing) file(ctx context.Context, f *os.File) error {
	head := make([]byte, 512)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read archive: %w", err)
	}
	if n == 0 {
		return api.Invalid("path", "import: the file is empty")
	}
	if n < 512 || string(head[257:262]) != "ustar" {
		// Old tars have no mark either; spooling one costs only space.
		plain, err := im.spool(ctx, io.NewSectionReader(f, 0, 1<<62))
		if err != nil {
			return err
		}
		defer plain.Close()
		f = plain
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	index, err := archive.Index(f, im.options.Limits)
	if err != nil {
		return err
	}
	if im.options.Format != api.FormatTar {
		done, err := im.bundle(ctx, newTarBundle(f, index))
		if done || err != nil {
			return err
		}
		if im.options.Format != "" {
			return im.otherFormat(api.FormatTar)
		}
	}
	im.record.Source = "tar"
	return im.plain(ctx, func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(f, 0, 1<<62)), nil
	})
}

// directory imports a directory.
func (im *importing) directory(ctx context.Context, path string) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return api.Invalid("path", "import %s: it cannot be opened", clip(path)).WithCause(err)
	}
	defer root.Close()
	done, err := im.bundle(ctx, dirBundle{root})
	if done || err != nil {
		return err
	}
	im.record.Source = "directory"
	return im.plain(ctx, func(ctx context.Context) (io.ReadCloser, error) { return packDir(ctx, root), nil })
}

// plain imports a root filesystem that has no configuration.
func (im *importing) plain(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) error {
	im.record.Layers = []api.ImageLayer{{}}
	im.record.Config = im.options.Config
	return im.keep(ctx, []layerSource{{open: open}})
}

// identify gives what came without a manifest a digest: the same files with the
// same configuration are the same image.
func (im *importing) identify() error {
	config, err := json.Marshal(struct {
		Architecture string          `json:"architecture"`
		OS           string          `json:"os"`
		Config       api.ImageConfig `json:"config"`
		Layer        string          `json:"layer"`
	}{im.want.Architecture, im.want.OS, im.record.Config, im.record.Layers[0].DiffID})
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	im.record.Digest = digestOf(config)
	return nil
}

// bundle imports what b holds, if that is an OCI layout or an archive of Docker.
func (im *importing) bundle(ctx context.Context, b bundle) (bool, error) {
	if b.has("oci-layout") && b.has("index.json") {
		if im.options.Format == api.FormatDockerArchive {
			// What `docker save` writes today is both.
			if done, err := im.docker(ctx, b); done || err != nil {
				return done, err
			}
			return true, im.otherFormat(api.FormatOCIArchive)
		}
		im.record.Source = "oci"
		return true, im.layout(ctx, b)
	}
	return im.docker(ctx, b)
}

// docker imports what b holds, if that is an archive of Docker.
func (im *importing) docker(ctx context.Context, b bundle) (bool, error) {
	if !b.has("manifest.json") {
		return false, nil
	}
	var list []savedImage
	data, err := readBundle(b, "manifest.json", maxManifest)
	// A root filesystem may have a file of that name that is something else.
	if err != nil || json.Unmarshal(data, &list) != nil || len(list) == 0 || list[0].Config == "" {
		return false, nil
	}
	if im.options.Format == api.FormatOCIArchive {
		return true, im.otherFormat(api.FormatDockerArchive)
	}
	im.record.Source = "docker-archive"
	return true, im.saved(ctx, b, list)
}

func (im *importing) otherFormat(is api.ImageFormat) error {
	return api.Invalid("format", "import: it was said to be %q, and it is %q", im.options.Format, is).WithHint("leave the format out to take what it is")
}

// savedImage is an image in an archive of `docker save`.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (im *importing) saved(ctx context.Context, b bundle, list []savedImage) error {
	chosen, err := im.chooseSaved(list)
	if err != nil {
		return err
	}
	if im.ref.Repository == "" && len(chosen.RepoTags) > 0 {
		if err := im.name(chosen.RepoTags[0]); err != nil {
			return err
		}
	}
	if len(chosen.Layers) > maxLayers {
		return api.Errorf(api.CodeTooLarge, "import: the image has more than %d layers", maxLayers)
	}
	body, err := readBundle(b, chosen.Config, maxConfigFile)
	if err != nil {
		return err
	}
	config, err := parseConfig(im.report.image, body, im.want, len(chosen.Layers))
	if err != nil {
		return err
	}
	im.record.Digest, im.record.Config, im.record.Created = digestOf(body), keepConfig(config), created(config)
	var sources []layerSource
	for i, path := range chosen.Layers {
		info := api.ImageLayer{DiffID: config.RootFS.DiffIDs[i].String()}
		sources = append(sources, im.local(b, path, info))
	}
	return im.layers(ctx, sources)
}

func (im *importing) chooseSaved(list []savedImage) (savedImage, error) {
	var all []string
	for _, saved := range list {
		all = append(all, saved.RepoTags...)
		if im.options.Ref != "" && slices.ContainsFunc(saved.RepoTags, func(tag string) bool { return sameRef(tag, im.options.Ref) }) {
			return saved, nil
		}
	}
	if len(list) == 1 && im.options.Ref == "" {
		return list[0], nil
	}
	return savedImage{}, im.ambiguous(all)
}

func (im *importing) ambiguous(names []string) error {
	return api.Invalid("ref", "import: of the images in it none is chosen by the reference %q", clip(im.options.Ref)).
		WithHint("choose one of: %s", clip(strings.Join(names, ", ")))
}

func sameRef(a, b string) bool {
	x, err1 := api.ParseImageRef(a)
	y, err2 := api.ParseImageRef(b)
	return a == b || err1 == nil && err2 == nil && x == y
}

// layout imports an image of an OCI layout.
func (im *importing) layout(ctx context.Context, b bundle) error {
	body, err := readBundle(b, "index.json", maxManifest)
	if err != nil {
		return err
	}
	d, err := parseManifest(im.report.image, body)
	if err != nil {
		return err
	}
	if d, err = im.chooseLayout(d); err != nil {
		return err
	}
	digest := ""
	for depth := 0; d.isIndex(); depth++ {
		if depth > 3 {
			return api.Invalid("image", "import: its list of platforms leads to lists only")
		}
		if depth > 0 && im.record.Index == "" {
			im.record.Index = digest
		}
		next, err := im.pick(d)
		if err != nil {
			return err
		}
		if digest = next.Digest.String(); !api.ValidDigest(digest) {
			return api.Invalid("image", "import: its index names the digest %q", clip(digest))
		}
		if body, err = readBlob(b, digest, maxManifest); err != nil {
			return err
		}
		if d, err = parseManifest(im.report.image, body); err != nil {
			return err
		}
	}
	layers, err := d.checkLayers(im.report.image)
	if err != nil {
		return err
	}
	if body, err = readBlob(b, d.Config.Digest.String(), maxConfigFile); err != nil {
		return err
	}
	config, err := parseConfig(im.report.image, body, im.want, len(layers))
	if err != nil {
		return err
	}
	im.record.Digest, im.record.Config, im.record.Created = digest, keepConfig(config), created(config)
	var sources []layerSource
	for i, l := range layers {
		info := api.ImageLayer{Digest: l.Digest.String(), DiffID: config.RootFS.DiffIDs[i].String(), SizeBytes: l.Size}
		sources = append(sources, im.local(b, blobPath(info.Digest), info))
	}
	return im.layers(ctx, sources)
}

// pick is the platform's manifest of an index; one that does not say what it is
// for is taken when there is no other.
func (im *importing) pick(d document) (v1.Descriptor, error) {
	if len(d.Manifests) == 1 {
		return d.Manifests[0], nil
	}
	return d.choose(im.report.image, im.want)
}

// Annotations with which a layout names its images.
const (
	refAnnotation  = "org.opencontainers.image.ref.name"
	nameAnnotation = "io.containerd.image.name"
)

// chooseLayout leaves of the index of a layout what has the name that was asked
// for.
func (im *importing) chooseLayout(d document) (document, error) {
	var kept []v1.Descriptor
	var all []string
	for _, m := range d.Manifests {
		called := []string{m.Annotations[nameAnnotation], m.Annotations[refAnnotation]}
		for _, n := range called {
			if n != "" {
				all = append(all, n)
			}
		}
		if im.options.Ref == "" || slices.ContainsFunc(called, func(n string) bool { return n != "" && sameRef(n, im.options.Ref) }) {
			kept = append(kept, m)
		}
	}
	if len(kept) == 0 {
		return d, im.ambiguous(all)
	}
	if len(kept) > 1 && !slices.ContainsFunc(kept, func(m v1.Descriptor) bool { return m.Platform != nil }) {
		return d, im.ambiguous(all)
	}
	if called := kept[0].Annotations[nameAnnotation]; im.ref.Repository == "" && called != "" {
		if err := im.name(called); err != nil {
			return d, err
		}
	}
	d.Manifests = kept
	return d, nil
}

// layers makes the image of its layers, under its lock.
func (im *importing) layers(ctx context.Context, sources []layerSource) error {
	unlock, err := im.store.oci.lock(ctx, hexOf(im.record.Digest))
	if err != nil {
		return err
	}
	defer unlock()
	for _, src := range sources {
		im.record.Layers = append(im.record.Layers, src.info)
	}
	return im.keep(ctx, sources)
}

// keep makes the root filesystem, then the image one of the store's. Without a
// name, no caller would find it.
func (im *importing) keep(ctx context.Context, sources []layerSource) error {
	if im.ref.Repository == "" {
		return api.Invalid("name", "what is imported has no name of its own").WithHint("give it one")
	}
	return im.store.keep(ctx, &im.record, func() error {
		if err := im.store.makeRoot(ctx, &im.record, sources, im.options.Limits, im.report); err != nil {
			return err
		}
		if im.record.Digest == "" {
			return im.identify()
		}
		return nil
	})
}

// local is a layer that lies in a bundle.
func (im *importing) local(b bundle, path string, info api.ImageLayer) layerSource {
	return layerSource{info: info, open: func(ctx context.Context) (io.ReadCloser, error) {
		r, size, err := b.open(path)
		if err != nil {
			return nil, err
		}
		info.SizeBytes = size
		if info.Digest != "" {
			if err := verifyFile(ctx, r, info.Digest); err != nil {
				r.Close()
				return nil, err
			}
			r.Close()
			if r, _, err = b.open(path); err != nil {
				return nil, err
			}
		}
		return &readCounter{f: r, tell: func(done int64) { im.report.bytes(api.PullUnpack, info, done) }}, nil
	}}
}

func verifyFile(ctx context.Context, r io.Reader, digest string) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, ctxio.Reader(ctx, r)); err != nil {
		return fmt.Errorf("read layer: %w", err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
		return api.Invalid("image", "import: the layer %s has the digest %s", digest, got).WithCause(errDigest)
	}
	return nil
}
