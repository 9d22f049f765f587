package hostfacts

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

// Look collects what policy must know about one path. The engine opens the path again before it
// mounts it and compares device and inode, so a change in between is detected.
func Look(path string) policy.DirFact {
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

// LookAtMounts adds to the facts about directories the mounts that show them, and where the paths
// lead that are blocked on every host.
func LookAtMounts(facts *policy.Facts) error {
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
	// Without root, an engine mounts a directory by its path, together with mounts below it.
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

// looksLikeSystem reports whether a mount shows the root of a machine, judged by the directories in
// it. For the root of a filesystem one typical directory is enough. For a subdirectory of a
// filesystem, which can be anything, all directories that every system has must be present. A path
// that cannot be examined counts as present.
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

// lookAbove finds the deepest existing directory above a path that does not exist. The target of a
// dangling symlink is not created.
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
