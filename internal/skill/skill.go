// Package skill keeps packages of files with a SKILL.md. What is in them may have
// come from anywhere, also from a sandbox that had one to write: no symlink is
// followed, whatever is read is bounded, and a package is seen whole or not at all.
package skill

import (
	"os"
	"sync"

	"github.com/cloche-dev/cloche/api"
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
	// usualBytes is what the packages of one tenant may occupy by default.
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

// Place is the directory of a package on the host, for a mount.
type Place struct {
	Skill api.Skill
	// Path is absolute and has no symlink below the Store's directory; Dev and Ino
	// identify what was seen there.
	Path     string
	Dev, Ino uint64
	OwnerUID int
}

// FileOptions choose what Files lists.
type FileOptions struct {
	// Path is the directory; "" is the package's own.
	Path string
	// Hidden lists what begins with a dot as well.
	Hidden bool
	// Limit is how many are listed; 0 is 200, and there are never more than 1000.
	Limit int
}

// Missing is the error about a skill that is not there.
func Missing(name string) *api.Error {
	return api.Errorf(api.CodeNotFound, "there is no skill %q", clip(name)).WithHint("cloche skill ls lists the ones that exist")
}

// clip shortens a name before it is said back.
func clip(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}
