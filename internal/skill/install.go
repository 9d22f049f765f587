//go:build linux || darwin

package skill

import (
	"cmp"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Preview tells which skills an archive has, and where Install would put them.
// Nothing of it stays.
func (s *Store) Preview(ctx context.Context, tenant string, r io.Reader, o api.SkillArchive) (l api.SkillPreviewList, err error) {
	err = s.unpacked(ctx, tenant, r, o, 0, func(u *unpackedZip) error {
		l.Skills = u.previews
		return nil
	})
	return l, err
}

// Install puts the skills of an archive in their places: all that were chosen, or
// none. maxBytes is as in Create.
func (s *Store) Install(ctx context.Context, tenant string, r io.Reader, o api.SkillArchive, maxBytes int64) (l api.SkillList, err error) {
	err = s.unpacked(ctx, tenant, r, o, maxBytes, func(u *unpackedZip) error {
		chosen, err := u.choose(o.Paths)
		if err != nil {
			return err
		}
		// All of it is on the disk before it has a name.
		if err := syncAll(u.top); err != nil {
			return fmt.Errorf("install skill: %w", err)
		}
		l.Skills, err = u.install(chosen)
		return err
	})
	if err != nil {
		return api.SkillList{}, err
	}
	return l, nil
}

// unpackedZip is an archive that was unpacked into a draft.
type unpackedZip struct {
	sh    *shelf
	draft string
	// top is the open directory of the draft in which packages were looked for.
	top      *os.File
	previews []api.SkillPreview
}

// unpacked runs fn with what an archive unfolds to, which is removed afterwards.
func (s *Store) unpacked(ctx context.Context, tenant string, r io.Reader, o api.SkillArchive, maxBytes int64, fn func(*unpackedZip) error) error {
	subdir, err := cleanPath(strings.Trim(o.Subdir, "/"), true)
	if err != nil {
		return err
	}
	select {
	case s.archives <- struct{}{}:
		defer func() { <-s.archives }()
	case <-ctx.Done():
		return ctx.Err()
	}
	file, size, err := s.spool(r)
	if err != nil {
		return err
	}
	defer file.Close()
	items, err := readZip(file, size)
	if err != nil {
		return err
	}
	var total int64
	for _, it := range items {
		total += int64(it.file.UncompressedSize64)
	}
	return s.writing(ctx, tenant, func(sh *shelf) error {
		if err := sh.fits(ctx, maxBytes, total); err != nil {
			return err
		}
		draft, dir, err := sh.draft()
		if err != nil {
			return err
		}
		defer dir.Close()
		u := &unpackedZip{sh: sh, draft: draft}
		if err = unpack(ctx, items, dir); err == nil {
			err = u.open(ctx, dir, path.Join(topDir(items), subdir), o)
		}
		if err == nil {
			err = fn(u)
			_ = u.top.Close()
		}
		// A package that was at the top of the archive has taken the draft with it.
		return errors.Join(err, sh.discard(draft))
	})
}

// spool puts an archive into a file that has no name any more.
func (s *Store) spool(r io.Reader) (*os.File, int64, error) {
	base := s.Base()
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, 0, fmt.Errorf("take archive: %w", err)
	}
	f, err := os.CreateTemp(base, draftPrefix+"*.zip")
	if err != nil {
		return nil, 0, fmt.Errorf("take archive: %w", err)
	}
	err = os.Remove(f.Name())
	n := int64(0)
	if err == nil {
		n, err = io.Copy(f, io.LimitReader(r, MaxArchive+1))
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("take archive: %w", err)
	}
	return f, n, nil
}

// open looks for packages below a directory of the draft.
func (u *unpackedZip) open(ctx context.Context, dir *os.File, p string, o api.SkillArchive) (err error) {
	if u.top, err = openAt(dir, p, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return api.Invalid("subdir", "there is no directory %q in the archive", clip(o.Subdir)).WithCause(err)
	}
	defer func() {
		if err != nil {
			_ = u.top.Close()
		}
	}()
	all, err := find(ctx, u.top, foundDepth)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return badZip("there is no SKILL.md in it, nor in a directory near below its top").
			WithHint("pack the directory in which SKILL.md is, or name it as subdir")
	}
	names := map[string]bool{}
	l, err := u.sh.list(ctx)
	if err != nil {
		return err
	}
	for _, sk := range l.Skills {
		names[sk.Name] = true
	}
	for _, f := range all {
		top := fallbackName(p, o)
		sk, err := load(u.top, f, top)
		if err != nil {
			return err
		}
		source := f.dir
		if source == "." {
			source = ""
		}
		pv := api.SkillPreview{Skill: sk, Path: source}
		pv.Tenant, pv.Dir = u.sh.tenant, targetDir(sk.Name, source, o)
		_, serr := u.sh.root.Lstat(pv.Dir)
		pv.Taken = names[sk.Name] || serr == nil
		u.previews = append(u.previews, pv)
	}
	slices.SortFunc(u.previews, func(a, b api.SkillPreview) int { return cmp.Compare(a.Path, b.Path) })
	return nil
}

// fallbackName is what a package at the top is called that says no name: as its
// directory, or as the archive.
func fallbackName(p string, o api.SkillArchive) string {
	if base := path.Base(p); base != "." {
		return base
	}
	return stem(o.Filename)
}

