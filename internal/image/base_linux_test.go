package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// below is what an image holds below a directory of this machine, by names that are
// relative to it.
func below(t *testing.T, root Rootfs, dir string) map[string]string {
	t.Helper()
	sub, err := fs.Sub(open(t, root.Image), strings.TrimPrefix(dir, "/"))
	must(t, err)
	return contentOf(t, sub)
}

// realDir is a directory for the test whose path has no symlink.
func realDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// TestBuildBaseTakesWhatProgramsNeed: a base image holds the interpreters of its scripts,
// the symlinks that lead to them, and nothing else of their directories.
func TestBuildBaseTakesWhatProgramsNeed(t *testing.T) {
	dir := realDir(t)
	script := "#!" + dir + "/link/interpreter\n"
	orphan := "#!" + dir + "/missing\n"
	put(t, dir, "real/script", script, 0o755)
	put(t, dir, "real/orphan", orphan, 0o755)
	put(t, dir, "real/interpreter", "text", 0o755)
	put(t, dir, "real/unused", "text", 0o755)
	put(t, dir, "whole/below/orphan", orphan, 0o644)
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink(dir+"/link", filepath.Join(dir, "absolute")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "whole/dangling")))
	s := images(t)
	_, err := s.BuildBase(t.Context(), "base", []string{dir + "/absolute/script", dir + "/link/orphan", dir + "/whole"}, ImportOptions{})
	must(t, err)
	root, err := s.Resolve(t.Context(), "base", Need{})
	must(t, err)
	want := map[string]string{
		"absolute": "-> " + dir + "/link", "link": "-> real", "real": "dir", "real/script": script, "real/interpreter": "text", "real/orphan": orphan,
		"whole": "dir", "whole/below": "dir", "whole/below/orphan": orphan, "whole/dangling": "-> nowhere",
	}
	if got := below(t, root, dir); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// dynamic is a program with an interpreter and what its dynamic section names: the pairs
// of a tag and a text.
func dynamic(t *testing.T, machine elf.Machine, interpreter string, tags ...any) string {
	t.Helper()
	const head, phnum, shnum = 64, 1, 4
	le := binary.LittleEndian
	names, table := []byte{0}, []byte{}
	for i := 0; i < len(tags); i += 2 {
		table = le.AppendUint64(table, uint64(tags[i].(elf.DynTag)))
		table = le.AppendUint64(table, uint64(len(names)))
		names = append(append(names, tags[i+1].(string)...), 0)
	}
	table = append(table, make([]byte, 16)...) // DT_NULL
	at := uint64(head + phnum*56 + shnum*64)
	interp := []byte(interpreter + "\x00")
	part := func(kind elf.SectionType, content []byte, link uint32) elf.Section64 {
		s := elf.Section64{Type: uint32(kind), Off: at, Size: uint64(len(content)), Link: link, Addralign: 1}
		at += s.Size
		return s
	}
	text := part(elf.SHT_PROGBITS, interp, 0)
	sections := []elf.Section64{{}, part(elf.SHT_DYNAMIC, table, 2), part(elf.SHT_STRTAB, names, 0), part(elf.SHT_STRTAB, []byte{0}, 0)}
	h := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Phoff: head, Shoff: head + phnum*56, Ehsize: head,
		Phentsize: 56, Phnum: phnum, Shentsize: 64, Shnum: shnum, Shstrndx: 3,
	}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var b bytes.Buffer
	must(t, binary.Write(&b, le, h))
	must(t, binary.Write(&b, le, elf.Prog64{Type: uint32(elf.PT_INTERP), Off: text.Off, Filesz: text.Size}))
	must(t, binary.Write(&b, le, sections))
	for _, content := range [][]byte{interp, table, names, {0}} {
		b.Write(content)
	}
	return b.String()
}

// TestBuildBaseTakesLibraries: a program has its interpreter and its libraries with it,
// each from the first directory that has one for the same processor, and theirs.
func TestBuildBaseTakesLibraries(t *testing.T) {
	dir := realDir(t)
	const mine, other = elf.EM_X86_64, elf.EM_AARCH64
	libc := dynamic(t, mine, "")
	files := map[string]string{
		"bin/program":        dynamic(t, mine, dir+"/ld.so", elf.DT_NEEDED, "libone.so", elf.DT_NEEDED, dir+"/fixed.so", elf.DT_RUNPATH, dir+"/wrong:$ORIGIN/../lib"),
		"lib/libone.so":      dynamic(t, mine, "", elf.DT_NEEDED, "libtwo.so", elf.DT_RPATH, "${ORIGIN}/more:relative"),
		"lib/more/libtwo.so": libc, "ld.so": libc, "fixed.so": libc,
	}
	unused := map[string]string{"wrong/libone.so": dynamic(t, other, ""), "lib/libtwo.so": libc, "lib/unused.so": libc, "wrong/libtwo.so": "text"}
	for name, content := range files {
		put(t, dir, name, content, 0o755)
	}
	for name, content := range unused {
		put(t, dir, name, content, 0o755)
	}
	s := images(t)
	_, err := s.BuildBase(t.Context(), "base", []string{dir + "/bin/program"}, ImportOptions{})
	must(t, err)
	root, err := s.Resolve(t.Context(), "base", Need{})
	must(t, err)
	got := below(t, root, dir)
	maps.DeleteFunc(got, func(_, content string) bool { return content == "dir" })
	if !maps.Equal(got, files) {
		t.Errorf("got %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(files)))
	}

	// A program that cannot run here is refused, except one in a directory.
	put(t, dir, "bad/program", dynamic(t, mine, "", elf.DT_NEEDED, "libcloche-nowhere.so"), 0o755)
	_, err = s.BuildBase(t.Context(), "bad", []string{dir + "/bad/program"}, ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "libcloche-nowhere.so", "bad/program")
	_, err = s.BuildBase(t.Context(), "bad", []string{dir + "/bad", dir + "/bin/program"}, ImportOptions{})
	must(t, err)
	// That holds for the directory alone.
	put(t, dir, "aa/x", "text", 0o644)
	_, err = s.BuildBase(t.Context(), "bad", []string{dir + "/aa", dir + "/bad/program"}, ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "libcloche-nowhere.so")
}
