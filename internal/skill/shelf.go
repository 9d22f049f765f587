//go:build linux || darwin

package skill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

const (
	tenantsDir = "tenants"
	// draftPrefix begins the names of drafts: packages that are being made or removed. Names that
	// begin with a dot are not searched for packages.
	draftPrefix = ".draft-"
	// maxPath bounds the path of a file in a package, in bytes.
	maxPath = 1024
)

// shelf is the open directory of one tenant's skills. Files in it are opened by
// descriptors, one path at a time, and never through a symlink.
type shelf struct {
	tenant string
	// path is where it was when it was opened.
	path string
	dir  *os.File
	// root is the same directory, for what does not follow symlinks in any case: names
	// directly in it.
	root *os.Root
}

// openShelf opens a tenant's directory. Without create it is nil if it does not
// exist; with create, what a writer left that died is removed.
func openShelf(base, tenant string, create bool) (*shelf, error) {
	if !filepath.IsAbs(base) {
		return nil, api.Errorf(api.CodeInternal, "the directory of skills is no absolute path")
	}
	p := filepath.Join(base, tenantsDir, tenant)
	if create {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of skills: %w", err)
		}
		for _, dir := range []string{filepath.Dir(p), p} {
			if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("make directory of skills: %w", err)
			}
		}
	}
	// What lies below the base is ours, and a symlink there is not.
	top, err := os.Open(base)
	if errors.Is(err, fs.ErrNotExist) && !create {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open directory of skills: %w", err)
	}
	defer top.Close()
	dir, err := openAt(top, tenantsDir+"/"+tenant, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) && !create {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open skills of tenant: %w", err)
	}
	root, err := rootOf(dir)
	if err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("open skills of tenant: %w", err)
	}
	sh := &shelf{tenant: tenant, path: p, dir: dir, root: root}
	if create {
		sh.sweep()
	}
	return sh, nil
}

func (sh *shelf) close() {
	_ = sh.root.Close()
	_ = sh.dir.Close()
}

// sweep removes abandoned drafts: the caller holds the lock.
func (sh *shelf) sweep() {
	names, err := readNames(sh.dir, maxDirEntries)
	if err != nil {
		return
	}
	for _, name := range names {
		if strings.HasPrefix(name, draftPrefix) {
			_ = sh.discard(name)
		}
	}
}

// discard removes a name of the shelf with all that is below. What hostile code
// has filled may have directories without permissions.
func (sh *shelf) discard(name string) error {
	err := sh.root.RemoveAll(name)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if dir, oerr := openAt(sh.dir, name, unix.O_RDONLY|unix.O_DIRECTORY); oerr == nil {
		unlock(dir, 0)
		_ = dir.Close()
	}
	return sh.root.RemoveAll(name)
}

// unlock gives directories back to their owner, as far down as packages go.
func unlock(dir *os.File, depth int) {
	_ = dir.Chmod(0o700)
	list, err := readDir(dir, maxEntries)
	if err != nil || depth > 64 {
		return
	}
	for _, e := range list {
		if !e.IsDir() {
			continue
		}
		_ = unix.Fchmodat(int(dir.Fd()), e.Name(), 0o700, unix.AT_SYMLINK_NOFOLLOW)
		if sub, err := openAt(dir, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
			unlock(sub, depth+1)
			_ = sub.Close()
		}
	}
}

// take moves a draft to a name that is free.
func (sh *shelf) take(draft, name string) error {
	at := int(sh.dir.Fd())
	err := renameNew(at, draft, name)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// A filesystem without that call; the lock keeps other writers away.
		if _, serr := sh.root.Lstat(name); serr == nil {
			err = unix.EEXIST
		} else {
			err = unix.Renameat(at, draft, at, name)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return taken(name)
	}
	if err != nil {
		return fmt.Errorf("name package: %w", err)
	}
	return sh.dir.Sync()
}

func taken(name string) *api.Error {
	return api.Errorf(api.CodeExists, "the directory %q is there already", clip(name)).
		WithHint("remove what is there first, or choose another name")
}