// targetDir is the directory into which a package goes.
func targetDir(name, source string, o api.SkillArchive) string {
	if o.Filename == "" {
		return name
	}
	dir := stem(o.Filename)
	if last := path.Base(source); source != "" && last != dir {
		dir += "-" + slug(last)
	}
	if suffix := slug(o.Suffix); suffix != "" {
		dir += "-" + suffix
	}
	return dir
}

// stem is the name of an archive as the name of a directory.
func stem(filename string) string {
	base := path.Base(strings.ReplaceAll(filename, `\`, "/"))
	return cmp.Or(slug(strings.TrimSuffix(base, path.Ext(base))), "uploaded-skill")
}

// slug keeps letters, digits, - and _.
func slug(s string) string {
	s = strings.Map(func(c rune) rune {
		if c == '-' || c == '_' || c != unicode.ReplacementChar && (unicode.IsLetter(c) || unicode.IsNumber(c)) {
			return c
		}
		return '-'
	}, s)
	if r := []rune(s); len(r) > api.MaxSkillName {
		s = string(r[:api.MaxSkillName])
	}
	return strings.Trim(s, "-_")
}

// choose finds the previews that were named; with one there is no need to.
func (u *unpackedZip) choose(paths []string) ([]api.SkillPreview, error) {
	if len(paths) == 0 {
		if len(u.previews) == 1 {
			return u.previews, nil
		}
		var there []string
		for _, pv := range u.previews[:min(len(u.previews), 10)] {
			there = append(there, pv.Path)
		}
		return nil, api.Invalid("paths", "the archive has %d skills", len(u.previews)).WithHint("name those to install: %s", strings.Join(there, ", "))
	}
	var out []api.SkillPreview
	for _, p := range paths {
		i := slices.IndexFunc(u.previews, func(pv api.SkillPreview) bool { return pv.Path == strings.Trim(p, "/") })
		if i < 0 {
			return nil, api.Invalid("paths", "there is no skill at %q in the archive", clip(p))
		}
		out = append(out, u.previews[i])
	}
	return out, nil
}

// install moves what was chosen to its places.
func (u *unpackedZip) install(chosen []api.SkillPreview) (out []api.Skill, err error) {
	dirs, names := map[string]bool{}, map[string]bool{}
	for _, pv := range chosen {
		switch {
		case pv.Taken:
			return nil, api.Errorf(api.CodeExists, "there is a skill %q, or the directory %q, already", clip(pv.Name), clip(pv.Dir)).
				WithHint("remove it first with: cloche skill rm NAME")
		case dirs[pv.Dir] || names[pv.Name]:
			return nil, api.Invalid("paths", "two of the skills are called %q, or go to %q", clip(pv.Name), clip(pv.Dir)).
				WithHint("install them one by one, with file names of their own")
		}
		dirs[pv.Dir], names[pv.Name] = true, true
	}
	defer func() {
		if err != nil {
			for _, sk := range out {
				err = errors.Join(err, u.sh.discard(sk.Dir))
			}
			out = nil
		}
	}()
	for _, pv := range chosen {
		if err := u.move(pv); err != nil {
			return out, err
		}
		sk, err := load(u.sh.dir, found{pv.Dir, pv.Entry}, "")
		if sk.Tenant, sk.Dir = u.sh.tenant, pv.Dir; err == nil && sk.Name != pv.Name {
			// It says no name, and its directory is called otherwise: what it is called is
			// written down.
			sk, err = u.named(pv)
		}
		if out = append(out, sk); err != nil {
			return out, err
		}
	}
	return out, u.sh.dir.Sync()
}

func (u *unpackedZip) move(pv api.SkillPreview) error {
	from, err := pathOf(u.top)
	if err != nil {
		return fmt.Errorf("install skill: %w", err)
	}
	shelfPath, err := pathOf(u.sh.dir)
	if err != nil {
		return fmt.Errorf("install skill: %w", err)
	}
	rel, ok := strings.CutPrefix(path.Join(from, pv.Path), shelfPath+"/")
	if !ok {
		return api.Errorf(api.CodeInternal, "the draft of a skill is not where it was made")
	}
	return u.sh.take(rel, pv.Dir)
}

// named writes the name of a package into it.
func (u *unpackedZip) named(pv api.SkillPreview) (api.Skill, error) {
	dir, err := openAt(u.sh.dir, pv.Dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return api.Skill{Dir: pv.Dir}, edge(pv.Dir, err)
	}
	defer dir.Close()
	data, _, err := readText(dir, pv.Entry)
	if err != nil {
		return api.Skill{Dir: pv.Dir}, err
	}
	d, err := readDocument(data)
	if err == nil {
		err = writeEntry(dir, pv.Entry, d, api.SkillSpec{Name: pv.Name, DisplayName: d.displayName, Description: d.description, Instructions: d.body})
	}
	if err != nil {
		return api.Skill{Dir: pv.Dir}, err
	}
	sk, err := load(u.sh.dir, found{pv.Dir, pv.Entry}, "")
	sk.Tenant, sk.Dir = u.sh.tenant, pv.Dir
	return sk, err
}

func isFlate(err error) bool {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	return corrupt
}
