package hostfacts

import (
	"cmp"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Limits of the search for private files in a directory: its depth, the number of directories, and
// the total number of entries.
const (
	privateLevels  = 2
	privateDirs    = 512
	privateEntries = 16384
)

// LookForPrivate adds the private files in the directories of a request to the facts.
func LookForPrivate(facts *policy.Facts, spec *api.SandboxSpec) {
	if facts.Windows {
		return
	}
	var asked []string
	for _, m := range spec.Mounts {
		asked = append(asked, m.Source)
	}
	if spec.Workspace != nil {
		asked = append(asked, spec.Workspace.Dir)
	}
	for _, p := range asked {
		p = path.Clean(p)
		if f, ok := facts.Dirs[p]; ok && f.Exists && f.Dir {
			f.Private = privateIn(f.Real)
			facts.Dirs[p] = f
		}
	}
}

// privateIn lists the private files in a directory, nearest first. The search follows no symlinks.
// If a private name is a symlink, its target is private where it is.
func privateIn(real string) []policy.PrivatePath {
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil
	}
	defer root.Close()
	s := privateSearch{root: root, real: real, names: policy.PrivateNames()}
	workspace.Search{
		Levels: privateLevels, Dirs: privateDirs, Entries: privateEntries,
		Enter: func(name string) bool { return !strings.HasPrefix(name, ".") },
	}.Run(root, s.look)
	return s.found
}

type privateSearch struct {
	root  *os.Root
	real  string
	names []policy.PrivateName
	found []policy.PrivatePath
}

// look finds the private files in one directory.
func (s *privateSearch) look(dir string, entries []fs.DirEntry) {
	has := map[string]bool{}
	for _, e := range entries {
		has[e.Name()] = true
	}
	home := has[".ssh"] || has[".gnupg"]
	for _, n := range s.names {
		if n.Home && !home {
			continue
		}
		if first, _, _ := strings.Cut(n.Name, "/"); has[first] {
			s.add(path.Join(dir, n.Name), n)
		} else if rest, ok := s.started(dir, n.Name); ok {
			s.add(path.Join(dir, rest), n)
		}
	}
}

// started returns the rest of a name whose first elements are the last elements of the searched
// directory's path: ".config" of ".config/gh".
func (s *privateSearch) started(dir, name string) (rest string, ok bool) {
	if dir != "." {
		return "", false
	}
	for i := range len(name) {
		if name[i] == '/' && strings.HasSuffix(s.real, "/"+name[:i]) {
			return name[i+1:], true
		}
	}
	return "", false
}

// add records the target of a path in the directory. A symlink can lead to another place in the
// same directory, where the file could be read under that name. A target outside the directory is
// not part of it.
func (s *privateSearch) add(p string, n policy.PrivateName) {
	leads, err := filepath.EvalSymlinks(filepath.Join(s.real, p))
	if err != nil {
		return
	}
	at, ok := strings.CutPrefix(leads, strings.TrimSuffix(s.real, "/")+"/")
	if !ok {
		return
	}
	fi, err := s.root.Lstat(at)
	if err != nil || fi.Mode().Type()&^fs.ModeDir != 0 {
		return
	}
	found := policy.PrivatePath{Path: filepath.ToSlash(at), Name: n.Name, Access: cmp.Or(n.Access, api.AccessNone)}
	switch same := slices.IndexFunc(s.found, func(f policy.PrivatePath) bool { return f.Path == found.Path }); {
	case same < 0:
		s.found = append(s.found, found)
	case found.Access == api.AccessNone:
		s.found[same] = found
	}
}
