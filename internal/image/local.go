package image

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
)

// save writes the record of an image.
func (c *catalog) save(r imageRecord) error {
	if err := c.writeJSON(c.recordPath(r.Digest), r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images[r.Digest] = r
	return nil
}

// commit makes an image one of the store's. False says that its root filesystem,
// which it shared with another image, went with that one meanwhile.
func (c *catalog) commit(ctx context.Context, r imageRecord) (bool, error) {
	unlock, err := c.lock(ctx, r.Root)
	if err != nil {
		return false, err
	}
	defer unlock()
	if !whole(c.at("roots", r.Root), r.Size) {
		return false, nil
	}
	return true, c.save(r)
}

// keep makes the root filesystem of r and then r one of the store's images.
func (s *Store) keep(ctx context.Context, r *imageRecord, makeRoot func() error) error {
	for {
		if err := makeRoot(); err != nil {
			return err
		}
		if ok, err := s.oci.commit(ctx, *r); ok || err != nil {
			return err
		}
	}
}

// image is the record as a caller sees it, under one of its names.
func (r imageRecord) image(name string) api.Image {
	return api.Image{
		Name: name, Digest: r.Digest, IndexDigest: r.Index, SizeBytes: r.Disk, Platform: r.Platform, Source: r.Source,
		Config: &r.Config, Layers: r.Layers, Notes: r.Notes, CreatedAt: r.Created, PulledAt: &r.Pulled,
	}
}

// List returns the images that a create can name: host, then the others in the
// order of their names.
func (s *Store) List() []api.Image {
	list := []api.Image{s.hostImage()}
	table, err := s.oci.table()
	if err != nil {
		return list
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if r, ok := s.oci.load(table[name]); ok {
			list = append(list, s.describe(r, familiar(name)))
		}
	}
	return list
}

func (s *Store) hostImage() api.Image {
	img := api.Image{
		Name:        api.DefaultImage,
		Description: "a read-only view of this machine's own tools; needs no registry",
	}
	if r, err := s.load(api.DefaultImage); err == nil {
		img.Digest = r.Rootfs.Digest
	}
	return img
}

// describe is image with the time of the last use.
func (s *Store) describe(r imageRecord, name string) api.Image {
	img := r.image(name)
	if info, err := os.Lstat(s.oci.at("roots", r.Root)); err == nil {
		used := info.ModTime().UTC()
		img.UsedAt = &used
	}
	return img
}

// familiar is the short form of a canonical name.
func familiar(name string) string {
	ref, err := api.ParseImageRef(name)
	if err != nil {
		return name
	}
	return ref.Familiar()
}

// Inspect returns all that is known of an image that is here.
func (s *Store) Inspect(ref string) (api.Image, error) {
	if ref == api.DefaultImage {
		return s.hostImage(), nil
	}
	r, name, err := s.find(ref)
	if err != nil {
		return api.Image{}, err
	}
	return s.describe(r, name), nil
}

// Look returns what is here of the image that ref names, and all its names; false
// when it is not here, or not for this machine.
func (s *Store) Look(ref string) (img api.Image, all []string, ok bool) {
	if ref == api.DefaultImage {
		return s.hostImage(), []string{ref}, true
	}
	if ref == "" {
		return api.Image{}, nil, false
	}
	r, name, err := s.find(ref)
	if err != nil || !forThisMachine(r.Platform) {
		return api.Image{}, nil, false
	}
	return r.image(name), s.Names(r.Digest), true
}

// Names are all the names of the image with that digest.
func (s *Store) Names(digest string) (all []string) {
	table, err := s.oci.table()
	if err != nil {
		return nil
	}
	for _, n := range namesOf(table, digest) {
		all = append(all, familiar(n))
	}
	return all
}

// forThisMachine reports whether its programs run here.
func forThisMachine(platform string) bool {
	want := "linux/" + runtime.GOARCH
	return platform == want || strings.HasPrefix(platform, want+"/")
}

// find returns the image that ref names, and the name it has: the one that was
// asked for or, for a digest, the first.
func (s *Store) find(ref string) (imageRecord, string, error) {
	if api.ValidDigest(ref) {
		r, ok := s.oci.load(ref)
		if !ok {
			return imageRecord{}, "", NotHere(ref)
		}
		table, err := s.oci.table()
		if err != nil {
			return imageRecord{}, "", err
		}
		name := ref
		if all := namesOf(table, ref); len(all) > 0 {
			name = familiar(all[0])
		}
		return r, name, nil
	}
	parsed, err := api.ParseImageRef(ref)
	if err != nil {
		return imageRecord{}, "", err
	}
	r, ok, err := s.oci.lookup(parsed)
	if err != nil {
		return imageRecord{}, "", err
	}
	if !ok {
		return imageRecord{}, "", NotHere(parsed.Familiar())
	}
	return r, parsed.Familiar(), nil
}

// NotHere is the error about an image that would have to be pulled first.
func NotHere(ref string) error {
	if api.ValidDigest(ref) {
		e := api.Errorf(api.CodeNotFound, "image %q is not on this machine", ref).
			WithHint("a digest alone names what is here: `cloche image ls` lists that; fetch it with its name, as in `cloche image pull NAME@%s`", ref)
		e.Field = "image"
		return e
	}
	ref = familiar(ref)
	e := api.Errorf(api.CodeNotFound, "image %q is not on this machine", clip(ref)).
		WithHint("fetch it with `cloche image pull %s`; %s", clip(ref), AliasHint(clip(ref)))
	e.Field = "image"
	return e
}

// resolveImage is Resolve for everything but host.
func (s *Store) resolveImage(ctx context.Context, ref string, need Need) (Rootfs, error) {
	r, name, err := s.find(ref)
	if err != nil {
		return Rootfs{}, err
	}
	if !forThisMachine(r.Platform) {
		return Rootfs{}, wrongPlatform(name, "linux/"+runtime.GOARCH, r.Platform)
	}
	if err := s.checkTargets(r, name, need.MountPoints); err != nil {
		return Rootfs{}, err
	}
	touch(s.oci.at("roots", r.Root))
	root := Rootfs{
		Ref: ref, Image: s.oci.at("roots", r.Root), Digest: r.Digest, Index: r.Index, SizeBytes: r.Size, Env: environment(r.Config),
		User: r.Config.User, Config: &r.Config,
		MissingHint: "image \"" + name + "\" does not have it: use an image that does, or bring the program in a mount",
	}
	if root.User == "" {
		root.User = "root"
	}
	if !r.OnHost {
		return root, nil
	}
	host, err := s.Resolve(ctx, api.DefaultImage, Need{})
	if err != nil {
		return Rootfs{}, err
	}
	root.Mounts, root.Masks, root.MissingHint = host.Mounts, host.Masks, HostHint
	for name, value := range host.Env {
		if !slices.ContainsFunc(r.Config.Env, func(line string) bool { return strings.HasPrefix(line, name+"=") }) {
			root.Env[name] = value
		}
	}
	return root, nil
}

// checkTargets refuses mount points where the image has something that is no
// directory. What is missing is made in the sandbox's own layer, so that all
// sandboxes of an image share one file.
func (s *Store) checkTargets(r imageRecord, name string, targets []string) error {
	if len(targets) == 0 {
		return nil
	}
	f, err := os.Open(s.oci.at("roots", r.Root))
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	root, err := erofs.Open(f)
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	for _, target := range targets {
		if err := cleanTarget(target); err != nil {
			return err
		}
		parts := strings.Split(target[1:], "/")
		for i := range parts {
			here := strings.Join(parts[:i+1], "/")
			if !fs.ValidPath(here) {
				break
			}
			info, err := fs.Lstat(root, here)
			if err != nil || info.Mode()&fs.ModeSymlink != 0 {
				break // nothing there, or the sandbox's own business where it leads
			}
			if !info.IsDir() {
				return api.Invalid("mounts", "mount target %q: /%s of image %q is no directory", clip(target), clip(here), name).
					WithHint("choose another target, such as /mnt/%s", path.Base(target))
			}
		}
	}
	return nil
}

// cleanTarget refuses a mount point that is no clean absolute path.
func cleanTarget(target string) error {
	if !strings.HasPrefix(target, "/") || path.Clean(target) != target || strings.ContainsRune(target, 0) {
		return api.Invalid("mounts", "mount target %q is not a clean absolute path", clip(target))
	}
	return nil
}
