package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// PullOptions say how to pull.
type PullOptions struct {
	// Platform is "linux/arm64" and the like; empty is this machine's.
	Platform string
	// Missing pulls only an image that the store does not have: a tag that has moved on stays as it is.
	Missing bool
	// Check, which may be nil, is asked about the image's digest, and the digest of its list
	// of platforms if it has one, before more than the manifest is fetched.
	Check func(digest, index string) error
	// Limits bound what the layers unpack to, all together.
	Limits archive.Limits
	// MaxBytes bounds what is transferred of all layers together, by what the
	// manifest says, before any of them is; 0 is maxTransfer.
	MaxBytes int64
	// Progress, which may be nil, is told how far it is; one call at a time.
	Progress func(api.PullProgress)
}

// Pull brings an image here and returns it. Everything that comes has the digest
// that it should have before any of it is read. Pulls of one image at the same
// time, also of several processes, are one; a pull that was broken off is
// continued by the next. An error is a *api.Error, except for defects of this
// machine.
func (s *Store) Pull(ctx context.Context, name string, o PullOptions) (api.Image, error) {
	ref, err := api.ParseImageRef(name)
	if err != nil {
		return api.Image{}, err
	}
	want, err := platform(o.Platform)
	if err != nil {
		return api.Image{}, err
	}
	if o.Missing {
		if r, ok, err := s.oci.lookup(ref); err == nil && ok && r.Platform == want.String() {
			return r.image(ref.Familiar()), nil
		}
	}
	s.oci.sweepTemps()
	p := &pull{
		store: s, ref: ref, want: want, options: o, remote: newRemote(ref, s.options.Registries),
		report: &reporter{image: ref.Familiar(), tell: o.Progress},
	}
	defer p.remote.close()
	r, err := p.run(ctx)
	if err != nil {
		if isDiskFull(err) {
			return api.Image{}, diskFull(ref.Familiar(), err)
		}
		if _, ok := errors.AsType[*api.Error](err); !ok && ctx.Err() != nil {
			return api.Image{}, fromContext(ctx, ref, err)
		}
		return api.Image{}, hinted(err, "the image is damaged or invalid: push it again, or use another one")
	}
	p.report.say(api.PullProgress{Phase: api.PullDone})
	return r.image(ref.Familiar()), nil
}

// hinted gives an error that says nothing of what would help what always does.
func hinted(err error, hint string) error {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Hint == "" {
		return e.WithHint("%s", hint)
	}
	return err
}

// pull is one Pull on its way.
type pull struct {
	store   *Store
	ref     api.ImageRef
	want    v1.Platform
	options PullOptions
	remote  *remote
	report  *reporter

	index    string // digest of the index, if there was one
	digest   string // digest of the manifest
	manifest document
}

func (p *pull) run(ctx context.Context) (imageRecord, error) {
	p.report.say(api.PullProgress{Phase: api.PullResolve})
	if err := p.resolve(ctx); err != nil {
		return imageRecord{}, err
	}
	if check := p.options.Check; check != nil {
		if err := check(p.digest, p.index); err != nil {
			return imageRecord{}, err
		}
	}
	if p.store.oci.busy(hexOf(p.digest)) {
		p.report.say(api.PullProgress{Phase: api.PullWait})
	}
	unlock, err := p.store.oci.lock(ctx, hexOf(p.digest))
	if err != nil {
		return imageRecord{}, err
	}
	defer unlock()
	r, ok := p.store.oci.load(p.digest)
	if !ok {
		if r, err = p.make(ctx); err != nil {
			return imageRecord{}, err
		}
	}
	if ok && p.index != "" && r.Index != p.index {
		r.Index = p.index
		if err := p.store.oci.save(r); err != nil {
			return imageRecord{}, err
		}
	}
	return r, p.store.oci.edit(ctx, func(n names) {
		n[p.ref.String()] = p.digest
		repo := api.ImageRef{Registry: p.ref.Registry, Repository: p.ref.Repository}
		if p.ref.Tag != "" && p.ref.Digest != "" {
			// With a digest the tag says nothing.
			delete(n, p.ref.String())
			repo.Digest = p.ref.Digest
			n[repo.String()] = p.digest
		}
	})
}

