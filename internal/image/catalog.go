package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// catalog is the part of the store that holds images which came from elsewhere.
// Below its directory are:
//
//	roots/<hex>.erofs   a root filesystem, named after the layers it is made of
//	images/<hex>.json   what is known of the image with that digest
//	blobs/<hex>         layers as they were transferred, and .part what is coming
//	layers/<hex>.json   which blob is the layer that a step of a build made
//	caches/             files of cache mounts of builds
//	names.json          which name is which image
//	locks/, temp/       of what is being made
type catalog struct {
	dir string

	mu    sync.Mutex
	names names
	seen  seen // how names.json looked when names was read
	// images are records by digest; one does not change while its file lasts.
	images map[string]imageRecord
	// held counts the sandboxes that are being made of an image.
	held map[string]int
}

// names maps canonical references to digests of images.
type names map[string]string

const (
	imageRecordVersion = 1
	namesFile          = "names.json"
	maxImageRecord     = 4 << 20
)

// imageRecord is what is known of one image.
type imageRecord struct {
	Version int    `json:"version"`
	Digest  string `json:"digest"`
	// Index is the digest of the list of platforms it was chosen from.
	Index    string           `json:"index,omitempty"`
	Platform string           `json:"platform"`
	Config   api.ImageConfig  `json:"config"`
	Layers   []api.ImageLayer `json:"layers"`
	Source   string           `json:"source"`
	Created  *time.Time       `json:"created,omitempty"`
	Pulled   time.Time        `json:"pulled"`
	Notes    []string         `json:"notes,omitempty"`
	// Root is the name of the file in roots, Size its length, and Disk what it
	// occupies.
	Root string `json:"root"`
	// OnHost: the tools of this machine are mounted over it, as in host.
	OnHost bool  `json:"on_host,omitempty"`
	Size   int64 `json:"size"`
	Disk   int64 `json:"disk"`
}

func openCatalog(dir string) (*catalog, error) {
	for _, sub := range []string{"", "roots", "images", "blobs", "layers", "caches", "locks", "temp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("make image store: %w", err)
		}
	}
	return &catalog{dir: dir, images: map[string]imageRecord{}, held: map[string]int{}}, nil
}

func (c *catalog) at(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

func (c *catalog) recordPath(digest string) string {
	return c.at("images", hexOf(digest)+recordSuffix)
}

// hexOf is a digest without its algorithm. Digests are valid before they come
// here.
func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// table returns the names as they are on disk now. The caller does not change it.
func (c *catalog) table() (names, error) {
	now, err := look(c.at(namesFile))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names != nil && now == c.seen {
		return c.names, nil
	}
	n := names{}
	if !now.Missing {
		if err := readJSON(c.at(namesFile), &n); err != nil {
			return nil, err
		}
	}
	c.names, c.seen = n, now
	return n, nil
}

// edit changes the table of names under its lock.
func (c *catalog) edit(ctx context.Context, change func(names)) error {
	unlock, err := c.lock(ctx, "names")
	if err != nil {
		return err
	}
	defer unlock()
	old, err := c.table()
	if err != nil {
		return err
	}
	n := maps.Clone(old)
	change(n)
	if maps.Equal(n, old) {
		return nil
	}
	return c.writeJSON(c.at(namesFile), n)
}

// load returns the record of a digest; false without a valid record.
func (c *catalog) load(digest string) (imageRecord, bool) {
	c.mu.Lock()
	r, ok := c.images[digest]
	c.mu.Unlock()
	if !ok {
		var err error
		if r, err = c.readRecord(digest); err != nil {
			return imageRecord{}, false
		}
	} else if _, err := os.Lstat(c.recordPath(digest)); err != nil {
		c.forget(digest)
		return imageRecord{}, false
	}
	if !whole(c.at("roots", r.Root), r.Size) {
		return imageRecord{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images[digest] = r
	return r, true
}

// readRecord reads the record of a digest. One that is of another version, as a later
// version of Cloche writes it, or of another image is an error, as one is that is torn:
// what belongs to it is not known.
func (c *catalog) readRecord(digest string) (imageRecord, error) {
	var r imageRecord
	if err := readJSON(c.recordPath(digest), &r); err != nil {
		return imageRecord{}, err
	}
	if r.Version != imageRecordVersion || r.Digest != digest || r.Root != filepath.Base(r.Root) {
		return imageRecord{}, fmt.Errorf("the record of image %s has version %d and digest %q", digest, r.Version, clip(r.Digest))
	}
	return r, nil
}

func (c *catalog) forget(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.images, digest)
}

// all returns every record that holds, by digest.
func (c *catalog) all() (map[string]imageRecord, error) {
	entries, err := os.ReadDir(c.at("images"))
	if err != nil {
		return nil, fmt.Errorf("read image store: %w", err)
	}
	found := map[string]imageRecord{}
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok || !api.ValidDigest("sha256:"+hex) {
			continue
		}
		if r, err := c.readRecord("sha256:" + hex); err == nil {
			found[r.Digest] = r
		}
	}
	return found, nil
}

// Unreadable names the records of images that cannot be read, by their paths below the
// store. The files of these images are kept.
func (s *Store) Unreadable() []string { return s.oci.damaged() }

// damaged names the records of images that cannot be read, by their paths in the store.
func (c *catalog) damaged() []string {
	entries, _ := os.ReadDir(c.at("images"))
	var bad []string
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok || !api.ValidDigest("sha256:"+hex) {
			continue
		}
		if _, err := c.readRecord("sha256:" + hex); err != nil && !errors.Is(err, fs.ErrNotExist) {
			bad = append(bad, filepath.Join("images", e.Name()))
		}
	}
	return bad
}

