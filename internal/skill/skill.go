//go:build linux || darwin

// Package skill keeps packages of files with a SKILL.md. What is in them may have
// come from anywhere, also from a sandbox that had one to write: no symlink is
// followed, whatever is read is bounded, and a package is seen whole or not at all.
package skill

import (
	"cmp"
	"context"
	"os"
	"sync"

	"github.com/cloche-dev/cloche"
)

// The bounds of packages; see also the ones of archives.
const (
	// MaxText bounds a file that is read or written as text.
	MaxText = 1 << 20
	// maxPackages and maxDirEntries bound what a look for packages goes through.
	maxPackages   = 1000
	maxDirEntries = 10_000
	// maxDepth is how deep below a tenant's directory packages are looked for,
	// foundDepth how deep in what is to become one.
	maxDepth   = 6
	foundDepth = 2
	// maxListText bounds the text of a list.
	maxListText = 16 << 20
	// maxListed and usualListed are how many files a list has.
	maxListed   = 1000
	usualListed = 200
	// usualBytes is what the packages of one tenant may occupy where nobody says.
	usualBytes = 1 << 30
	// maxEntries bounds the files and directories of one tenant.
	maxEntries = 200_000
)

// Store keeps the skills of all tenants below one directory, which need not exist
// yet: those of a tenant lie in tenants/TENANT. It is safe for concurrent use; of
// several processes one at a time writes.
type Store struct {
	mu      sync.Mutex
	base    string
	bases   map[string]string
	tenants map[string]*sync.RWMutex

	// archives bounds how many are open at once: each is in memory with the
	// directory that it has.
	archives chan struct{}
}

// Open makes a Store of the directory base.
func Open(base string) *Store {
	return &Store{base: base, bases: map[string]string{}, tenants: map[string]*sync.RWMutex{}, archives: make(chan struct{}, 2)}
}

// Keep has the Store keep one tenant's skills below another directory from now on, an
// absolute path; below its own where base is empty. What is under way ends where it began.
func (s *Store) Keep(tenant, base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if base == "" {
		delete(s.bases, tenant)
		return
	}
	s.bases[tenant] = base
}

// Base is the directory below which skills are kept of tenants of whom nothing else was said.
func (s *Store) Base() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base
}

// Source is a directory that is to become a package. It stays the caller's.
type Source struct {
	// Dir is an open directory.
	Dir *os.File
	// Path is relative to it; "." is Dir itself.
	Path string
}

// Place is the directory of a package on the host, for whoever mounts it.
type Place struct {
	Skill cloche.Skill
	// Path is absolute and has no symlink below the Store's directory; Dev and Ino
	// identify what was seen there.
	Path     string
	Dev, Ino uint64
	OwnerUID int
}

// Missing is the error about a skill that is not there.
func Missing(name string) *cloche.Error {
	return cloche.Errorf(cloche.CodeNotFound, "there is no skill %q", clip(name)).WithHint("cloche skill ls lists the ones that exist")
}

// clip shortens a name before it is said back.
func clip(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
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

// reading runs fn with a tenant's shelf while nobody writes to it; without a shelf
// fn is not run.
func (s *Store) reading(ctx context.Context, tenant string, fn func(*shelf) error) error {
	return s.with(ctx, tenant, false, fn)
}

// writing is reading alone, with a shelf that is made where there is none.
func (s *Store) writing(ctx context.Context, tenant string, fn func(*shelf) error) error {
	return s.with(ctx, tenant, true, fn)
}

func (s *Store) with(ctx context.Context, tenant string, write bool, fn func(*shelf) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !validTenant(tenant) {
		return cloche.Invalid("tenant", "%q is not the name of a tenant", clip(tenant))
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
func validTenant(t string) bool { return cloche.ValidName(t) }
