package core

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

// Bounds of the search for private files in a directory: the levels below it that are
// listed, the directories, and the entries of all of them.
const (
	privateLevels  = 2
	privateDirs    = 512
	privateEntries = 16384
)

// lookForPrivate adds to the facts what is private in the directories of a request.
func lookForPrivate(facts *policy.Facts, spec *api.SandboxSpec) {
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

// privateIn lists what is private in a directory, nearest first. It searches over no
// symlink. What a private name leads to by one is private where it is.
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

// look finds what is private in one directory.
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

// started is what is left of a name whose first elements are those that the path of the
// searched directory ends with: ".config" of ".config/gh".
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

// add notes what a path of the directory leads to. A symlink may lead to another place in
// the directory, where it would be read under that name; what is elsewhere is no part of it.
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
