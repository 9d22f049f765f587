package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// Remove forgets the image that ref names. With a name only that name goes, and
// the image with the last of them; with a digest the image goes by all its names.
// inUse are the digests of images that sandboxes are made of: such an image is
// api.CodeConflict. What the image was made from stays until Prune.
func (s *Store) Remove(ctx context.Context, ref string, inUse []string) error {
	if ref == api.DefaultImage {
		return api.Invalid("image", `image "host" is this machine itself and cannot be removed`).
			WithHint(`blocked_images in the policy file keeps it from being used`)
	}
	r, name, err := s.find(ref)
	if err != nil {
		return err
	}
	canonical := ""
	if !api.ValidDigest(ref) {
		parsed, err := api.ParseImageRef(ref)
		if err != nil {
			return err
		}
		canonical = parsed.String()
		table, err := s.oci.table()
		if err != nil {
			return err
		}
		if _, ok := table[canonical]; !ok {
			canonical = "" // found by its digest
		}
		if rest := slices.DeleteFunc(namesOf(table, r.Digest), func(n string) bool { return n == canonical }); canonical != "" && len(rest) > 0 {
			return s.oci.edit(ctx, func(n names) { delete(n, canonical) })
		}
	}
	if slices.Contains(inUse, r.Digest) || s.oci.isHeld(r.Digest) {
		return api.Errorf(api.CodeConflict, "image %q is in use", name).
			WithHint("remove the sandboxes and snapshots that are made of it first: `cloche ls -a` and `cloche snapshot ls` show them")
	}
	return s.remove(ctx, r)
}