// lookup finds the image that a reference names here.
func (c *catalog) lookup(ref api.ImageRef) (imageRecord, bool, error) {
	table, err := c.table()
	if err != nil {
		return imageRecord{}, false, err
	}
	if ref.Digest == "" {
		r, ok := c.load(table[ref.String()])
		return r, ok, nil
	}
	// With a digest the tag says nothing; that the image is here by the name of
	// another repository does not make this one true.
	prefix := ref.Registry + "/" + ref.Repository
	for name, digest := range table {
		if !strings.HasPrefix(name, prefix+":") && !strings.HasPrefix(name, prefix+"@") {
			continue
		}
		r, ok := c.load(digest)
		if ok && (r.Digest == ref.Digest || r.Index == ref.Digest || name == prefix+"@"+ref.Digest) {
			return r, true, nil
		}
	}
	return imageRecord{}, false, nil
}

// temp makes a file that only its maker knows. It is locked as long as it is
// open, so that what a killed process left is told from what is being made.
func (c *catalog) temp(prefix string) (*os.File, error) {
	f, err := hostfile.CreateTemp(c.at("temp"), prefix)
	if err != nil {
		return nil, fmt.Errorf("create temporary file: %w", err)
	}
	if err := hostfile.TryLock(f); err != nil {
		_ = os.Remove(f.Name())
		_ = f.Close()
		return nil, fmt.Errorf("lock temporary file: %w", err)
	}
	return f, nil
}

// sweepTemps removes temporary files that no process has any more.
func (c *catalog) sweepTemps() {
	entries, _ := os.ReadDir(c.at("temp"))
	for _, e := range entries {
		path := c.at("temp", e.Name())
		info, err := e.Info()
		// Between its creation and its lock a file looks unused.
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		f, err := hostfile.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if hostfile.TryLock(f) == nil {
			_ = os.Remove(path)
		}
		_ = f.Close()
	}
}

// lock takes the lock called name. Its file is removed with its last holder.
func (c *catalog) lock(ctx context.Context, name string) (func(), error) {
	path := c.at("locks", name)
	f, err := lockFile(ctx, path)
	if err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(path)
		_ = f.Close()
	}, nil
}

// busy reports whether a process has the lock called name.
func (c *catalog) busy(name string) bool {
	f, err := hostfile.OpenFile(c.at("locks", name), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return hostfile.TryLock(f) != nil
}

// lockFile opens path, made when it is missing, and locks the file that has this
// name then: the last holder may have removed or renamed it.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := hostfile.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open image lock: %w", err)
		}
		if err := flock(ctx, f); err != nil {
			_ = f.Close()
			return nil, err
		}
		mine, err1 := f.Stat()
		now, err2 := os.Lstat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, now) {
			return f, nil
		}
		_ = f.Close()
		if err1 != nil || err2 != nil && !errors.Is(err2, fs.ErrNotExist) {
			return nil, fmt.Errorf("stat image lock: %w", errors.Join(err1, err2))
		}
	}
}

// flock waits for the lock of f, which also holds between processes and ends
// with the process that has it.
func flock(ctx context.Context, f *os.File) error {
	wait := time.Millisecond
	retry := time.NewTimer(wait)
	defer retry.Stop()
	for {
		err := hostfile.TryLock(f)
		if err == nil {
			return nil
		}
		if !errors.Is(err, hostfile.ErrLocked) {
			return fmt.Errorf("lock images: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock images: %w", ctx.Err())
		case <-retry.C:
		}
		wait = min(2*wait, 20*time.Millisecond)
		retry.Reset(wait)
	}
}

func readJSON(path string, v any) error {
	f, err := hostfile.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open record: %w", err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxImageRecord)).Decode(v); err != nil {
		return fmt.Errorf("read record %s: %w", filepath.Base(path), err)
	}
	return nil
}

// writeJSON puts a record in place, whole.
func (c *catalog) writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	f, err := c.temp("record-")
	if err != nil {
		return err
	}
	defer f.Close()
	// The temporary file has a name of its own: other processes may write the same record.
	if _, err = f.Write(data); err == nil {
		err = hostfile.Settle(f, path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// namesOf lists the names of an image.
func namesOf(table names, digest string) (list []string) {
	for name, d := range table {
		if d == digest {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}
