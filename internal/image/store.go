package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	imageSuffix  = ".erofs"
	recordSuffix = ".json"
	tempPrefix   = ".new-"
	lockName     = ".lock"

	// maxRecord bounds what is read of a record; one of the host image has a few
	// hundred lines.
	maxRecord = 8 << 20
	// freshen is how old an image's time of use may be before it is written anew.
	freshen = time.Hour
)

// Store keeps images under one directory. It is safe for concurrent use, also
// by several processes.
type Store struct {
	dir string
	// host is where the host image looks at this machine; a test points it at a
	// machine of its own.
	host hostView
	// oci holds what came from elsewhere.
	oci     *catalog
	options Options

	mu      sync.Mutex
	records map[string]record // by name, as they were last seen to hold
}

// recordLayout changes when images have other files, made of the same sources.
const recordLayout = 2

// record says from what an image was made, so that a later process knows
// without reading it again whether that still holds.
type record struct {
	// Layout is the recordLayout with which it was made.
	Layout  int    `json:"layout"`
	Rootfs  Rootfs `json:"rootfs"`
	Sources []seen `json:"sources"`
}

// Options say how a store gets images.
type Options struct {
	Registries RegistryConfig
}

// Open is OpenWith without options.
func Open(dir string) (*Store, error) { return OpenWith(dir, Options{}) }

// OpenWith opens the store in dir, which is made when it is missing. It must
// belong to this user alone: what lies there is believed.
func OpenWith(dir string, o Options) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open image store %s: the path is not absolute", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make image store: %w", err)
	}
	if err := checkOwn(dir); err != nil {
		return nil, err
	}
	// Mounts are listed and masked by real paths.
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("resolve image store: %w", err)
	}
	oci, err := openCatalog(filepath.Join(dir, "oci"))
	if err != nil {
		return nil, err
	}
	return &Store{dir: dir, host: thisHost(filepath.Dir(dir)), oci: oci, options: o, records: map[string]record{}}, nil
}

// Resolve returns the root filesystem that ref names: host, which it makes when
// that is not there yet or when what it was made from has changed, or an image
// that was pulled or imported, by name or digest. It never pulls. An image that the store
// does not have is api.CodeNotFound; a mount point that the image cannot have is
// api.CodeInvalid.
func (s *Store) Resolve(ctx context.Context, ref string, need Need) (Rootfs, error) {
	if ref != api.DefaultImage {
		return s.resolveImage(ctx, ref, need)
	}
	extra, err := s.host.checkMountPoints(need)
	if err != nil {
		return Rootfs{}, err
	}
	name := "host"
	if len(extra) > 0 {
		name += "-" + shortHash(strings.Join(extra, "\x00"))
	}
	r, err := s.cached(ctx, name, func() (*tree, record, error) { return s.host.build(ctx, extra) })
	if err != nil {
		return Rootfs{}, fmt.Errorf("make image host: %w", err)
	}
	return r.Rootfs, nil
}

// Sweep removes the images that were not used for at least unused and that
// are not among keep, which holds paths as in Rootfs.Image. It returns how many
// it removed.
func (s *Store) Sweep(ctx context.Context, keep []string, unused time.Duration) (int, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, fmt.Errorf("read image store: %w", err)
	}
	removed := 0
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		info, err := e.Info()
		if err != nil || !strings.HasSuffix(e.Name(), imageSuffix) || slices.Contains(keep, path) || time.Since(info.ModTime()) < unused {
			continue
		}
		if err := os.Remove(path); err != nil {
			return removed, fmt.Errorf("remove image: %w", err)
		}
		removed++
	}
	for _, e := range entries {
		name, isRecord := strings.CutSuffix(e.Name(), recordSuffix)
		if !isRecord {
			continue
		}
		if r, err := s.load(name); err != nil || !present(r.Rootfs) {
			_ = os.Remove(filepath.Join(s.dir, e.Name()))
		}
	}
	return removed, nil
}

// cached returns the record called name when it still holds, and otherwise
// builds it, which one process does at a time.
func (s *Store) cached(ctx context.Context, name string, build func() (*tree, record, error)) (record, error) {
	if r, ok := s.holding(name); ok {
		return r, nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return record{}, err
	}
	defer unlock()
	if r, ok := s.holding(name); ok {
		return r, nil
	}
	t, r, err := build()
	if err != nil {
		return record{}, err
	}
	r.Layout = recordLayout
	kind, _, _ := strings.Cut(name, "-")
	if err := s.write(kind, t, &r.Rootfs); err != nil {
		return record{}, err
	}
	if err := s.save(name, r); err != nil {
		return record{}, err
	}
	s.remember(name, r)
	return r, nil
}

