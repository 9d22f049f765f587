//go:build linux || darwin

package skill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// entryNames are the files that make a directory a package, the first before the
// second.
func entryNames() []string { return []string{"SKILL.md", "skill.md"} }

// found is a package that was found: its directory and the file that describes it.
type found struct{ dir, entry string }

// find looks for packages in dir and at most depth levels below, level by level and
// sorted. It looks neither into a package, nor into what begins with a dot, nor
// through symlinks.
func find(ctx context.Context, dir *os.File, depth int) ([]found, error) {
	var out []found
	entries := 0
	level := []string{"."}
	for d := 0; len(level) > 0; d++ {
		var next []string
		for _, p := range level {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			entry, below, n, err := look(dir, p)
			if err != nil {
				return nil, err
			}
			if entries += n; entries > maxDirEntries {
				return nil, api.Errorf(api.CodeTooLarge, "there are more than %d files where packages are looked for", maxDirEntries)
			}
			if entry != "" {
				if out = append(out, found{p, entry}); len(out) > maxPackages {
					return nil, api.Errorf(api.CodeTooLarge, "there are more than %d packages", maxPackages)
				}
				continue
			}
			next = append(next, below...)
		}
		if d == depth {
			break
		}
		level = next
	}
	return out, nil
}

// look reads one directory: the entry file that makes it a package, or the
// directories in it.
func look(dir *os.File, p string) (entry string, below []string, n int, err error) {
	at, err := openAt(dir, p, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return "", nil, 0, nil // gone, or nothing to look into
	}
	if err != nil {
		return "", nil, 0, fmt.Errorf("look for packages: %w", err)
	}
	defer at.Close()
	list, err := readDir(at, maxDirEntries)
	if err != nil {
		return "", nil, 0, err
	}
	for _, name := range entryNames() {
		// A symlink of that name makes a package too: one that cannot be read.
		if slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == name && !e.IsDir() }) {
			return name, nil, len(list), nil
		}
	}
	for _, e := range list {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			below = append(below, path.Join(p, e.Name()))
		}
	}
	return "", below, len(list), nil
}

// load reads one package. One that does not say what it is called is called as its
// directory is, which is top where that is dir itself.
func load(dir *os.File, f found, top string) (api.Skill, error) {
	data, fi, err := readText(dir, path.Join(f.dir, f.entry))
	if err != nil {
		return api.Skill{}, err
	}
	d, err := readDocument(data)
	if err != nil {
		return api.Skill{}, err
	}
	if f.dir != "." {
		top = path.Base(f.dir)
	}
	sk := api.Skill{
		Name: cmp.Or(d.name, top), Description: d.description, Instructions: d.body, Meta: d.meta,
		Dir: f.dir, Entry: f.entry, UpdatedAt: fi.ModTime().UTC(),
	}
	sk.DisplayName = cmp.Or(d.displayName, sk.Name)
	if !api.ValidSkillName(sk.Name) {
		return api.Skill{}, badName("the skill", sk.Name)
	}
	at, err := openAt(dir, f.dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return api.Skill{}, edge(f.dir, err)
	}
	defer at.Close()
	sk.PythonProject = python(at)
	sk.CreatedAt = born(at, sk.UpdatedAt)
	return sk, nil
}

func badName(what, name string) *api.Error {
	return api.Invalid("name", "%s is called %q", what, clip(name)).
		WithHint("a name has 1 to %d letters, digits, '-' and '_'", api.MaxSkillName)
}

