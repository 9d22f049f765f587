package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// Layer is a layer that was made here: an uncompressed tar among the store's blobs. The zero value is a
// layer that changes nothing, and has no blob.
type Layer struct {
	Digest string `json:"digest,omitempty"`
	Size   int64  `json:"size,omitempty"`
	// Notes say what the layer lost.
	Notes []string `json:"notes,omitempty"`
}

// layerUnused is how long a cached layer that no build uses is kept.
const layerUnused = 90 * 24 * time.Hour

// maxLayerKey bounds the record of a cached layer.
const maxLayerKey = 64 << 10

// PutLayer keeps what write writes as a layer.
func (s *Store) PutLayer(ctx context.Context, write func(io.Writer) error) (_ Layer, err error) {
	f, err := s.oci.temp("layer-")
	if err != nil {
		return Layer{}, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
		_ = f.Close()
	}()
	sum := sha256.New()
	if err := write(io.MultiWriter(f, sum)); isDiskFull(err) {
		return Layer{}, diskFull("a layer of a build", err)
	} else if err != nil {
		return Layer{}, err
	}
	if err := ctx.Err(); err != nil {
		return Layer{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return Layer{}, fmt.Errorf("measure layer: %w", err)
	}
	l := Layer{Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Size: size}
	if err := hostfile.Settle(f, s.layerPath(l)); err != nil {
		return Layer{}, fmt.Errorf("keep layer: %w", err)
	}
	return l, nil
}

func (s *Store) layerPath(l Layer) string { return s.oci.at("blobs", hexOf(l.Digest)) }

// haveLayer reports whether a layer is here, and notes its use.
func (s *Store) haveLayer(l Layer) bool {
	return l.Digest == "" || s.haveBlob(s.layerPath(l), blob{l.Digest, l.Size})
}

// CacheLayer remembers a layer under a key, which is 64 hexadecimal digits.
func (s *Store) CacheLayer(key string, l Layer) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode layer: %w", err)
	}
	if err := hostfile.ReplaceIn(s.oci.at("layers"), key+recordSuffix, data); err != nil {
		return fmt.Errorf("write record of layer: %w", err)
	}
	return nil
}

// CachedLayer returns the layer with that key; false if it is not here any more.
func (s *Store) CachedLayer(key string) (Layer, bool) {
	f, err := hostfile.OpenFile(s.oci.at("layers", key+recordSuffix), os.O_RDONLY, 0)
	if err != nil {
		return Layer{}, false
	}
	defer f.Close()
	var l Layer
	if err := json.NewDecoder(io.LimitReader(f, maxLayerKey)).Decode(&l); err != nil || l.Digest != "" && !api.ValidDigest(l.Digest) || !s.haveLayer(l) {
		return Layer{}, false
	}
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now)
	return l, true
}

// TrimLayers removes layers that were made here, those first that were not used for the longest time, until
// the rest has at most that many bytes. Images that were made of them are complete without them.
func (s *Store) TrimLayers(most int64) error {
	entries, err := os.ReadDir(s.oci.at("layers"))
	if err != nil {
		return fmt.Errorf("read image store: %w", err)
	}
	type cached struct {
		key  string
		used time.Time
		l    Layer
	}
	var list []cached
	for _, e := range entries {
		path := s.oci.at("layers", e.Name())
		var l Layer
		info, err := e.Info()
		if err == nil {
			err = readJSON(path, &l)
		}
		if err != nil || l.Digest != "" && !s.present(l) || time.Since(info.ModTime()) > layerUnused {
			_ = os.Remove(path) // it is of no use
			continue
		}
		list = append(list, cached{path, info.ModTime(), l})
	}
	slices.SortFunc(list, func(a, b cached) int { return b.used.Compare(a.used) })
	var total int64
	kept := map[string]bool{}
	for _, c := range list {
		if !kept[c.l.Digest] {
			total += c.l.Size
		}
		if total <= most || kept[c.l.Digest] {
			kept[c.l.Digest] = true
			continue
		}
		if err := os.Remove(c.key); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove record of layer: %w", err)
		}
		if err := os.Remove(s.layerPath(c.l)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove layer: %w", err)
		}
	}
	return nil
}

// openLayer opens a layer, which may have been pruned meanwhile.
func (s *Store) openLayer(l Layer) (io.ReadCloser, error) {
	f, err := os.Open(s.layerPath(l))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, api.Errorf(api.CodeUnavailable, "a layer of the build was removed to free space").
			WithHint("build again; image_store.max in the policy file may be too small").WithCause(err)
	}
	if err != nil {
		return nil, fmt.Errorf("open layer: %w", err)
	}
	return f, nil
}

// present reports whether the blob of a layer is here, without noting its use.
func (s *Store) present(l Layer) bool {
	return api.ValidDigest(l.Digest) && whole(s.layerPath(l), l.Size)
}

// StackOptions say what an image consists of.
type StackOptions struct {
	// Base is the digest or the name of the image below; empty is an image without files.
	Base string
	// Layers are put over it, the lowest first.
	Layers []Layer
	Config api.ImageConfig
	Limits archive.Limits
}

// Stack makes an image called name: of a base, layers over it and a configuration. The same of all three is
// the same image.
func (s *Store) Stack(ctx context.Context, name string, o StackOptions) (api.Image, error) {
	o.Layers = slices.DeleteFunc(slices.Clone(o.Layers), func(l Layer) bool { return l.Digest == "" })
	im, err := s.newImport(name, ImportOptions{Limits: o.Limits})
	if err != nil {
		return api.Image{}, err
	}
	return im.end(ctx, im.stack(ctx, o))
}

