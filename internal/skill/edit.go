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
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Create makes a skill of a tenant, in a directory of its name. With a source it is
// a copy of that, and what spec leaves out is what the copy says. maxBytes bounds
// what the tenant has afterwards; 0 is the default.
func (s *Store) Create(ctx context.Context, tenant string, spec api.SkillSpec, src *Source, maxBytes int64) (sk api.Skill, err error) {
	err = s.writing(ctx, tenant, func(sh *shelf) error {
		if err := sh.fits(ctx, maxBytes, 0); err != nil {
			return err
		}
		draft, dir, err := sh.draft()
		if err != nil {
			return err
		}
		defer dir.Close()
		entry, spec, d, err := fill(ctx, dir, spec, src)
		if err == nil {
			err = sh.free(ctx, spec.Name)
		}
		if err == nil {
			err = sh.fits(ctx, maxBytes, 0)
		}
		if err == nil {
			err = writeEntry(dir, entry, d, spec)
		}
		if err == nil {
			err = sh.take(draft, spec.Name)
		}
		if err != nil {
			return errors.Join(err, sh.discard(draft))
		}
		sk, err = load(sh.dir, found{spec.Name, entry}, "")
		sk.Tenant = tenant
		return err
	})
	return sk, err
}

// fill copies the source into an empty directory, and completes spec with what it
// says of itself.
func fill(ctx context.Context, dir *os.File, spec api.SkillSpec, src *Source) (entry string, _ api.SkillSpec, d document, err error) {
	entry = entryNames()[0]
	spec.Instructions = strings.TrimSpace(spec.Instructions)
	if src != nil {
		was, err := Look(ctx, *src)
		if err != nil {
			return "", spec, d, err
		}
		from, err := openAt(src.Dir, path.Join(path.Clean(src.Path), was.Dir), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return "", spec, d, edge(was.Dir, err)
		}
		defer from.Close()
		if err := copyPackage(ctx, from, dir, &tally{}, "."); err != nil {
			return "", spec, d, err
		}
		entry = was.Entry
		data, _, err := readText(dir, entry)
		if err != nil {
			return "", spec, d, err
		}
		if d, err = readDocument(data); err != nil {
			return "", spec, d, err
		}
		spec.Name = cmp.Or(spec.Name, was.Name)
		spec.DisplayName = cmp.Or(spec.DisplayName, d.displayName)
		spec.Description = cmp.Or(spec.Description, d.description)
		spec.Instructions = cmp.Or(spec.Instructions, d.body)
	}
	if !api.ValidSkillName(spec.Name) {
		return "", spec, d, badName("the skill", spec.Name)
	}
	return entry, spec, d, nil
}

func writeEntry(dir *os.File, entry string, d document, spec api.SkillSpec) error {
	data, err := d.write(spec.Name, oneLine(spec.DisplayName), oneLine(spec.Description), spec.Instructions)
	if err != nil {
		return err
	}
	return writeFile(dir, entry, 0o644, data)
}

// oneLine is a value of front matter: text without white space around it.
func oneLine(s string) string { return strings.TrimSpace(s) }

// free says whether a name is not taken.
func (sh *shelf) free(ctx context.Context, name string) error {
	_, err := sh.get(ctx, name)
	if err == nil {
		return api.Errorf(api.CodeExists, "there is a skill %q already", clip(name)).
			WithHint("change that one with: cloche skill edit, or remove it first")
	}
	if errors.Is(err, api.ErrNotFound) {
		return nil
	}
	return err
}

// Update changes what a skill says of itself.
func (s *Store) Update(ctx context.Context, tenant, name string, c api.SkillChange) (sk api.Skill, err error) {
	err = s.changing(ctx, tenant, name, func(_ *shelf, was api.Skill, dir *os.File) error {
		data, _, err := readText(dir, was.Entry)
		if err != nil {
			return err
		}
		d, err := readDocument(data)
		if err != nil {
			return err
		}
		spec := api.SkillSpec{Name: was.Name, DisplayName: d.displayName, Description: d.description, Instructions: d.body}
		for _, part := range []struct {
			change *string
			into   *string
		}{{c.DisplayName, &spec.DisplayName}, {c.Description, &spec.Description}, {c.Instructions, &spec.Instructions}} {
			if part.change != nil {
				*part.into = strings.TrimSpace(*part.change)
			}
		}
		if err := writeEntry(dir, was.Entry, d, spec); err != nil {
			return err
		}
		sk, err = load(dir, found{".", was.Entry}, was.Name)
		sk.Tenant, sk.Dir = tenant, was.Dir
		return err
	})
	return sk, err
}