// holding returns the record called name if its image is there and nothing it
// was made from has changed.
func (s *Store) holding(name string) (record, bool) {
	s.mu.Lock()
	r, ok := s.records[name]
	s.mu.Unlock()
	if !ok {
		var err error
		if r, err = s.load(name); err != nil {
			return record{}, false
		}
	}
	if r.Layout != recordLayout || filepath.Dir(r.Rootfs.Image) != s.dir || !present(r.Rootfs) || !allUnchanged(r.Sources) {
		return record{}, false
	}
	s.remember(name, r)
	return r, true
}

func (s *Store) remember(name string, r record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = r
}

// present reports whether the image of r is there and whole, and notes that it
// is in use.
func present(r Rootfs) bool {
	if !whole(r.Image, r.SizeBytes) {
		return false
	}
	touch(r.Image)
	return true
}

// whole reports whether an image is there and has its size.
func whole(path string, size int64) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// Touch notes that the image at path is in use; false when it is not there.
func (s *Store) Touch(path string) bool {
	if _, err := os.Lstat(path); err != nil {
		return false
	}
	touch(path)
	return true
}

// touch notes that an image is in use, at most once in a while.
func touch(path string) {
	info, err := os.Lstat(path)
	if now := time.Now(); err == nil && now.Sub(info.ModTime()) > freshen {
		_ = os.Chtimes(path, now, now)
	}
}

// write writes t to a file that is named after its content and fills in where
// it is. The caller holds the lock.
func (s *Store) write(kind string, t *tree, r *Rootfs) (err error) {
	s.removeTemps()
	f, err := hostfile.CreateTemp(s.dir, tempPrefix)
	if err != nil {
		return fmt.Errorf("create image: %w", err)
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	hash := sha256.New()
	buf := bufio.NewWriterSize(io.MultiWriter(f, hash), 1<<20)
	if err := t.write(buf); err != nil {
		return err
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	if err := f.Chmod(0o444); err != nil {
		return fmt.Errorf("chmod image: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("stat image: %w", err)
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	r.Digest, r.SizeBytes = "sha256:"+sum, info.Size()
	r.Image = filepath.Join(s.dir, kind+"-"+sum[:32]+imageSuffix)
	// The record vouches for the image after a power cut too.
	if err := hostfile.Settle(f, r.Image); err != nil {
		return fmt.Errorf("keep image: %w", err)
	}
	return nil
}

// removeTemps removes what a killed writer left. Only who holds the lock writes,
// so none of these is in use.
func (s *Store) removeTemps() {
	left, _ := filepath.Glob(filepath.Join(s.dir, tempPrefix+"*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

func (s *Store) load(name string) (record, error) {
	f, err := hostfile.OpenFile(filepath.Join(s.dir, name+recordSuffix), os.O_RDONLY, 0)
	if err != nil {
		return record{}, fmt.Errorf("open record: %w", err)
	}
	defer f.Close()
	var r record
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r); err != nil {
		return record{}, fmt.Errorf("read record %s: %w", name, err)
	}
	return r, nil
}

func (s *Store) save(name string, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if err := hostfile.ReplaceIn(s.dir, name+recordSuffix, data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// lock takes the lock of what the store makes itself.
func (s *Store) lock(ctx context.Context) (func(), error) {
	f, err := hostfile.OpenFile(filepath.Join(s.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open image lock: %w", err)
	}
	if err := flock(ctx, f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// seen is how a file of this machine looked when it was read.
type seen struct {
	Path string `json:"path"`
	// Missing: there was nothing.
	Missing bool   `json:"missing,omitempty"`
	Dev     uint64 `json:"dev,omitempty"`
	Ino     uint64 `json:"ino,omitempty"`
	Mode    uint32 `json:"mode,omitempty"`
	Size    int64  `json:"size,omitempty"`
	Mtime   int64  `json:"mtime,omitempty"`
	Ctime   int64  `json:"ctime,omitempty"`
	UID     uint32 `json:"uid,omitempty"`
}

func allUnchanged(sources []seen) bool {
	return !slices.ContainsFunc(sources, func(old seen) bool {
		now, err := look(old.Path)
		return err != nil || now != old
	})
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// clip shortens what a request said before it is said back.
func clip(s string) string {
	const limit = 128
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
