package mockcore

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

type file struct {
	data []byte
	dir  bool
	mode uint32
}

func (f file) info(p string) api.FileInfo {
	i := api.FileInfo{Name: path.Base(p), Type: api.TypeFile, Size: int64(len(f.data)), Mode: f.mode, ModTime: Epoch()}
	if f.dir {
		i.Type = api.TypeDir
	}
	if !utf8.ValidString(i.Name) {
		i.NameBytes = []byte(i.Name)
		i.Name = strings.ToValidUTF8(i.Name, "\uFFFD")
	}
	return i
}

// with calls fn with a sandbox's files, under the lock. Within is by name alone: there are
// no links.
func (c *Core) with(caller core.Caller, ref string, at api.FilePlace, fn func(files map[string]file) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return err
	}
	all := slices.Concat(at.Within, at.ReadWithin)
	if len(all) > 0 && !slices.ContainsFunc(all, func(dir string) bool { return strings.HasPrefix(path.Clean(at.Path)+"/", dir+"/") }) {
		e := api.Errorf(api.CodeDenied, "%q leads out", at.Path)
		e.Rule = api.RuleWithin
		return e
	}
	return fn(sb.files)
}

func noFile(p string) error { return api.Errorf(api.CodeNotFound, "there is no file %q", p) }

// StatFile describes a file.
func (c *Core) StatFile(_ context.Context, caller core.Caller, ref string, at api.FilePlace, _ bool) (info api.FileInfo, err error) {
	p := at.Path
	return info, c.with(caller, ref, at, func(files map[string]file) error {
		f, ok := files[p]
		if !ok {
			return noFile(p)
		}
		info = f.info(p)
		return nil
	})
}

// ListFiles pages by position.
func (c *Core) ListFiles(_ context.Context, caller core.Caller, ref string, at api.FilePlace, cursor string, limit int) (l api.FileList, err error) {
	p := at.Path
	return l, c.with(caller, ref, at, func(files map[string]file) error {
		if !files[p].dir {
			return noFile(p)
		}
		skip, _ := strconv.Atoi(cursor)
		for i, name := range slices.Sorted(maps.Keys(files)) {
			if i < skip || name == p || path.Dir(name) != p {
				continue
			}
			if limit > 0 && len(l.Files) == limit {
				l.Next = strconv.Itoa(i)
				return nil
			}
			l.Files = append(l.Files, files[name].info(name))
		}
		return nil
	})
}