// draft makes a directory that becomes a package, or is swept.
func (sh *shelf) draft() (string, *os.File, error) {
	name := api.NewID(draftPrefix)
	if err := sh.root.Mkdir(name, 0o755); err != nil {
		return "", nil, fmt.Errorf("make package: %w", err)
	}
	dir, err := openAt(sh.dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil {
		err = dir.Chmod(0o755)
	}
	if err != nil {
		_ = sh.root.Remove(name)
		return "", nil, fmt.Errorf("make package: %w", err)
	}
	return name, dir, nil
}

// edge classifies what the kernel said about a path that a caller named.
func edge(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return api.Errorf(api.CodeNotFound, "there is no %q in the skill", clip(name)).WithCause(err)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return api.Invalid("path", "a part of %q is a symlink, and none is followed", clip(name)).WithCause(err)
	case errors.Is(err, unix.ENOTDIR):
		return api.Invalid("path", "a part of %q is no directory", clip(name)).WithCause(err)
	case errors.Is(err, unix.ENAMETOOLONG):
		return api.Errorf(api.CodeTooLarge, "%q is too long for a name", clip(name)).WithCause(err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return api.Errorf(api.CodeNoCapacity, "the disk with the skills is full").WithCause(err)
	}
	return err
}

// cleanPath is the path of a file in a package, in its one form. dot says whether
// the package itself may be meant.
func cleanPath(p string, dot bool) (string, error) {
	const hint = "write a path relative to the skill, such as scripts/run.py"
	switch {
	case len(p) > maxPath:
		return "", api.Errorf(api.CodeTooLarge, "the path has %d bytes, more than %d", len(p), maxPath)
	case !utf8.ValidString(p) || strings.ContainsRune(p, 0):
		return "", api.Invalid("path", "the path %q is no text", clip(p)).WithHint(hint)
	case strings.HasPrefix(p, "/"):
		return "", api.Invalid("path", "the path %q is absolute", clip(p)).WithHint(hint)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", api.Invalid("path", "the path %q leads upwards", clip(p)).WithHint(hint)
	}
	if p = path.Clean(p); p == "." && !dot {
		return "", api.Invalid("path", "the path names no file").WithHint(hint)
	}
	return p, nil
}

// readText reads a regular file of at most MaxText bytes of UTF-8.
func readText(dir *os.File, name string) ([]byte, fs.FileInfo, error) {
	f, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, nil, edge(name, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", clip(name), err)
	}
	if !fi.Mode().IsRegular() {
		return nil, nil, api.Invalid("path", "%q is no regular file", clip(name))
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxText+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("read %s: %w", clip(name), err)
	case len(data) > MaxText:
		return nil, nil, api.Errorf(api.CodeTooLarge, "%q has more than %d bytes", clip(name), MaxText)
	case !utf8.Valid(data):
		return nil, nil, api.Invalid("path", "%q is no text in UTF-8", clip(name))
	}
	return data, fi, nil
}

// writeFile puts a file in its place whole. The directory is open, name is one
// element; what was there is replaced, unless it is a directory.
func writeFile(dir *os.File, name string, mode fs.FileMode, data []byte) (err error) {
	draft := api.NewID(draftPrefix)
	f, err := openAt(dir, draft, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return edge(name, err)
	}
	at := int(dir.Fd())
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(at, draft, 0)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return edge(name, err)
	}
	if err = unix.Renameat(at, draft, at, name); errors.Is(err, unix.EISDIR) {
		return api.Invalid("path", "%q is a directory", clip(name)).WithCause(err)
	}
	if err != nil {
		return edge(name, err)
	}
	return dir.Sync()
}

// makeDirs opens a directory below dir and makes what is missing of its path.
func makeDirs(dir *os.File, p string) (*os.File, error) {
	at, err := openAt(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil || p == "." {
		return at, err
	}
	for part := range strings.SplitSeq(p, "/") {
		if err := unix.Mkdirat(int(at.Fd()), part, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			_ = at.Close()
			return nil, edge(p, err)
		}
		next, err := openAt(at, part, unix.O_RDONLY|unix.O_DIRECTORY)
		_ = at.Close()
		if err != nil {
			return nil, edge(p, err)
		}
		at = next
	}
	return at, nil
}

// readDir reads a directory, sorted, with at most limit entries.
func readDir(dir *os.File, limit int) ([]fs.DirEntry, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	list, err := dir.ReadDir(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(list) > limit {
		return nil, api.Errorf(api.CodeTooLarge, "a directory has more than %d entries", limit)
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

func readNames(dir *os.File, limit int) ([]string, error) {
	list, err := readDir(dir, limit)
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, err
}

// locked is the lock of a tenant's skills.
func (s *Store) locked(tenant string) (*sync.RWMutex, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.tenants[tenant]
	if l == nil {
		l = &sync.RWMutex{}
		s.tenants[tenant] = l
	}
	return l, cmp.Or(s.bases[tenant], s.base)
}

// reading runs fn with a tenant's shelf while no caller writes to it; without a shelf
// fn is not run.
func (s *Store) reading(ctx context.Context, tenant string, fn func(*shelf) error) error {
	return s.with(ctx, tenant, false, fn)
}

// writing is reading alone, with a shelf that is made if it is missing.
func (s *Store) writing(ctx context.Context, tenant string, fn func(*shelf) error) error {
	return s.with(ctx, tenant, true, fn)
}

func (s *Store) with(ctx context.Context, tenant string, write bool, fn func(*shelf) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !validTenant(tenant) {
		return api.Invalid("tenant", "%q is not the name of a tenant", clip(tenant))
	}
	l, base := s.locked(tenant)
	if write {
		l.Lock()
		defer l.Unlock()
	} else {
		l.RLock()
		defer l.RUnlock()
	}
	sh, err := openShelf(base, tenant, write)
	if err != nil || sh == nil {
		return err
	}
	defer sh.close()
	return fn(sh)
}

// validTenant keeps a tenant's name one element of a path.
func validTenant(t string) bool { return api.ValidName(t) }