// resolve finds the manifest for the platform.
func (p *pull) resolve(ctx context.Context) error {
	reference := p.ref.Digest
	if reference == "" {
		reference = p.ref.Tag
	}
	for range 3 { // a list may hold lists
		body, digest, err := p.remote.manifest(ctx, reference)
		if err != nil {
			return err
		}
		if p.manifest, err = parseManifest(p.ref.Familiar(), body); err != nil {
			return err
		}
		if !p.manifest.isIndex() {
			p.digest = digest
			return nil
		}
		if p.index == "" {
			p.index = digest
		}
		chosen, err := p.manifest.choose(p.ref.Familiar(), p.want)
		if err != nil {
			return err
		}
		if reference = chosen.Digest.String(); !api.ValidDigest(reference) {
			return api.Invalid("image", "image %q: its list of platforms names the digest %q", p.ref.Familiar(), clip(reference))
		}
	}
	return api.Invalid("image", "image %q: its list of platforms leads to lists only", p.ref.Familiar())
}

// make brings the layers here and makes the root filesystem of them. The caller
// holds the lock of the image.
func (p *pull) make(ctx context.Context) (imageRecord, error) {
	ref := p.ref.Familiar()
	layers, err := p.manifest.checkLayers(ref)
	if err != nil {
		return imageRecord{}, err
	}
	if err := p.checkSize(layers); err != nil {
		return imageRecord{}, err
	}
	body, err := p.store.smallBlob(ctx, p.remote, blob{p.manifest.Config.Digest.String(), p.manifest.Config.Size})
	if err != nil {
		return imageRecord{}, err
	}
	config, err := parseConfig(ref, body, p.want, len(layers))
	if err != nil {
		return imageRecord{}, err
	}
	r := imageRecord{
		Version: imageRecordVersion, Digest: p.digest, Index: p.index, Platform: p.want.String(), Config: keepConfig(config),
		Source: "registry", Created: created(config), Pulled: time.Now().UTC(),
	}
	var sources []layerSource
	for i, l := range layers {
		info := api.ImageLayer{Digest: l.Digest.String(), DiffID: config.RootFS.DiffIDs[i].String(), SizeBytes: l.Size}
		r.Layers = append(r.Layers, info)
		sources = append(sources, layerSource{info: info, open: func(ctx context.Context) (io.ReadCloser, error) { return p.openLayer(ctx, info) }})
	}
	err = p.store.keep(ctx, &r, func() error { return p.store.makeRoot(ctx, &r, sources, p.options.Limits, p.report) })
	if isDiskFull(err) || errors.Is(err, api.ErrInvalid) {
		// They are part of what filled the disk, or what is kept of them is bad.
		p.store.removeBlobs(r.Layers)
	}
	return r, err
}

// maxTransfer is what a pull may transfer by default: a registry that
// never ends must not fill the disk before it is found out.
const maxTransfer = 64 << 30

// checkSize refuses layers that are too large together to be asked for. A layer
// that is longer than the manifest says is not read to its end.
func (p *pull) checkSize(layers []v1.Descriptor) error {
	most := p.options.MaxBytes
	if most <= 0 {
		most = maxTransfer
	}
	var total int64
	for _, l := range layers {
		// A single size over the bound must not make the sum wrap around.
		if l.Size > most || total > most-l.Size {
			e := api.Errorf(api.CodeTooLarge, "image %q: its layers have more than %d bytes, which is all that images may occupy here", p.ref.Familiar(), most).
				WithHint("use a smaller image, or the operator raises image_store.max in the policy file")
			if p.options.MaxBytes <= 0 {
				e = api.Errorf(api.CodeTooLarge, "image %q: its layers have more than %d bytes", p.ref.Familiar(), most).WithHint("use a smaller image")
			}
			e.Field = "image"
			return e
		}
		total += l.Size
	}
	return nil
}

