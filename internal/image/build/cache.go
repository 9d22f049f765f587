package build

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	// maxCaches is how many bytes of cache mounts are kept, and maxCache how many of one.
	maxCaches = 10 << 30
	maxCache  = 4 << 30

	cachePrefix = ".new-"
)

// DirCaches keeps the files of cache mounts as tars in a directory. Builds at the same time have a copy each,
// and the last one to end is kept.
type DirCaches struct{ Dir string }

func (d DirCaches) path(tenant, id string) string {
	return filepath.Join(d.Dir, hash("cache", tenant, id)+".tar")
}

// Open implements Caches.
func (d DirCaches) Open(tenant, id string) (io.ReadCloser, error) {
	name := d.path(tenant, id)
	f, err := hostfile.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now)
	return f, nil
}

// Save implements Caches.
func (d DirCaches) Save(tenant, id string, write func(io.Writer) error) (err error) {
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return fmt.Errorf("make directory of caches: %w", err)
	}
	f, err := hostfile.CreateTemp(d.Dir, cachePrefix)
	if err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(&limited{f, maxCache}); err != nil {
		return err
	}
	if err := hostfile.Settle(f, d.path(tenant, id)); err != nil {
		return fmt.Errorf("keep cache: %w", err)
	}
	return d.trim()
}

// limited refuses what is more than a cache can have.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, fmt.Errorf("it has more than %d bytes", int64(maxCache))
	}
	return l.w.Write(p)
}

// trim removes caches, those first that were not used for the longest time, and what a killed build left.
func (d DirCaches) trim() error {
	entries, err := os.ReadDir(d.Dir)
	if err != nil {
		return fmt.Errorf("read caches: %w", err)
	}
	var list []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			list = append(list, info)
		}
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	var total int64
	for _, info := range list {
		total += info.Size()
		keep := total <= maxCaches
		if filepath.Ext(info.Name()) != ".tar" {
			keep = time.Since(info.ModTime()) < time.Hour // another build writes it
		}
		if keep {
			continue
		}
		if err := os.Remove(filepath.Join(d.Dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cache: %w", err)
		}
	}
	return nil
}