// remove removes an image by all its names.
func (s *Store) remove(ctx context.Context, r imageRecord) error {
	unlock, err := s.oci.lock(ctx, hexOf(r.Digest))
	if err != nil {
		return err
	}
	defer unlock()
	// Names first: what has no name any more may disappear in any order.
	err = s.oci.edit(ctx, func(n names) {
		for _, name := range namesOf(n, r.Digest) {
			delete(n, name)
		}
	})
	if err != nil {
		return err
	}
	if err := os.Remove(s.oci.recordPath(r.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove image: %w", err)
	}
	s.oci.forget(r.Digest)
	unlockRoot, err := s.oci.lock(ctx, r.Root)
	if err != nil {
		return err
	}
	defer unlockRoot()
	all, err := s.oci.all()
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.Root == r.Root {
			return nil // another image has the same layers
		}
	}
	if err := os.Remove(s.oci.at("roots", r.Root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}

// PruneOptions say what a prune may take.
type PruneOptions struct {
	// MaxBytes is what is to be left, as far as that can be.
	MaxBytes int64
	// InUse are digests, as for Remove.
	InUse []string
	// DryRun takes nothing and tells what would go.
	DryRun bool
}

// Prune makes what came from elsewhere occupy at most MaxBytes, as far as that
// can be: first go layers as they were transferred, which are only kept to spare
// a later pull, then unused images, those first that were not used for
// the longest time.
func (s *Store) Prune(ctx context.Context, o PruneOptions) (api.ImagePruneResult, error) {
	s.oci.sweepTemps()
	s.sweepRoots()
	out := api.ImagePruneResult{Removed: []api.Image{}}
	before, err := s.Usage()
	if err != nil {
		return out, err
	}
	out.UsedBytes, err = s.pruneBlobs(before, o)
	if err == nil && out.UsedBytes > o.MaxBytes {
		err = s.pruneImages(ctx, o, &out)
	}
	out.FreedBytes = max(before-out.UsedBytes, 0)
	return out, err
}

// pruneImages removes images until what is left is small enough.
func (s *Store) pruneImages(ctx context.Context, o PruneOptions, out *api.ImagePruneResult) error {
	list, err := s.byLastUse()
	if err != nil {
		return err
	}
	table, err := s.oci.table()
	if err != nil {
		return err
	}
	users := map[string]int{} // of each root filesystem
	for _, r := range list {
		users[r.Root]++
	}
	for _, r := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if out.UsedBytes <= o.MaxBytes {
			return nil
		}
		if slices.Contains(o.InUse, r.Digest) || s.oci.isHeld(r.Digest) || s.oci.busy(hexOf(r.Digest)) {
			continue
		}
		name := r.Digest
		if called := namesOf(table, r.Digest); len(called) > 0 {
			name = familiar(called[0])
		}
		if users[r.Root]--; o.DryRun {
			if users[r.Root] == 0 {
				out.UsedBytes -= r.Disk
			}
		} else {
			if err := s.remove(ctx, r); err != nil {
				return err
			}
			if out.UsedBytes, err = s.Usage(); err != nil {
				return err
			}
		}
		out.Removed = append(out.Removed, r.image(name))
	}
	return nil
}

// byLastUse lists the images, the one that was not used for the longest time
// first.
func (s *Store) byLastUse() ([]imageRecord, error) {
	all, err := s.oci.all()
	if err != nil {
		return nil, err
	}
	last := map[string]time.Time{}
	for digest, r := range all {
		if info, err := os.Lstat(s.oci.at("roots", r.Root)); err == nil {
			last[digest] = info.ModTime()
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b imageRecord) int {
		return cmp.Or(last[a.Digest].Compare(last[b.Digest]), strings.Compare(a.Digest, b.Digest))
	}), nil
}

// Hold keeps an image from being removed or pruned by this process until release
// is called: for who is about to make a sandbox of it, which is on no record yet.
func (s *Store) Hold(digest string) (release func()) {
	s.oci.mu.Lock()
	defer s.oci.mu.Unlock()
	s.oci.held[digest]++
	return sync.OnceFunc(func() {
		s.oci.mu.Lock()
		defer s.oci.mu.Unlock()
		if s.oci.held[digest]--; s.oci.held[digest] <= 0 {
			delete(s.oci.held, digest)
		}
	})
}

// Usage is how many bytes of the disk the images that came from elsewhere
// occupy, with the layers that are kept of them.
func (s *Store) Usage() (int64, error) {
	var total int64
	for _, sub := range []string{"roots", "blobs", "caches", "images", "temp"} {
		entries, err := os.ReadDir(s.oci.at(sub))
		if err != nil {
			return 0, fmt.Errorf("read image store: %w", err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				total += hostfile.Occupied(info)
			}
		}
	}
	return total, nil
}

// isHeld reports whether an image is held.
func (c *catalog) isHeld(digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[digest] > 0
}

// pruneBlobs removes layers and files of cache mounts, those first that were not used for the longest
// time, until used is down to o.MaxBytes; it returns what is used then.
func (s *Store) pruneBlobs(used int64, o PruneOptions) (int64, error) {
	type kept struct {
		fs.FileInfo
		path string
	}
	var list []kept
	for _, sub := range []string{"blobs", "caches"} {
		entries, err := os.ReadDir(s.oci.at(sub))
		if err != nil {
			return used, fmt.Errorf("read image store: %w", err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				list = append(list, kept{info, s.oci.at(sub, e.Name())})
			}
		}
	}
	slices.SortFunc(list, func(a, b kept) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range list {
		if used <= o.MaxBytes {
			break
		}
		if o.DryRun {
			used -= hostfile.Occupied(info)
			continue
		}
		if strings.HasSuffix(info.Name(), partSuffix) && !removeIdle(info.path) {
			continue
		}
		if err := os.Remove(info.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return used, fmt.Errorf("remove layer: %w", err)
		}
		used -= hostfile.Occupied(info)
	}
	return used, nil
}

// removeIdle removes a part of a blob unless the rest is being fetched.
func removeIdle(path string) bool {
	f, err := hostfile.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return hostfile.TryLock(f) == nil && os.Remove(path) == nil
}

// sweepRoots removes root filesystems that no image has: what is left when a
// process is killed between writing one and writing down whose it is.
func (s *Store) sweepRoots() {
	all, err := s.oci.all()
	if err != nil || s.oci.damaged() != nil {
		return // whose root is whose is not known
	}
	owned := map[string]bool{}
	for _, r := range all {
		owned[r.Root] = true
	}
	entries, _ := os.ReadDir(s.oci.at("roots"))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || owned[e.Name()] || time.Since(info.ModTime()) < time.Hour {
			continue
		}
		_ = os.Remove(s.oci.at("roots", e.Name()))
	}
}