// openLayer fetches a layer and opens it.
func (p *pull) openLayer(ctx context.Context, l api.ImageLayer) (io.ReadCloser, error) {
	path, err := p.store.fetchBlob(ctx, p.remote, blob{l.Digest, l.SizeBytes}, func(done int64) {
		p.report.bytes(api.PullDownload, l, done)
	})
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open layer: %w", err)
	}
	return &readCounter{f: f, tell: func(done int64) { p.report.bytes(api.PullUnpack, l, done) }}, nil
}

// makeRoot fills in the root filesystem of r, which is made of sources unless one
// of the same layers is here.
func (s *Store) makeRoot(ctx context.Context, r *imageRecord, sources []layerSource, l archive.Limits, report *reporter) error {
	known := make([]string, 0, len(sources))
	for _, src := range sources {
		if src.info.DiffID != "" {
			known = append(known, src.info.DiffID)
		}
	}
	if len(known) == len(sources) && s.shareRoot(r, rootName(known)) {
		return nil
	}
	root, err := s.assemble(ctx, sources, l,
		func(diffIDs []string) string { return s.oci.at("roots", rootName(diffIDs)) },
		func() { report.say(api.PullProgress{Phase: api.PullWrite}) })
	if err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok && e.Field == "" {
			e.Field = "image"
		}
		return err
	}
	for i, id := range root.diffIDs {
		r.Layers[i].DiffID = id
	}
	r.Root, r.Size, r.Disk, r.Notes = filepath.Base(root.path), root.size, root.disk, root.notes
	return nil
}

// shareRoot takes the root filesystem of another image that has the same layers.
func (s *Store) shareRoot(r *imageRecord, root string) bool {
	all, err := s.oci.all()
	if err != nil {
		return false
	}
	for _, other := range all {
		if other.Root == root && whole(s.oci.at("roots", root), other.Size) {
			r.Root, r.Size, r.Disk, r.Notes = root, other.Size, other.Disk, other.Notes
			return true
		}
	}
	return false
}

// rootName names the root filesystem that is made of layers. It changes with how
// it is made.
func rootName(diffIDs []string) string {
	sum := sha256.New()
	_, _ = io.WriteString(sum, "2\n")
	for _, id := range diffIDs {
		_, _ = io.WriteString(sum, id+"\n")
	}
	return hex.EncodeToString(sum.Sum(nil)) + imageSuffix
}

// reporter tells of a pull's progress, and not more often than a person can read.
type reporter struct {
	image string
	tell  func(api.PullProgress)

	mu   sync.Mutex
	last map[string]time.Time
}

const reportEvery = 100 * time.Millisecond

func (r *reporter) say(p api.PullProgress) {
	if r.tell == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Image = r.image
	r.tell(p)
}

func (r *reporter) bytes(phase api.PullPhase, l api.ImageLayer, done int64) {
	if r.tell == nil {
		return
	}
	key := string(phase) + l.DiffID
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]time.Time{}
	}
	if now := time.Now(); done == l.SizeBytes || now.Sub(r.last[key]) >= reportEvery {
		r.last[key] = now
		r.tell(api.PullProgress{Image: r.image, Phase: phase, Layer: l.Digest, Bytes: done, TotalBytes: l.SizeBytes})
	}
}

// readCounter tells how much of a file was read.
type readCounter struct {
	f    io.ReadCloser
	n    int64
	tell func(int64)
}

func (c *readCounter) Read(p []byte) (int, error) {
	n, err := c.f.Read(p)
	if c.n += int64(n); n > 0 {
		c.tell(c.n)
	}
	return n, err
}

func (c *readCounter) Close() error { return c.f.Close() }
