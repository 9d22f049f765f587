//go:build linux

package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"testing"
)

// segmented is a program of the segments that are given, whose content is the
// number of the page that it is at.
func segmented(t testing.TB, segs ...elf.Prog64) []byte {
	t.Helper()
	var b bytes.Buffer
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: elfSegment,
		Phnum: uint16(len(segs)), Shoff: 9 * elfPage, Shentsize: 64, Shnum: 3, Shstrndx: 2,
	}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	must(t, binary.Write(&b, binary.LittleEndian, h))
	must(t, binary.Write(&b, binary.LittleEndian, segs))
	out := make([]byte, 10*elfPage)
	for i := range out {
		out[i] = byte(i / elfPage)
	}
	copy(out, b.Bytes())
	return out
}

func load(flags elf.ProgFlag, off, addr, filesz, memsz uint64) elf.Prog64 {
	return elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(flags), Off: off, Vaddr: addr, Paddr: addr, Filesz: filesz, Memsz: memsz, Align: elfPage}
}

func packed(t testing.TB, program []byte) []byte {
	t.Helper()
	p := part(bytes.NewReader(program), int64(len(program)))
	out, err := io.ReadAll(p.read())
	must(t, err)
	if int64(len(out)) != p.length() {
		t.Fatalf("%d bytes of %d", len(out), p.length())
	}
	return out
}

// memory is what an ELF file's segments are in memory, by address. What the file
// begins with, which no tested program reads, is left out.
func memory(t testing.TB, program []byte) map[uint64][]byte {
	t.Helper()
	m := map[uint64][]byte{}
	for seg := range segments(segmentTable(program)) {
		le := binary.LittleEndian
		if le.Uint32(seg) != elfLoad {
			continue
		}
		off, addr, size := le.Uint64(seg[8:]), le.Uint64(seg[16:]), le.Uint64(seg[32:])
		m[addr] = program[max(off, elfHead):max(off+size, elfHead)]
	}
	return m
}

func TestConstantsAndVariablesArePackedApart(t *testing.T) {
	const r, w, x = elf.PF_R, elf.PF_W, elf.PF_X
	for name, c := range map[string]struct {
		segs []elf.Prog64
		cut  int64
	}{
		"go": {[]elf.Prog64{
			load(r|x, 0, 0x400000, elfPage, elfPage), load(r, elfPage, 0x401000, 5000, 5000), load(r|w, 3*elfPage, 0x403000, 5000, 9000),
			{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(r | w)},
		}, 3 * elfPage},
		"variables that begin in a page": {[]elf.Prog64{
			load(r, elfPage, 0x401000, 5000, 5000), load(r|w, 3*elfPage+8, 0x403008, 5000, 9000),
		}, 3 * elfPage},
		"code before variables": {[]elf.Prog64{load(r|x, elfPage, 0x401000, 5000, 5000), load(r|w, 3*elfPage, 0x403000, 9, 9)}, 3 * elfPage},
		"a gap in memory":       {[]elf.Prog64{load(r, elfPage, 0x401000, 5000, 5000), load(r|w, 3*elfPage, 0x404000, 9, 9)}, 0},
		"a gap in the file":     {[]elf.Prog64{load(r, elfPage, 0x401000, 5000, 5000), load(r|w, 4*elfPage, 0x403000, 9, 9)}, 0},
		"one page of both":      {[]elf.Prog64{load(r, elfPage, 0x401000, 5000, 5000), load(r|w, 2*elfPage+2000, 0x402000+2000, 9, 9)}, 0},
		"no variables":          {[]elf.Prog64{load(r|x, 0, 0x400000, 9, 9)}, 0},
		"variables first":       {[]elf.Prog64{load(r|w, elfPage, 0x401000, 9, 9), load(r, 2*elfPage, 0x402000, 9, 9)}, 0},
		"beyond the end":        {[]elf.Prog64{load(r, 98*elfPage, 0x401000, 5000, 5000), load(r|w, 100*elfPage, 0x403000, 9, 9)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			program := segmented(t, c.segs...)
			out := packed(t, program)
			if c.cut == 0 {
				if !bytes.Equal(out, program) {
					t.Fatal("the program was changed")
				}
				return
			}
			if !bytes.Equal(out[c.cut:c.cut+elfPage], make([]byte, elfPage)) || !bytes.Equal(out[c.cut+elfPage:], program[c.cut:]) {
				t.Errorf("no page of zeros at %d", c.cut)
			}
			was, is := memory(t, program), memory(t, out)
			for addr, content := range was {
				if !bytes.Equal(is[addr], content) {
					t.Errorf("the segment at %#x has another content", addr)
				}
			}
			if again := packed(t, out); !bytes.Equal(again, out) {
				t.Error("what is apart was parted again")
			}
		})
	}
}

func TestThisProgramIsPackedAsItIsInMemory(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	was, is := memory(t, exe), memory(t, packed(t, exe))
	if len(was) != len(is) || len(was) == 0 {
		t.Fatalf("%d segments of %d", len(is), len(was))
	}
	for addr, content := range was {
		if !bytes.Equal(is[addr], content) {
			t.Errorf("the segment at %#x has another content", addr)
		}
	}
}

func TestASegmentTableFromAnywhereIsRefusedOrRight(t *testing.T) {
	good := segmented(t, load(elf.PF_R, elfPage, 0x401000, 5000, 5000), load(elf.PF_R|elf.PF_W, 3*elfPage, 0x403000, 9, 9))
	put := func(at int, b ...byte) []byte {
		bad := slices.Clone(good)
		copy(bad[at:], b)
		return bad
	}
	for name, bad := range map[string][]byte{
		"no ELF": []byte("#!/bin/sh\n"), "empty": {}, "32 bits": put(4, 1), "big-endian": put(5, 2), "a table far away": put(32, 0xff, 0xff, 0xff),
		"a table nowhere": put(32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "entries of another size": put(54, 32),
		"no entries": put(56, 0), "too many entries": put(56, 0xff, 0xff), "cut off": good[:100],
	} {
		if out := packed(t, bad); !bytes.Equal(out, bad) {
			t.Errorf("%s: the program was changed", name)
		}
	}
}

// FuzzPart: no program makes packing fail, and what is taken out of the packed one
// is what was put in.
func FuzzPart(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01"))
	f.Add(segmented(f, load(elf.PF_R, elfPage, 0x401000, 5000, 5000), load(elf.PF_R|elf.PF_W, 3*elfPage, 0x403000, 9, 9)))
	f.Fuzz(func(t *testing.T, program []byte) {
		p := part(bytes.NewReader(program), int64(len(program)))
		out := packed(t, program)
		if p.cut != 0 {
			out = slices.Concat(out[:p.cut], out[p.cut+elfPage:])
		}
		if len(out) != len(program) || len(out) > elfHead && !bytes.Equal(out[elfHead:], program[elfHead:]) {
			t.Error("bytes after the head were changed")
		}
	})
}
