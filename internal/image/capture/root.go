package capture

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/image"
)

// Limits of what one sandbox has changed in its root. They bound the memory that a save needs.
const (
	maxChanged      = 1 << 20
	maxChangedNames = 128 << 20 // bytes
)

// SaveRoot writes to w what a sandbox has changed in its root since a time, for [Restore]. The root was made of the
// image below. Nothing may change the root meanwhile. skipped lists the changed files that the tar leaves out.
func SaveRoot(ctx context.Context, sandbox Trees, below *image.Tree, since time.Time, w io.Writer) (skipped []api.Loss, err error) {
	before, err := FilesOf(below)
	if err != nil {
		return nil, err
	}
	changed, removed, err := changesOf(ctx, sandbox, before, since)
	if err != nil {
		return nil, err
	}
	p := &Packer{Overlay: true}
	err = p.Pack(ctx, sandbox, w, changed, removed)
	for _, note := range p.Notes() {
		name, reason, _ := strings.Cut(note, ": ")
		skipped = append(skipped, api.Loss{Kind: api.LossFile, Name: name, Reason: reason})
	}
	if p.more > 0 {
		skipped = append(skipped, api.Loss{Kind: api.LossFile, Reason: fmt.Sprintf("%d more files are not kept", p.more)})
	}
	return skipped, err
}

// changesOf lists the files of a root that are new or changed, and the removed ones. Those include a file that
// one of another type replaces. It keeps only these in memory, and takes entries out of before.
func changesOf(ctx context.Context, sandbox Trees, before Files, since time.Time) (changed, removed []string, err error) {
	var hidden []string
	replaced, names := map[string]bool{}, 0
	err = each(ctx, sandbox, "/", "", func(name string, now Entry, mount bool) error {
		in, had := before[name]
		delete(before, name)
		switch {
		case mount:
			hidden = append(hidden, name)
			return nil
		case own(name), had && now.Untouched(in, since.UnixNano()):
			return nil
		case had && in.mode&typeMask != now.mode&typeMask:
			replaced[name], removed = true, append(removed, name)
		}
		changed = append(changed, name)
		if names += len(name); len(changed) > maxChanged || names > maxChangedNames {
			return api.Errorf(api.CodeTooLarge, "the root has more than %d changed files, or their names have more than %d bytes", maxChanged, maxChangedNames)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for name := range before {
		dir := path.Dir(name)
		_, gone := before[dir]
		if gone || replaced[dir] || own(name) || name == Tmp || slices.ContainsFunc(hidden, func(mount string) bool { return under(name, mount) }) {
			continue // it goes with the directory above it, or is not visible
		}
		removed = append(removed, name)
	}
	slices.Sort(changed)
	slices.Sort(removed)
	return changed, removed, nil
}

// Target is a sandbox whose root gets files. agent.Client implements it.
type Target interface {
	Remove(ctx context.Context, path string, recursive bool) error
	TarIn(ctx context.Context, path string, o api.TarInOptions, r io.Reader) (api.TarReport, error)
}

// Restore makes the changes of a root that SaveRoot wrote again, in a sandbox of the same image in which nothing
// runs. owner is the Owner of a TarInOptions.
func Restore(ctx context.Context, sandbox Target, r io.Reader, owner string) error {
	in, err := archive.OpenTar(r, archive.TarOptions{Limits: archive.Limits{Bytes: maxLayer, Entries: maxListed}})
	if err != nil {
		return err
	}
	defer in.Close()
	e, err := in.Next()
	for ; err == nil && e.Kind == archive.Device; e, err = in.Next() {
		rerr := sandbox.Remove(ctx, "/"+e.Path, true)
		if rerr != nil && api.CodeOf(rerr) != api.CodeNotFound {
			return rerr
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	pr, pw := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		err := copyFiles(in, e, pw)
		pw.CloseWithError(err)
		copied <- err
	}()
	_, err = sandbox.TarIn(ctx, "/", api.TarInOptions{Owner: owner}, pr)
	_ = pr.CloseWithError(fs.ErrClosed)
	if cerr := <-copied; cerr != nil && !errors.Is(cerr, fs.ErrClosed) {
		return cerr
	}
	return err
}

// copyFiles writes an entry of a saved root and all after it.
func copyFiles(in *archive.Reader, e archive.Entry, w io.Writer) error {
	out := tar.NewWriter(w)
	for {
		if err := copyEntry(out, e, "", in); err != nil {
			return err
		}
		var err error
		if e, err = in.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write root: %w", err)
	}
	return nil
}
