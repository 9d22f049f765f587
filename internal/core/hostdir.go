package core

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// lookAt finds out what policy must know of one path. Whoever mounts it opens
// it again and compares device and inode, so that what changes between is found.
func lookAt(path string) policy.DirFact {
	real, err := realPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		return lookAbove(path)
	}
	if err != nil {
		return policy.DirFact{}
	}
	fact := describe(real)
	fact.Exists = fact.Real != ""
	return fact
}

// lookAtMounts adds to the facts about directories what is known of the mounts that show
// them, and of where the paths lead that are blocked on every host.
func lookAtMounts(facts *policy.Facts) error {
	if len(facts.Dirs) == 0 || facts.Windows {
		return nil
	}
	var asked []string
	for _, f := range facts.Dirs {
		asked = append(asked, f.Real)
	}
	for _, p := range policy.FixedPaths() {
		if real, err := realPath(p); err == nil && real != p {
			facts.Dirs[p] = policy.DirFact{Exists: true, Real: real}
		}
	}
	mounts, err := workspace.Mounts()
	if err != nil {
		return api.Errorf(api.CodeInternal, "the mounts of this host cannot be listed").WithCause(err)
	}
	// Without root an engine mounts a directory by its path, with what is mounted below.
	facts.Recursive = os.Geteuid() != 0
	for _, m := range mounts {
		near := slices.ContainsFunc(asked, func(p string) bool {
			return m.Point != "/" && (holds(m.Point, p) || facts.Recursive && holds(p, m.Point))
		})
		facts.Mounts = append(facts.Mounts, policy.HostMount{
			ID: m.ID, Volume: m.Volume, Root: m.Root, Point: m.Point, Type: m.Type, System: near && looksLikeSystem(m),
		})
	}
	return nil
}

func holds(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// looksLikeSystem says whether what is mounted somewhere is the root of a machine, by the
// directories that are in it. One of them is enough for the root of a filesystem; for a
// directory of a filesystem, which may be anything, it takes what every system has. What
// cannot be looked at may be there.
func looksLikeSystem(m workspace.Mount) bool {
	has := func(name string) bool {
		_, err := os.Lstat(filepath.Join(m.Point, name))
		return err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
	}
	if m.Root == "/" {
		return slices.ContainsFunc([]string{"etc", "proc", "sys", "usr", "boot", "root", "home"}, has)
	}
	return has("etc") && has("usr") && has("proc")
}

// lookAbove finds the deepest directory above a path that does not exist. What a
// dangling symlink would lead to is not made.
func lookAbove(path string) policy.DirFact {
	missing := ""
	for above := filepath.Dir(path); path != above; above = filepath.Dir(path) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return policy.DirFact{}
		}
		missing = filepath.Join(filepath.Base(path), missing)
		path = above
		real, err := realPath(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return policy.DirFact{}
		}
		fact := describe(real)
		fact.Missing = missing
		return fact
	}
	return policy.DirFact{}
}