// ReadFile reads a file. One named "made-up" has size 0 and content, and breaks
// after it.
func (c *Core) ReadFile(_ context.Context, caller core.Caller, ref string, at api.FilePlace, offset, length int64) (r io.ReadCloser, info api.FileInfo, err error) {
	p := at.Path
	return r, info, c.with(caller, ref, at, func(files map[string]file) error {
		if path.Base(p) == "made-up" {
			info = api.FileInfo{Name: "made-up", Type: api.TypeFile, ModTime: Epoch()}
			broken := &failing{api.Errorf(api.CodeSandboxLost, "the sandbox died")}
			r = io.NopCloser(io.MultiReader(strings.NewReader("some"), broken))
			return nil
		}
		f, ok := files[p]
		if !ok {
			return noFile(p)
		}
		if f.dir {
			return api.Invalid("path", "%q is a directory", p)
		}
		data := f.data[min(offset, int64(len(f.data))):]
		if length >= 0 {
			data = data[:min(length, int64(len(data)))]
		}
		info, r = f.info(p), io.NopCloser(bytes.NewReader(data))
		return nil
	})
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// WriteFile replaces a file when all of r was read.
func (c *Core) WriteFile(_ context.Context, caller core.Caller, ref string, at api.FilePlace, mode uint32, r io.Reader) (info api.FileInfo, err error) {
	p := at.Path
	data, err := io.ReadAll(r)
	if err != nil {
		return info, api.Errorf(api.CodeCanceled, "the content of %q did not arrive whole: %w", p, err)
	}
	return info, c.with(caller, ref, at, func(files map[string]file) error {
		if !files[path.Dir(p)].dir {
			return noFile(path.Dir(p))
		}
		if mode == 0 {
			mode = 0o644
		}
		files[p] = file{data: data, mode: mode}
		info = files[p].info(p)
		return nil
	})
}

// MakeDir makes a directory.
func (c *Core) MakeDir(_ context.Context, caller core.Caller, ref string, at api.FilePlace, o api.MakeDirOptions) error {
	return c.with(caller, ref, at, func(files map[string]file) error {
		files[at.Path] = file{dir: true, mode: o.Mode}
		return nil
	})
}

// MoveFile renames a file.
func (c *Core) MoveFile(_ context.Context, caller core.Caller, ref string, at api.FilePlace, to string) error {
	from := at.Path
	return c.with(caller, ref, at, func(files map[string]file) error {
		f, ok := files[from]
		if !ok {
			return noFile(from)
		}
		delete(files, from)
		files[to] = f
		return nil
	})
}

// RemoveFile removes a file.
func (c *Core) RemoveFile(_ context.Context, caller core.Caller, ref string, at api.FilePlace, o api.RemoveFileOptions) error {
	p := at.Path
	return c.with(caller, ref, at, func(files map[string]file) error {
		f, ok := files[p]
		switch {
		case !ok:
			return noFile(p)
		case f.dir && !o.Recursive:
			return api.Errorf(api.CodeState, "%q is a directory", p)
		}
		maps.DeleteFunc(files, func(name string, _ file) bool { return name == p || strings.HasPrefix(name, p+"/") })
		return nil
	})
}

// TarOut packs a directory. "/broken" breaks after its first entry, and every
// "*.sock" is skipped.
func (c *Core) TarOut(_ context.Context, caller core.Caller, ref, p string, o api.TarOutOptions, w io.Writer) (report api.TarReport, err error) {
	sum := sha256.New()
	w = io.MultiWriter(w, sum)
	defer func() { report.SHA256 = hex.EncodeToString(sum.Sum(nil)) }()
	return report, c.with(caller, ref, api.FilePlace{Path: p}, func(files map[string]file) error {
		if !files[p].dir {
			return noFile(p)
		}
		tw := tar.NewWriter(w)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			f := files[name]
			if f.dir || !strings.HasPrefix(name, p+"/") || slices.Contains(o.Exclude, strings.TrimPrefix(name, p+"/")) {
				continue
			}
			if strings.HasSuffix(name, ".sock") {
				report.Skipped = append(report.Skipped, api.TarSkip{Path: name, Reason: "is a socket"})
				continue
			}
			h := &tar.Header{Name: strings.TrimPrefix(name, p+"/"), Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: Epoch()}
			if err := tw.WriteHeader(h); err != nil {
				return err
			}
			if _, err := tw.Write(f.data); err != nil {
				return err
			}
			report.Entries++
			report.Bytes += h.Size
			if p == "/broken" {
				return api.Errorf(api.CodeSandboxLost, "the sandbox died")
			}
		}
		return tw.Close()
	})
}

// TarIn unpacks regular files.
func (c *Core) TarIn(_ context.Context, caller core.Caller, ref, p string, o api.TarInOptions, r io.Reader) (report api.TarReport, err error) {
	sum := sha256.New()
	r = io.TeeReader(r, sum)
	tr := tar.NewReader(r)
	in := map[string]file{}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return report, api.Invalid("body", "the body is not a tar stream: %w", err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return report, api.Invalid("body", "the body is not a whole tar stream: %w", err)
		}
		if slices.Contains(o.Exclude, h.Name) {
			continue
		}
		in[path.Join(p, h.Name)] = file{data: data, mode: uint32(h.Mode)}
		report.Entries++
		report.Bytes += int64(len(data))
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return report, err
	}
	report.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return report, c.with(caller, ref, api.FilePlace{Path: p}, func(files map[string]file) error {
		if o.Clear {
			clear(files)
		}
		files[p] = file{dir: true, mode: 0o755}
		maps.Copy(files, in)
		return nil
	})
}