// changing runs fn with the open directory of a skill, alone.
func (s *Store) changing(ctx context.Context, tenant, name string, fn func(*shelf, api.Skill, *os.File) error) error {
	return s.writing(ctx, tenant, func(sh *shelf) error { return sh.inSkill(ctx, name, fn) })
}

func (sh *shelf) inSkill(ctx context.Context, name string, fn func(*shelf, api.Skill, *os.File) error) error {
	sk, err := sh.get(ctx, name)
	if err != nil {
		return err
	}
	dir, err := openAt(sh.dir, sk.Dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return edge(sk.Dir, err)
	}
	defer dir.Close()
	return fn(sh, sk, dir)
}

// Remove removes a skill, and the directories above it that nothing else is in.
// Sandboxes that have it see an empty directory.
func (s *Store) Remove(ctx context.Context, tenant, name string) error {
	return s.writing(ctx, tenant, func(sh *shelf) error {
		sk, err := sh.get(ctx, name)
		if err != nil {
			return err
		}
		if sk.Dir == "." {
			return api.Errorf(api.CodeState, "the skill %q is the directory of all skills itself", clip(name)).
				WithHint("the operator moves its SKILL.md away")
		}
		above, err := openAt(sh.dir, path.Dir(sk.Dir), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return edge(sk.Dir, err)
		}
		draft := api.NewID(draftPrefix)
		err = unix.Renameat(int(above.Fd()), path.Base(sk.Dir), int(sh.dir.Fd()), draft)
		err = errors.Join(err, above.Close())
		if err != nil {
			return fmt.Errorf("remove skill: %w", err)
		}
		for dir := path.Dir(sk.Dir); dir != "."; dir = path.Dir(dir) {
			if sh.root.Remove(dir) != nil {
				break // something else is in it
			}
		}
		if err := sh.discard(draft); err != nil {
			return fmt.Errorf("remove skill: %w", err)
		}
		return sh.dir.Sync()
	})
}

// Place tells where a skill lies.
func (s *Store) Place(ctx context.Context, tenant, name string) (p Place, err error) {
	err = Missing(name)
	if rerr := s.reading(ctx, tenant, func(sh *shelf) error {
		err = sh.inSkill(ctx, name, func(_ *shelf, sk api.Skill, dir *os.File) error {
			p, err = sh.place(sk, dir)
			return err
		})
		return nil
	}); rerr != nil {
		err = rerr
	}
	return p, err
}

