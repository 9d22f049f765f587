//go:build linux || darwin

package skill

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// The bounds of archives, which those of packages are too.
const (
	// MaxArchive bounds an archive itself, in bytes.
	MaxArchive = 20 << 20
	// zipEntries bounds its entries, zipEntryBytes each file in it and zipBytes all of
	// them together.
	zipEntries    = 512
	zipEntryBytes = 16 << 20
	zipBytes      = 64 << 20
	// zipRatio bounds how many times larger a file, or all of them, may become.
	zipRatio = 100
	// maxZipParts is how deep a path in an archive may be, maxZipPart how long a part.
	maxZipParts = 24
	maxZipPart  = 255
)

// item is one entry of an archive that was judged.
type item struct {
	path string
	dir  bool
	mode fs.FileMode
	file *zip.File
}

// readZip judges all that an archive says of itself, before anything is written.
func readZip(r io.ReaderAt, size int64) ([]item, error) {
	if size == 0 {
		return nil, badZip("it is empty")
	}
	if size > MaxArchive {
		return nil, largeZip("it has more than %d bytes", MaxArchive)
	}
	z, err := zip.NewReader(r, size) //nolint:forbidigo // this unpacks, with limits of its own: each entry is judged before any is opened
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return nil, badZip("it is no zip").WithCause(err).WithHint("pack the directory of the skill as a zip")
	}
	if len(z.File) > zipEntries {
		return nil, largeZip("it has %d entries, more than %d", len(z.File), zipEntries)
	}
	var items []item
	var packed, unpacked uint64
	for _, f := range z.File {
		it, err := judge(f)
		if err != nil {
			return nil, err
		}
		packed, unpacked = packed+f.CompressedSize64, unpacked+f.UncompressedSize64
		if unpacked > zipBytes {
			return nil, largeZip("its files have more than %d bytes", zipBytes)
		}
		if !litter(it.path) {
			items = append(items, it)
		}
	}
	if unpacked > zipRatio*min(packed, MaxArchive) {
		return nil, largeZip("it unfolds to more than %d times as much", zipRatio)
	}
	return items, distinct(items)
}

