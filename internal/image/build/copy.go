package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/patternmatcher"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/erofstar"
	"github.com/cloche-dev/cloche/internal/image"
)

// Copy copies files into the stage.
type Copy struct {
	// From is a stage or an image; empty is the context. Upload names an uploaded tar instead. The ID stands
	// for the content.
	From   string
	Upload string
	// Sources are paths and patterns. They are relative to the root of what is copied from.
	Sources []string
	Inline  []Inline
	// Dest is an absolute path. DestIsDir says that it is a directory, even if it is missing.
	Dest      string
	DestIsDir bool
	// Owner is "user" or "user:group"; empty is root for the context and what it was for a stage. Mode is
	// octal; empty keeps the modes.
	Owner, Mode string
	Exclude     []string
	// Extract unpacks archives.
	Extract bool

	stage    int
	hasStage bool
}

// Inline is a file of the Dockerfile itself.
type Inline struct {
	Name    string
	Content []byte
}

// source opens what is copied from.
func (s *stage) source(ctx context.Context, c *Copy) (files *image.Tree, done func(), err error) {
	none := func() {}
	switch {
	case c.Upload != "":
		files, err = s.work.upload(ctx, c.Upload)
		return files, none, err
	case c.hasStage:
		if files, err = s.work.stages[c.stage].files(ctx); err != nil {
			return nil, none, err
		}
	case c.From != "":
		img, release, err := s.work.b.Sandboxes.Base(ctx, c.From)
		if err != nil {
			return nil, none, err
		}
		defer release()
		ref := img.Digest
		if img.Name == api.DefaultImage {
			ref = img.Name
		}
		if files, err = s.work.b.Images.OpenFiles(ctx, ref); err != nil {
			return nil, none, err
		}
	case s.work.req.Context == nil:
		if len(c.Sources) == 0 {
			return nil, none, nil
		}
		return nil, none, api.Invalid("context", "the build has no context to copy %.100q from", c.Sources[0]).WithHint("name its directory: cloche image build NAME DIRECTORY")
	default:
		return s.work.req.Context, none, nil
	}
	return files, func() { _ = files.Close() }, nil
}

// upload opens an upload, once.
func (w *work) upload(ctx context.Context, id string) (*image.Tree, error) {
	if files := w.uploads[id]; files != nil {
		return files, nil
	}
	r, err := w.req.Upload(id)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, api.Invalid("context", "the files %.64s were not uploaded", id)
	}
	defer r.Close()
	files, err := w.b.Images.Spool(ctx, r, archive.Limits{})
	if err == nil {
		w.uploads[id] = files
	}
	return files, err
}

// found is a source: a path of the files, without symlinks above it.
type found struct {
	path string
	info fs.FileInfo
}

