//go:build linux || darwin

package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// maxBasePaths bounds what one base image is asked to hold, not what that needs.
const maxBasePaths = 1024

// BuildBase makes an image called name of programs of this machine: each of
// paths, which is absolute, at the same path inside, with the shared libraries
// and interpreters that it needs and with every symlink on the way. A path that
// is a directory is taken whole. What programs load by other means, such as
// plugins, has to be among the paths.
func (s *Store) BuildBase(ctx context.Context, name string, paths []string, o ImportOptions) (api.Image, error) {
	if len(paths) == 0 || len(paths) > maxBasePaths {
		return api.Image{}, api.Invalid("paths", "build %q: %d paths were given", clip(name), len(paths)).WithHint("give 1 to %d", maxBasePaths)
	}
	for i, p := range paths {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return api.Image{}, api.Invalid(fmt.Sprintf("paths[%d]", i), "build %q: %q is not a clean absolute path below /", clip(name), clip(p))
		}
		if _, err := os.Stat(p); err != nil {
			return api.Image{}, api.Invalid(fmt.Sprintf("paths[%d]", i), "build %q: %q is not there", clip(name), clip(p)).WithCause(err)
		}
	}
	im, err := s.newImport(name, o)
	if err != nil {
		return api.Image{}, err
	}
	im.record.Source = "build"
	return im.end(ctx, im.plain(ctx, func(ctx context.Context) (io.ReadCloser, error) {
		root, err := os.OpenRoot("/")
		if err != nil {
			return nil, fmt.Errorf("open /: %w", err)
		}
		return PackStream(func(t *tar.Writer) error {
			defer root.Close()
			b := &baseBuilder{
				packer: packer{ctx: ctx, tar: t, root: root, first: map[[2]uint64]string{}},
				done:   map[string]bool{}, libraries: libraryDirs(),
			}
			for _, p := range slices.Sorted(slices.Values(paths)) {
				if err := b.add(p[1:]); err != nil {
					return err
				}
			}
			return nil
		}), nil
	}))
}

// baseBuilder packs programs and what they need.
type baseBuilder struct {
	packer
	// done are the names that are packed, without the leading /.
	done map[string]bool
	// libraries are the directories in which the loader looks.
	libraries []string
	// lenient is set while a directory is taken whole: what in it cannot run on
	// this machine cannot run in the image.
	lenient bool
}

// add packs what is called name, as far as it is not there yet.
func (b *baseBuilder) add(name string) error {
	name, err := b.way(name, 0)
	if err != nil || name == "" {
		return err
	}
	info, err := b.root.Lstat(name)
	if err != nil {
		return fmt.Errorf("pack /%s: %w", clip(name), err)
	}
	if info.IsDir() {
		defer func(was bool) { b.lenient = was }(b.lenient)
		b.lenient = true
		return b.addDir(name, 0)
	}
	return b.addFile(name, info)
}

// way packs the directories and symlinks that lead to name and returns what it is
// called without symlinks; empty when a link leads nowhere.
func (b *baseBuilder) way(name string, links int) (string, error) {
	if links > maxLinks {
		return "", fmt.Errorf("pack /%s: more than %d symlinks", clip(name), maxLinks)
	}
	parts := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
	for i := range parts {
		here := strings.Join(parts[:i+1], "/")
		info, err := os.Lstat("/" + here)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("pack /%s: %w", clip(here), err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if info.IsDir() && i < len(parts)-1 {
				if err := b.head(here, info); err != nil {
					return "", err
				}
			}
			continue
		}
		target, err := os.Readlink("/" + here)
		if err != nil {
			return "", fmt.Errorf("pack /%s: %w", clip(here), err)
		}
		if !b.done[here] {
			b.done[here] = true
			h := b.header(here, info, statOf(info))
			h.Typeflag, h.Linkname = tar.TypeSymlink, target
			if err := b.write(h); err != nil {
				return "", err
			}
		}
		if !path.IsAbs(target) {
			target = path.Join("/", path.Dir(here), target)
		}
		return b.way(path.Join(target, strings.Join(parts[i+1:], "/")), links+1)
	}
	return strings.Join(parts, "/"), nil
}

// head packs a directory without what is in it.
func (b *baseBuilder) head(name string, info fs.FileInfo) error {
	if b.done[name] {
		return nil
	}
	b.done[name] = true
	h := b.header(name, info, statOf(info))
	h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	return b.write(h)
}