// stack makes the record and the root filesystem of an image.
func (im *importing) stack(ctx context.Context, o StackOptions) error {
	im.record.Source, im.record.Config = "build", o.Config
	base, err := im.store.stackBase(ctx, o.Base)
	if err != nil {
		return err
	}
	im.record.OnHost, im.record.Notes = base.onHost, base.notes
	im.record.Layers = slices.Clone(base.layers)
	for _, l := range o.Layers {
		im.record.Layers = append(im.record.Layers, api.ImageLayer{Digest: l.Digest, DiffID: l.Digest, SizeBytes: l.Size})
	}
	var ids []string
	for _, l := range im.record.Layers {
		ids = append(ids, l.DiffID)
	}
	config, err := configFile(im.want, im.record.Config, ids)
	if err != nil {
		return err
	}
	im.record.Digest = digestOf(config)
	unlock, err := im.store.oci.lock(ctx, hexOf(im.record.Digest))
	if err != nil {
		return err
	}
	defer unlock()
	if r, ok := im.store.oci.load(im.record.Digest); ok {
		im.record = r
		return nil
	}
	return im.store.keep(ctx, &im.record, func() error {
		if im.store.shareRoot(&im.record, rootName(ids)) {
			return nil
		}
		return im.stackRoot(ctx, base, o, rootName(ids))
	})
}

// stackRoot writes the root filesystem.
func (im *importing) stackRoot(ctx context.Context, base stackBase, o StackOptions, name string) error {
	var sources []layerSource
	if base.file != "" {
		tree, err := OpenTree(base.file)
		if err != nil {
			return err
		}
		defer tree.Close()
		sources = append(sources, layerSource{open: func(ctx context.Context) (io.ReadCloser, error) {
			return tree.stream(ctx), nil
		}})
	}
	for _, l := range o.Layers {
		sources = append(sources, layerSource{
			info: api.ImageLayer{DiffID: l.Digest},
			open: func(context.Context) (io.ReadCloser, error) { return im.store.openLayer(l) },
		})
	}
	root, err := im.store.assemble(ctx, sources, o.Limits, func([]string) string { return im.store.oci.at("roots", name) },
		func() { im.report.say(api.PullProgress{Phase: api.PullWrite}) })
	if err != nil {
		return err
	}
	im.record.Root, im.record.Size, im.record.Disk = filepath.Base(root.path), root.size, root.disk
	im.record.Notes = append(slices.Clone(base.notes), root.notes...)
	for _, l := range o.Layers {
		im.record.Notes = append(im.record.Notes, l.Notes...)
	}
	return nil
}

// stackBase is what an image is stacked on.
type stackBase struct {
	file   string // of its root filesystem
	layers []api.ImageLayer
	notes  []string
	onHost bool
}

func (s *Store) stackBase(ctx context.Context, ref string) (stackBase, error) {
	switch ref {
	case "":
		return stackBase{}, nil
	case api.DefaultImage:
		root, err := s.Resolve(ctx, ref, Need{})
		if err != nil {
			return stackBase{}, err
		}
		return stackBase{file: root.Image, layers: []api.ImageLayer{{DiffID: root.Digest, SizeBytes: root.SizeBytes}}, onHost: true}, nil
	}
	r, name, err := s.find(ref)
	if err != nil {
		return stackBase{}, err
	}
	if !forThisMachine(r.Platform) {
		return stackBase{}, wrongPlatform(name, "linux", r.Platform)
	}
	touch(s.oci.at("roots", r.Root))
	return stackBase{file: s.oci.at("roots", r.Root), layers: r.Layers, notes: r.Notes, onHost: r.OnHost}, nil
}

// configFile is the configuration of an image as OCI has it.
func configFile(platform v1.Platform, c api.ImageConfig, diffIDs []string) ([]byte, error) {
	f := v1.ConfigFile{
		Architecture: platform.Architecture, OS: platform.OS, Variant: platform.Variant,
		Config: v1.Config{
			Env: c.Env, User: c.User, WorkingDir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Labels: c.Labels, StopSignal: c.StopSignal,
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	for _, id := range diffIDs {
		h, err := v1.NewHash(id)
		if err != nil {
			return nil, fmt.Errorf("encode configuration: %w", err)
		}
		f.RootFS.DiffIDs = append(f.RootFS.DiffIDs, h)
	}
	data, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return data, nil
}

// Base returns the record of an image that is here, as something to build on. The image host is made first.
func (s *Store) Base(ctx context.Context, ref string) (api.Image, error) {
	if ref != api.DefaultImage {
		return s.Inspect(ref)
	}
	root, err := s.Resolve(ctx, ref, Need{})
	if err != nil {
		return api.Image{}, err
	}
	img := s.hostImage()
	img.Config = &api.ImageConfig{}
	for _, name := range slices.Sorted(maps.Keys(root.Env)) {
		img.Config.Env = append(img.Config.Env, name+"="+root.Env[name])
	}
	return img, nil
}

// CachesDir is where builds keep the files of cache mounts.
func (s *Store) CachesDir() string { return s.oci.at("caches") }

// Tag gives an image another name.
func (s *Store) Tag(ctx context.Context, ref, name string) (api.Image, error) {
	r, _, err := s.find(ref)
	if err != nil {
		return api.Image{}, err
	}
	im, err := s.newImport(name, ImportOptions{})
	if err != nil {
		return api.Image{}, err
	}
	im.record = r
	return im.end(ctx, nil)
}