// Places tells where each skill of a tenant lies, by name. Of several with one name
// it is the one that Get finds.
func (s *Store) Places(ctx context.Context, tenant string) (out []Place, err error) {
	err = s.reading(ctx, tenant, func(sh *shelf) error {
		l, err := sh.list(ctx)
		if err != nil {
			return err
		}
		names := make([]string, 0, len(l.Skills))
		for _, sk := range l.Skills {
			names = append(names, sk.Name)
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			if err := sh.inSkill(ctx, name, func(_ *shelf, sk api.Skill, dir *os.File) error {
				p, err := sh.place(sk, dir)
				out = append(out, p)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func (sh *shelf) place(sk api.Skill, dir *os.File) (Place, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return Place{}, fmt.Errorf("find skill: %w", err)
	}
	at, err := pathOf(dir)
	if err != nil {
		return Place{}, fmt.Errorf("find skill: %w", err)
	}
	return Place{Skill: sk, Path: at, Dev: uint64(st.Dev), Ino: st.Ino, OwnerUID: int(st.Uid)}, nil
}

// tally counts what a package has.
type tally struct{ entries, bytes int64 }

func (t *tally) add(bytes int64) error {
	t.entries++
	t.bytes += bytes
	switch {
	case t.entries > zipEntries:
		return api.Errorf(api.CodeTooLarge, "the package has more than %d files and directories", zipEntries)
	case bytes > zipEntryBytes:
		return api.Errorf(api.CodeTooLarge, "a file of the package has more than %d bytes", zipEntryBytes)
	case t.bytes > zipBytes:
		return api.Errorf(api.CodeTooLarge, "the package has more than %d bytes", zipBytes)
	}
	return nil
}

// copyPackage copies a directory. What is no file and no directory is refused: a
// symlink would lead somewhere else from there.
func copyPackage(ctx context.Context, from, to *os.File, t *tally, p string) error {
	if strings.Count(p, "/") > maxDepth*4 {
		return api.Errorf(api.CodeTooLarge, "%q is too deep", clip(p))
	}
	list, err := readDir(from, zipEntries)
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		rel := path.Join(p, e.Name())
		if err := copyEntry(ctx, from, to, t, e, rel); err != nil {
			return err
		}
	}
	return nil
}

func copyEntry(ctx context.Context, from, to *os.File, t *tally, e fs.DirEntry, rel string) error {
	if e.IsDir() {
		if err := t.add(0); err != nil {
			return err
		}
		below, err := openAt(from, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return edge(rel, err)
		}
		defer below.Close()
		made, err := makeDirs(to, e.Name())
		if err != nil {
			return err
		}
		defer made.Close()
		return copyPackage(ctx, below, made, t, rel)
	}
	f, err := openAt(from, e.Name(), unix.O_RDONLY)
	if err != nil {
		return edge(rel, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("copy %s: %w", clip(rel), err)
	}
	if !fi.Mode().IsRegular() {
		return api.Invalid("path", "%q is no regular file", clip(rel)).WithHint("a skill has files and directories only")
	}
	// One more than it has: what grows meanwhile is refused.
	if err := t.add(fi.Size()); err != nil {
		return err
	}
	return copyFile(to, e.Name(), fi.Mode(), f, fi.Size())
}

// copyFile writes exactly size bytes of r to a new file.
func copyFile(to *os.File, name string, mode fs.FileMode, r io.Reader, size int64) error {
	out, err := openAt(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return edge(name, err)
	}
	n, err := io.Copy(out, io.LimitReader(r, size+1))
	if err == nil && n != size {
		err = api.Invalid("path", "%q has another size than it says", clip(name))
	}
	if err == nil {
		err = out.Chmod(packed(mode))
	}
	return edge(name, errors.Join(err, out.Close()))
}

// packed is the mode of a file in a package.
func packed(mode fs.FileMode) fs.FileMode {
	if mode&0o111 != 0 {
		return 0o755
	}
	return 0o644
}

// fits reports whether the tenant may have more bytes.
func (sh *shelf) fits(ctx context.Context, limit, more int64) error {
	limit = cmp.Or(limit, usualBytes)
	used, entries, err := measure(ctx, sh.dir, limit, 0)
	if err != nil {
		return err
	}
	if used+more > limit || entries > maxEntries {
		return api.Errorf(api.CodeTooMany, "too much: the skills of the tenant have %d bytes in %d files, and may have %d in %d", used, entries, limit, maxEntries).
			WithHint("remove one with: cloche skill rm NAME")
	}
	return nil
}

// measure counts what a directory holds, until it is more than limit.
func measure(ctx context.Context, dir *os.File, limit int64, depth int) (bytes, entries int64, err error) {
	if depth > 64 {
		return 0, maxEntries + 1, nil
	}
	list, err := readDir(dir, maxEntries)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range list {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		if entries++; bytes > limit || entries > maxEntries {
			return bytes, entries, nil
		}
		if !e.IsDir() {
			if fi, err := e.Info(); err == nil {
				bytes += fi.Size()
			}
			continue
		}
		below, err := openAt(dir, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			continue // gone, or unreadable, which counts as empty
		}
		b, n, err := measure(ctx, below, limit-bytes, depth+1)
		_ = below.Close()
		if bytes, entries = bytes+b, entries+n; err != nil {
			return bytes, entries, err
		}
	}
	return bytes, entries, nil
}