func (b *baseBuilder) addDir(name string, depth int) error {
	info, err := b.root.Lstat(name)
	if err == nil {
		err = b.head(name, info)
	}
	if err != nil {
		return err
	}
	if depth > maxDirDepth {
		return fmt.Errorf("pack /%s: more than %d levels", clip(name), maxDirDepth)
	}
	entries, err := os.ReadDir("/" + name)
	if err != nil {
		return fmt.Errorf("pack /%s: %w", clip(name), err)
	}
	for _, e := range entries {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		below := name + "/" + e.Name()
		switch {
		case e.IsDir():
			err = b.addDir(below, depth+1)
		case e.Type()&fs.ModeSymlink != 0:
			// Packed as it is; its target is packed only when it is needed.
			err = b.link(below)
		case e.Type().IsRegular():
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				err = b.addFile(below, info)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (b *baseBuilder) link(name string) error {
	if b.done[name] {
		return nil
	}
	info, err := b.root.Lstat(name)
	if err != nil {
		return err
	}
	target, err := b.root.Readlink(name)
	if err != nil {
		return err
	}
	b.done[name] = true
	h := b.header(name, info, statOf(info))
	h.Typeflag, h.Linkname = tar.TypeSymlink, target
	return b.write(h)
}

// addFile packs a file, then what it needs in order to run.
func (b *baseBuilder) addFile(name string, info fs.FileInfo) error {
	if b.done[name] || !info.Mode().IsRegular() {
		return nil
	}
	b.done[name] = true
	st := statOf(info)
	if err := b.packFile(b.header(name, info, st), name, st); err != nil {
		return err
	}
	needs, err := b.needs(name)
	if err != nil {
		return err
	}
	for _, need := range needs {
		if err := b.add(strings.TrimPrefix(need, "/")); err != nil {
			return err
		}
	}
	return nil
}

// needs are the paths of the interpreter and the libraries of a program or
// library; of a script its interpreter.
func (b *baseBuilder) needs(name string) ([]string, error) {
	f, err := b.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read /%s: %w", clip(name), err)
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(f, head)
	head = head[:n]
	if line, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		if words := strings.Fields(string(line)); len(words) > 0 && path.IsAbs(words[0]) {
			return words[:1], nil
		}
		return nil, nil
	}
	if !bytes.HasPrefix(head, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, nil // nothing that a loader would take
	}
	defer e.Close()
	var needs []string
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
			data, err := io.ReadAll(p.Open())
			if err == nil {
				needs = append(needs, string(bytes.TrimRight(data, "\x00")))
			}
		}
	}
	libraries, err := e.ImportedLibraries()
	if err != nil {
		return needs, nil // no dynamic section
	}
	dirs := slices.Concat(b.origins(e, name), b.libraries)
	for _, lib := range libraries {
		at, ok := findLibrary(lib, dirs, e.Class, e.Machine)
		if !ok && b.lenient {
			continue
		}
		if !ok {
			return nil, api.Invalid("paths", "build: /%s needs the library %q, which is not on this machine", clip(name), clip(lib))
		}
		needs = append(needs, at)
	}
	return needs, nil
}

// origins are the directories that a program names itself for its libraries.
func (b *baseBuilder) origins(e *elf.File, name string) (dirs []string) {
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		lists, _ := e.DynString(tag)
		for _, list := range lists {
			for dir := range strings.SplitSeq(list, ":") {
				own := "/" + path.Dir(name)
				dir = strings.NewReplacer("$ORIGIN", own, "${ORIGIN}", own).Replace(dir)
				if path.IsAbs(dir) {
					dirs = append(dirs, path.Clean(dir))
				}
			}
		}
	}
	return dirs
}

// findLibrary looks for a library of the right kind of machine.
func findLibrary(lib string, dirs []string, class elf.Class, machine elf.Machine) (string, bool) {
	if strings.Contains(lib, "/") {
		return lib, path.IsAbs(lib)
	}
	for _, dir := range dirs {
		at := path.Join(dir, lib)
		f, err := elf.Open(at)
		if err != nil {
			continue
		}
		fits := f.Class == class && f.Machine == machine
		f.Close()
		if fits {
			return at, true
		}
	}
	return "", false
}

// libraryDirs are the directories in which this machine's loader looks for
// libraries.
func libraryDirs() []string {
	var dirs []string
	var read func(pattern string, depth int)
	read = func(pattern string, depth int) {
		files, _ := filepath.Glob(pattern)
		for _, name := range files {
			f, err := os.Open(name)
			if err != nil {
				continue
			}
			lines := bufio.NewScanner(io.LimitReader(f, 1<<20))
			for lines.Scan() {
				line, _, _ := strings.Cut(lines.Text(), "#")
				words := strings.Fields(line)
				switch {
				case len(words) == 2 && words[0] == "include" && depth < 4:
					if !path.IsAbs(words[1]) {
						words[1] = path.Join("/etc", words[1])
					}
					read(words[1], depth+1)
				case len(words) == 1 && path.IsAbs(words[0]):
					dirs = append(dirs, path.Clean(words[0]))
				}
			}
			f.Close()
		}
	}
	read("/etc/ld.so.conf", 0)
	return append(dirs, "/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
}