// judge judges one entry by its header.
func judge(f *zip.File) (item, error) {
	p, err := zipPath(f.Name)
	if err != nil {
		return item{}, err
	}
	mode := f.Mode()
	it := item{path: p, mode: mode, file: f, dir: mode.IsDir() || strings.HasSuffix(f.Name, "/") || strings.HasSuffix(f.Name, `\`)}
	switch {
	case f.Flags&1 != 0:
		return it, api.Errorf(api.CodeUnsupported, "the archive cannot be used: %q is encrypted", clip(p))
	case f.Method != zip.Store && f.Method != zip.Deflate:
		return it, api.Errorf(api.CodeUnsupported, "the archive cannot be used: %q is compressed with method %d", clip(p), f.Method).WithHint("store or deflate it")
	case mode&fs.ModeSymlink != 0:
		return it, badZip("%q is a symlink", clip(p)).WithHint("put the file itself in its place")
	case mode.Type()&^fs.ModeDir != 0:
		return it, badZip("%q is neither a file nor a directory", clip(p))
	case it.dir && f.UncompressedSize64 > 0:
		return it, badZip("the directory %q has content", clip(p))
	case p == "." && !it.dir:
		return it, badZip("a file has no name")
	case f.UncompressedSize64 > zipEntryBytes:
		return it, largeZip("%q has more than %d bytes", clip(p), zipEntryBytes)
	case f.CompressedSize64 > MaxArchive:
		return it, badZip("%q has another size than it says", clip(p))
	case f.UncompressedSize64 > zipRatio*f.CompressedSize64:
		return it, largeZip("%q unfolds to more than %d times as much", clip(p), zipRatio)
	}
	return it, nil
}

// zipPath is the clean form of a name in an archive. A backslash is a slash, as to
// the programs that write it.
func zipPath(name string) (string, error) {
	switch {
	case name == "":
		return "", badZip("an entry has no name")
	case len(name) > maxPath:
		return "", largeZip("a name has %d bytes, more than %d", len(name), maxPath)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return "", badZip("the name %q is no text", clip(name))
	}
	p := strings.ReplaceAll(name, `\`, "/")
	if strings.HasPrefix(p, "/") || len(p) > 1 && p[1] == ':' && (p[0]|0x20) >= 'a' && (p[0]|0x20) <= 'z' {
		return "", badZip("the name %q is absolute", clip(name))
	}
	parts := strings.Split(p, "/")
	for _, part := range parts {
		if part == ".." {
			return "", badZip("the name %q leads upwards", clip(name))
		}
		if len(part) > maxZipPart {
			return "", largeZip("a part of the name %q has more than %d bytes", clip(name), maxZipPart)
		}
	}
	if len(parts) > maxZipParts {
		return "", largeZip("%q is more than %d levels deep", clip(name), maxZipParts)
	}
	return path.Clean(p), nil
}

// litter is what programs leave in archives that belongs to nothing.
func litter(p string) bool {
	return p == "__MACOSX" || strings.HasPrefix(p, "__MACOSX/") || path.Base(p) == ".DS_Store"
}

// distinct refuses names that are one file where case does not count, and files
// that would have to be directories as well.
func distinct(items []item) error {
	files, dirs := map[string]bool{}, map[string]bool{}
	for _, it := range items {
		p := strings.ToLower(it.path)
		if files[p] || !it.dir && dirs[p] {
			return badZip("%q is there twice", clip(it.path))
		}
		if it.dir {
			dirs[p] = true
		} else {
			files[p] = true
		}
		for up := path.Dir(p); up != "."; up = path.Dir(up) {
			dirs[up] = true
		}
	}
	for p := range files {
		if dirs[p] {
			return badZip("%q is a file and a directory", clip(p))
		}
	}
	return nil
}

func badZip(format string, args ...any) *api.Error {
	return api.Errorf(api.CodeInvalid, "the archive cannot be used: "+format, args...)
}

func largeZip(format string, args ...any) *api.Error {
	return api.Errorf(api.CodeTooLarge, "the archive cannot be used: "+format, args...)
}

// unpack writes the items below an empty directory. Each has the size that it said,
// or it is refused.
func unpack(ctx context.Context, items []item, dir *os.File) error {
	for _, it := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		if it.dir {
			made, err := makeDirs(dir, it.path)
			if err != nil {
				return err
			}
			_ = made.Close()
			continue
		}
		if err := unpackFile(it, dir); err != nil {
			if _, ok := errors.AsType[*api.Error](err); ok {
				return err
			}
			if errors.Is(err, zip.ErrChecksum) || errors.Is(err, zip.ErrFormat) || errors.Is(err, io.ErrUnexpectedEOF) || isFlate(err) {
				return badZip("%q is damaged", clip(it.path)).WithCause(err)
			}
			return fmt.Errorf("unpack %s: %w", clip(it.path), err)
		}
	}
	return nil
}

func unpackFile(it item, dir *os.File) error {
	body, err := it.file.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	above, err := makeDirs(dir, path.Dir(it.path))
	if err != nil {
		return err
	}
	defer above.Close()
	return copyFile(above, path.Base(it.path), it.mode, body, int64(it.file.UncompressedSize64))
}

// topDir is the one directory that an archive has at its top, "." where there is
// more.
func topDir(items []item) string {
	var tops []string
	for _, it := range items {
		first, _, below := strings.Cut(it.path, "/")
		if first == "." {
			continue
		}
		if !below && !it.dir {
			return "."
		}
		tops = append(tops, first)
	}
	slices.Sort(tops)
	if tops = slices.Compact(tops); len(tops) != 1 {
		return "."
	}
	return tops[0]
}