// find resolves the sources. A symlink that is named itself is followed, inside the files.
func (c *Copy) find(files *image.Tree) ([]found, error) {
	var out []found
	for _, src := range c.Sources {
		clean := strings.TrimPrefix(path.Clean("/"+src), "/")
		names := []string{clean}
		if strings.ContainsAny(clean, "*?[") {
			var err error
			if names, err = glob(files, clean); err != nil {
				return nil, err
			}
		}
		if len(names) == 0 {
			return nil, missingSource(src)
		}
		for _, name := range names {
			at, err := files.Follow(name)
			if err != nil {
				return nil, err
			}
			if at = strings.TrimPrefix(at, "/"); at == "" {
				at = "."
			}
			err = files.Walk(at, func(_ string, info fs.FileInfo) error {
				f := found{at, info}
				if info.IsDir() || at == name || at == "." {
					out = append(out, f)
				} else {
					out = append(out, found{at, named{info, path.Base(name)}})
				}
				return fs.SkipAll
			})
			if errors.Is(err, fs.ErrNotExist) {
				return nil, missingSource(src)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// named is a file that was found by another name.
type named struct {
	fs.FileInfo
	name string
}

func (n named) Name() string { return n.name }

func missingSource(src string) error {
	return api.Invalid("dockerfile", "%.200q is not in what is copied from", src).
		WithHint("paths are relative to the context, and .dockerignore leaves files out of it")
}

// glob finds the names that match a pattern, part by part. Only the last part matches files.
func glob(files *image.Tree, pattern string) ([]string, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, api.Invalid("dockerfile", "the pattern %.200q is malformed", pattern)
	}
	at := []string{"."}
	for part := range strings.SplitSeq(pattern, "/") {
		var next []string
		for _, dir := range at {
			if !strings.ContainsAny(part, "*?[") {
				if _, ok := files.Lstat(path.Join(dir, part)); ok {
					next = append(next, path.Join(dir, part))
				}
				continue
			}
			names := files.Names(dir)
			slices.Sort(names)
			for _, name := range names {
				if ok, _ := path.Match(part, name); ok {
					next = append(next, path.Join(dir, name))
				}
			}
		}
		at = next
	}
	return at, nil
}

// skip says which paths are excluded.
func (c *Copy) skip() (func(string) bool, error) {
	if len(c.Exclude) == 0 {
		return nil, nil
	}
	m, err := patternmatcher.New(c.Exclude)
	if err != nil {
		return nil, api.Invalid("dockerfile", "--exclude: %v", err)
	}
	return func(name string) bool {
		ok, err := m.MatchesOrParentMatches(name)
		return err == nil && ok
	}, nil
}

// identify includes what a stage or an image consists of, and the content of files of the context, without their times.
func (c *Copy) identify(ctx context.Context, s *stage) (string, error) {
	sum := sha256.New()
	from, err := c.fromIdentity(ctx, s)
	if err != nil {
		return "", err
	}
	if err := json.NewEncoder(sum).Encode([]any{c.Dest, c.DestIsDir, c.Owner, c.Mode, c.Exclude, c.Extract, c.Inline, from}); err != nil {
		return "", err
	}
	if from != nil {
		err := json.NewEncoder(sum).Encode(c.Sources)
		return hex.EncodeToString(sum.Sum(nil)), err
	}
	files, done, err := s.source(ctx, c)
	if err != nil {
		return "", err
	}
	defer done()
	if files == nil {
		return hex.EncodeToString(sum.Sum(nil)), nil
	}
	skip, err := c.skip()
	if err != nil {
		return "", err
	}
	sources, err := c.find(files)
	if err != nil {
		return "", err
	}
	w := tar.NewWriter(sum)
	p := &erofstar.Packer{Tar: w, Change: plain}
	for _, src := range sources {
		if err := files.Pack(ctx, p, src.path, "x/"+src.info.Name(), skip); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// fromIdentity is the digests of a stage or an image that is copied from; nil is the context.
func (c *Copy) fromIdentity(ctx context.Context, s *stage) ([]string, error) {
	switch {
	case c.Upload != "":
		return []string{c.Upload}, nil
	case c.hasStage:
		of := s.work.stages[c.stage]
		out := []string{of.base}
		for _, l := range of.layers {
			out = append(out, l.Digest)
		}
		return out, nil
	case c.From != "":
		img, release, err := s.work.b.Sandboxes.Base(ctx, c.From)
		if err != nil {
			return nil, err
		}
		release()
		return []string{img.Digest}, nil
	}
	return nil, nil
}

// plain removes from a header what does not identify a file.
func plain(h *tar.Header) { h.ModTime = time.Unix(0, 0) }

func (c *Copy) do(ctx context.Context, s *stage) error { return s.copyFiles(ctx, c) }

// copyFiles copies the sources of c into the sandbox.
func (s *stage) copyFiles(ctx context.Context, c *Copy) error {
	files, done, err := s.source(ctx, c)
	if err != nil {
		return err
	}
	defer done()
	var sources []found
	if files != nil {
		if sources, err = c.find(files); err != nil {
			return err
		}
	}
	change, err := c.change(ctx, s)
	if err != nil {
		return err
	}
	dir, name, err := s.destination(ctx, c, sources)
	if err != nil {
		return err
	}
	skip, err := c.skip()
	if err != nil {
		return err
	}
	if err := s.makeDir(ctx, dir); err != nil {
		return err
	}
	for _, src := range sources {
		if c.Extract && src.info.Mode().IsRegular() {
			if ok, err := s.extract(ctx, files, src.path, c); ok || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		called := "."
		if !src.info.IsDir() {
			if called = name; called == "" {
				called = src.info.Name()
			}
		}
		if err := s.send(ctx, dir, func(w *tar.Writer) error {
			return files.Pack(ctx, &erofstar.Packer{Tar: w, Change: change}, src.path, called, skip)
		}); err != nil {
			return err
		}
	}
	for _, f := range c.Inline {
		called := name
		if called == "" {
			called = f.Name
		}
		h := tar.Header{Mode: 0o644, ModTime: time.Now(), Format: tar.FormatPAX}
		change(&h)
		if err := s.put(ctx, path.Join(dir, called), f.Content, h); err != nil {
			return err
		}
	}
	return nil
}

// send streams a tar into a directory of the sandbox.
func (s *stage) send(ctx context.Context, dir string, pack func(*tar.Writer) error) error {
	r := image.PackStream(pack)
	return errors.Join(s.sandbox.Unpack(ctx, dir, r), r.Close())
}

// change is what becomes of the owners and the modes.
func (c *Copy) change(ctx context.Context, s *stage) (func(*tar.Header), error) {
	keep := c.Owner == "" && (c.hasStage || c.From != "")
	owner, err := s.owner(ctx, c.Owner)
	if err != nil {
		return nil, err
	}
	mode := int64(-1)
	if c.Mode != "" {
		n, err := strconv.ParseUint(c.Mode, 8, 12)
		if err != nil {
			return nil, api.Invalid("dockerfile", "--chmod=%.20s is not an octal mode", c.Mode)
		}
		mode = int64(n)
	}
	return func(h *tar.Header) {
		if !keep {
			h.Uid, h.Gid = owner.uid, owner.gid
		}
		if mode >= 0 && h.Typeflag != tar.TypeSymlink {
			h.Mode = mode
		}
	}, nil
}

// destination returns the directory that is copied to, and the name of the file there if it has another one.
func (s *stage) destination(ctx context.Context, c *Copy, sources []found) (dir, name string, err error) {
	several := len(sources)+len(c.Inline) > 1 || len(sources) == 1 && sources[0].info.IsDir()
	if c.DestIsDir || several {
		return c.Dest, "", nil
	}
	info, err := s.sandbox.Stat(ctx, c.Dest)
	switch {
	case err == nil && info.Type == api.TypeDir:
		return c.Dest, "", nil
	case err != nil && api.CodeOf(err) != api.CodeNotFound:
		return "", "", err
	}
	return path.Dir(c.Dest), path.Base(c.Dest), nil
}

// extract unpacks a file that is an archive into the destination; false is a file of another kind.
func (s *stage) extract(ctx context.Context, files *image.Tree, name string, c *Copy) (bool, error) {
	f, err := files.Open(name)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", name, err)
	}
	z, err := archive.Decompress(f)
	if err != nil {
		_ = f.Close()
		return false, nil // what looks compressed and is not is copied as it is
	}
	head := make([]byte, 512)
	n, err := io.ReadFull(z, head)
	isTar := err == nil && n == len(head) && string(head[257:262]) == "ustar"
	if !isTar {
		return false, errors.Join(z.Close(), f.Close())
	}
	if err := s.makeDir(ctx, c.Dest); err != nil {
		return true, errors.Join(err, z.Close(), f.Close())
	}
	err = s.sandbox.Unpack(ctx, c.Dest, io.MultiReader(bytes.NewReader(head), z))
	return true, errors.Join(err, z.Close(), f.Close())
}
