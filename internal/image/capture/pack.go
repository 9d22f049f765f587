package capture

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive"
)

// whiteout is the prefix of the name that marks a removed file in a layer of an image.
const whiteout = ".wh."

// Packer writes a layer. The zero value writes one of an image.
type Packer struct {
	// Overlay marks a removed file by a character device 0:0, and not by a file whose name begins with
	// ".wh.". So the layer can have files with any name, and only [Restore] reads it.
	Overlay bool

	notes []string
	more  int // notes that are not kept
}

// Notes say which of the changed files are not in the layer.
func (p *Packer) Notes() []string { return p.notes }

// maxNotes bounds what is told of a layer.
const maxNotes = 20

func (p *Packer) note(format string, args ...any) {
	if len(p.notes) < maxNotes {
		p.notes = append(p.notes, fmt.Sprintf(format, args...))
		return
	}
	p.more++
}

// Pack writes a mark for each removed file, and then the changed files.
func (p *Packer) Pack(ctx context.Context, sandbox Trees, w io.Writer, changed, removed []string) error {
	out := tar.NewWriter(w)
	for _, name := range removed {
		if err := out.WriteHeader(p.mark(name)); err != nil {
			return fmt.Errorf("write layer: %w", err)
		}
	}
	root, inTmp := changed, []string(nil)
	if i, _ := slices.BinarySearch(changed, Tmp+"/"); i < len(changed) && strings.HasPrefix(changed[i], Tmp+"/") {
		end := i
		for end < len(changed) && strings.HasPrefix(changed[end], Tmp+"/") {
			inTmp = append(inTmp, strings.TrimPrefix(changed[end], Tmp+"/"))
			end++
		}
		root = append(slices.Clone(changed[:i]), changed[end:]...)
	}
	if err := p.from(ctx, sandbox, out, "/", "", root); err != nil {
		return err
	}
	if err := p.from(ctx, sandbox, out, "/"+Tmp, Tmp, inTmp); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	return nil
}

// mark is the entry for a removed file.
func (p *Packer) mark(name string) *tar.Header {
	if p.Overlay {
		return &tar.Header{Typeflag: tar.TypeChar, Name: name, Mode: 0o600, Format: tar.FormatPAX}
	}
	dir, base := path.Split(name)
	return &tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + base, Mode: 0o600, Format: tar.FormatPAX}
}

// from copies entries of one filesystem, some at a time: all names of a call are in one request.
func (p *Packer) from(ctx context.Context, sandbox Trees, out *tar.Writer, top, below string, names []string) error {
	for len(names) > 0 {
		n, size := 0, 0
		for n < len(names) && size < agent.MaxPackNames/2 {
			size += len(names[n])
			n++
		}
		if err := p.some(ctx, sandbox, out, top, below, names[:n]); err != nil {
			return err
		}
		names = names[n:]
	}
	return nil
}

func (p *Packer) some(ctx context.Context, sandbox Trees, out *tar.Writer, top, below string, names []string) error {
	r, w := io.Pipe()
	type result struct {
		report api.TarReport
		err    error
	}
	packed := make(chan result, 1)
	go func() {
		report, err := sandbox.PackOnly(ctx, top, names, w)
		w.CloseWithError(err)
		packed <- result{report, err}
	}()
	err := p.copy(r, out, below, names)
	_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	res := <-packed
	if err != nil {
		return err
	}
	for _, skip := range res.report.Skipped {
		p.note("/%s: %s", path.Join(below, skip.Path), skip.Reason)
	}
	return res.err
}

// copy copies the entries of a tar that a sandbox wrote. Only what was asked for is taken.
func (p *Packer) copy(r io.Reader, out *tar.Writer, below string, names []string) error {
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	in, err := archive.OpenTar(r, archive.TarOptions{Limits: archive.Limits{Bytes: maxLayer, Entries: maxListed}})
	if err != nil {
		return err
	}
	defer in.Close()
	for {
		e, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // what follows the end of the archive
			return err
		}
		if err != nil {
			return err
		}
		if !wanted[e.Path] {
			return api.Errorf(api.CodeSandboxLost, "the sandbox packs a file %.100q that was not asked for", e.Path)
		}
		delete(wanted, e.Path)
		if !p.Overlay && strings.HasPrefix(path.Base(e.Path), whiteout) {
			p.note("/%s: a layer has no files whose names begin with %s", path.Join(below, e.Path), whiteout)
			continue
		}
		if err := copyEntry(out, e, below, in); err != nil {
			return err
		}
	}
}

// copyEntry writes an entry, whose content is next in r, with below before its name.
func copyEntry(out *tar.Writer, e archive.Entry, below string, r io.Reader) error {
	h := &tar.Header{
		Name: path.Join(below, e.Path), Mode: int64(e.Mode & 0o7777), Uid: int(e.UID), Gid: int(e.GID), ModTime: e.ModTime, Format: tar.FormatPAX,
	}
	switch e.Kind {
	case archive.Dir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case archive.Symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case archive.HardLink:
		h.Typeflag, h.Linkname = tar.TypeLink, path.Join(below, e.Target)
	case archive.File:
		h.Typeflag, h.Size = tar.TypeReg, e.Size
	default:
		return nil
	}
	if err := out.WriteHeader(h); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	if e.Kind != archive.File {
		return nil
	}
	_, err := io.Copy(out, r)
	return err
}