// python says whether a package says what it needs of Python.
func python(at *os.File) bool {
	for _, name := range []string{"requirements.txt", "pyproject.toml", "setup.py", "setup.cfg", ".venv"} {
		var st unix.Stat_t
		if unix.Fstatat(int(at.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		want := uint32(unix.S_IFREG)
		if name == ".venv" {
			want = unix.S_IFDIR
		}
		if uint32(st.Mode)&unix.S_IFMT == want {
			return true
		}
	}
	return false
}

// list reads every package of the shelf, the one changed last first.
func (sh *shelf) list(ctx context.Context) (api.SkillList, error) {
	var l api.SkillList
	all, err := find(ctx, sh.dir, maxDepth)
	if err != nil {
		return l, err
	}
	text := 0
	for _, f := range all {
		sk, err := load(sh.dir, f, sh.tenant)
		if err != nil {
			if e, ok := errors.AsType[*api.Error](err); ok && e.Code != api.CodeNotFound {
				l.Faults = append(l.Faults, api.SkillFault{Dir: f.dir, Error: e})
			}
			continue
		}
		sk.Tenant = sh.tenant
		if text += len(sk.Instructions) + len(sk.Description); text > maxListText {
			return l, api.Errorf(api.CodeTooLarge, "the texts of the skills have more than %d bytes together", maxListText)
		}
		l.Skills = append(l.Skills, sk)
	}
	slices.SortStableFunc(l.Skills, func(a, b api.Skill) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dir, b.Dir))
	})
	return l, nil
}

// get finds a package by its name. Where several have it, the one in a directory of
// that name counts, and otherwise the one changed last.
func (sh *shelf) get(ctx context.Context, name string) (api.Skill, error) {
	// Nearly always a package lies where its name says.
	if api.ValidSkillName(name) {
		for _, entry := range entryNames() {
			sk, err := load(sh.dir, found{name, entry}, name)
			if err == nil && sk.Name == name {
				sk.Tenant = sh.tenant
				return sk, nil
			}
		}
	}
	l, err := sh.list(ctx)
	if err != nil {
		return api.Skill{}, err
	}
	for _, sk := range l.Skills {
		if sk.Name == name {
			return sk, nil
		}
	}
	return api.Skill{}, Missing(name)
}

// List reads every skill of a tenant, the one changed last first. A package that
// cannot be read hides no other.
func (s *Store) List(ctx context.Context, tenant string) (l api.SkillList, err error) {
	err = s.reading(ctx, tenant, func(sh *shelf) error {
		l, err = sh.list(ctx)
		return err
	})
	return l, err
}

// Get reads one skill.
func (s *Store) Get(ctx context.Context, tenant, name string) (sk api.Skill, err error) {
	err = Missing(name)
	if rerr := s.reading(ctx, tenant, func(sh *shelf) error {
		sk, err = sh.get(ctx, name)
		return nil
	}); rerr != nil {
		err = rerr
	}
	return sk, err
}

// Scan reads the one package in a directory of the tenant's, or at most two levels
// below it.
func (s *Store) Scan(ctx context.Context, tenant, dir string) (sk api.Skill, err error) {
	dir, err = cleanPath(dir, true)
	if err != nil {
		return sk, err
	}
	none := api.Errorf(api.CodeNotFound, "there is no directory %q among the skills", clip(dir))
	err = none
	if rerr := s.reading(ctx, tenant, func(sh *shelf) error {
		sk, err = Look(ctx, Source{Dir: sh.dir, Path: dir})
		sk.Tenant, sk.Dir = sh.tenant, path.Join(dir, sk.Dir)
		return nil
	}); rerr != nil {
		err = rerr
	}
	if err != nil {
		return api.Skill{}, err
	}
	return sk, nil
}

// Look reads the one package in a source, or at most two levels below it. Its Dir
// is relative to the source.
func Look(ctx context.Context, src Source) (api.Skill, error) {
	p, err := cleanPath(src.Path, true)
	if err != nil {
		return api.Skill{}, err
	}
	at, err := openAt(src.Dir, p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return api.Skill{}, edge(p, err)
	}
	defer at.Close()
	all, err := find(ctx, at, foundDepth)
	if err != nil {
		return api.Skill{}, err
	}
	switch len(all) {
	case 0:
		return api.Skill{}, api.Errorf(api.CodeNotFound, "there is no SKILL.md in %q, nor in a directory near below it", clip(p))
	case 1:
		return load(at, all[0], path.Base(p))
	}
	dirs := make([]string, 0, len(all))
	for _, f := range all[:min(len(all), 10)] {
		dirs = append(dirs, f.dir)
	}
	return api.Skill{}, api.Invalid("path", "there are %d packages in %q", len(all), clip(p)).
		WithHint("name one of them: %s", strings.Join(dirs, ", "))
}
