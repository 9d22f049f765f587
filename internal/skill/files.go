//go:build linux || darwin

package skill

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Files lists one directory of a skill.
func (s *Store) Files(ctx context.Context, tenant, name string, o FileOptions) (l api.SkillFileList, err error) {
	if l.Path, err = cleanPath(o.Path, true); err != nil {
		return l, err
	}
	if o.Limit < 0 {
		return l, api.Invalid("limit", "the limit is %d", o.Limit).WithHint("give a number from 1 to %d", maxListed)
	}
	if o.Limit == 0 {
		o.Limit = usualListed
	}
	o.Limit = min(o.Limit, maxListed)
	err = s.inside(ctx, tenant, name, func(_ api.Skill, dir *os.File) error {
		at, err := openAt(dir, l.Path, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return edge(l.Path, err)
		}
		defer at.Close()
		entries, err := readDir(at, maxDirEntries)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") && !o.Hidden || strings.HasPrefix(e.Name(), draftPrefix) {
				continue
			}
			if len(l.Files) == o.Limit {
				l.Truncated = true
				break
			}
			if f, ok := describe(l.Path, e); ok {
				l.Files = append(l.Files, f)
			}
		}
		return nil
	})
	return l, err
}

func describe(dir string, e fs.DirEntry) (api.SkillFile, bool) {
	fi, err := e.Info()
	if err != nil {
		return api.SkillFile{}, false // gone meanwhile
	}
	f := api.SkillFile{Path: path.Join(dir, e.Name()), Name: e.Name(), Type: api.TypeOther, ModTime: fi.ModTime().UTC()}
	switch {
	case fi.IsDir():
		f.Type = api.TypeDir
	case fi.Mode().IsRegular():
		f.Type, f.Size, f.Executable = api.TypeFile, fi.Size(), fi.Mode()&0o111 != 0
	case fi.Mode()&fs.ModeSymlink != 0:
		f.Type = api.TypeSymlink
	}
	return f, true
}

// inside runs fn with the open directory of a skill, which others may read.
func (s *Store) inside(ctx context.Context, tenant, name string, fn func(api.Skill, *os.File) error) error {
	err := error(Missing(name))
	if rerr := s.reading(ctx, tenant, func(sh *shelf) error {
		err = sh.inSkill(ctx, name, func(_ *shelf, sk api.Skill, dir *os.File) error { return fn(sk, dir) })
		return nil
	}); rerr != nil {
		return rerr
	}
	return err
}

// ReadFile reads a file of a skill: text in UTF-8 of at most MaxText bytes.
func (s *Store) ReadFile(ctx context.Context, tenant, name, file string) (data []byte, err error) {
	if file, err = cleanPath(file, false); err != nil {
		return nil, err
	}
	err = s.inside(ctx, tenant, name, func(_ api.Skill, dir *os.File) error {
		data, _, err = readText(dir, file)
		return err
	})
	return data, err
}

// WriteFile puts a text file of a skill in its place, whole, and makes the
// directories above it. An executable one stays that. maxBytes is as in Create.
func (s *Store) WriteFile(ctx context.Context, tenant, name, file string, content []byte, maxBytes int64) error {
	file, err := cleanPath(file, false)
	if err != nil {
		return err
	}
	if err := checkText(file, content); err != nil {
		return err
	}
	return s.changing(ctx, tenant, name, func(sh *shelf, sk api.Skill, dir *os.File) error {
		if err := sh.mayWrite(ctx, sk, file, content); err != nil {
			return err
		}
		if err := sh.fits(ctx, maxBytes, int64(len(content))); err != nil {
			return err
		}
		above, err := makeDirs(dir, path.Dir(file))
		if err != nil {
			return err
		}
		defer above.Close()
		mode := fs.FileMode(0o644)
		var st unix.Stat_t
		if unix.Fstatat(int(above.Fd()), path.Base(file), &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			mode = packed(fs.FileMode(st.Mode).Perm())
		}
		return writeFile(above, path.Base(file), mode, content)
	})
}

// checkText says whether content may be a text file.
func checkText(file string, content []byte) error {
	if len(content) > MaxText {
		return api.Errorf(api.CodeTooLarge, "%q would have %d bytes, more than %d", clip(file), len(content), MaxText)
	}
	if !utf8.Valid(content) {
		return api.Invalid("content", "the content of %q is no text in UTF-8", clip(file)).WithHint("other files come with an archive")
	}
	return nil
}

// mayWrite refuses a description that makes another skill of a skill, or none.
func (sh *shelf) mayWrite(ctx context.Context, sk api.Skill, file string, content []byte) error {
	if file != entryNames()[0] && file != sk.Entry {
		return nil
	}
	d, err := readDocument(content)
	if err != nil {
		return err
	}
	switch name := d.name; {
	case name == "" || name == sk.Name:
		return nil
	case !api.ValidSkillName(name):
		return badName("the skill", name)
	default:
		return sh.free(ctx, name)
	}
}

// RemoveFile removes a file of a skill, or a directory with all that is in it. The
// file that describes the skill stays.
func (s *Store) RemoveFile(ctx context.Context, tenant, name, file string) error {
	file, err := cleanPath(file, false)
	if err != nil {
		return err
	}
	return s.changing(ctx, tenant, name, func(sh *shelf, sk api.Skill, dir *os.File) error {
		if file == sk.Entry {
			return api.Invalid("path", "%s is what makes the skill", file).WithHint("remove the skill itself")
		}
		above, err := openAt(dir, path.Dir(file), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return edge(file, err)
		}
		defer above.Close()
		draft := api.NewID(draftPrefix)
		if err := unix.Renameat(int(above.Fd()), path.Base(file), int(sh.dir.Fd()), draft); err != nil {
			return edge(file, &fs.PathError{Op: "remove", Path: file, Err: err})
		}
		if err := errors.Join(sh.discard(draft), above.Sync()); err != nil {
			return fmt.Errorf("remove file: %w", err)
		}
		return nil
	})
}
