// Package changes computes which files of a sandbox differ from its image, and pages of the result.
package changes

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// maxRoot bounds what is read of a root to compare it.
const maxRoot = 64 << 30

// Count makes a diff of all changes.
func Count(scope api.DiffScope, changes []api.Change) api.Diff {
	d := api.Diff{Scope: scope, Changes: changes}
	for _, c := range changes {
		Tally(&d, c)
	}
	return d
}

// Tally counts one change.
func Tally(d *api.Diff, c api.Change) {
	switch c.Kind {
	case api.ChangeAdded:
		d.Added++
		d.Bytes += c.Size
	case api.ChangeChanged:
		d.Changed++
		d.Bytes += c.Size
	case api.ChangeRemoved:
		d.Removed++
	}
}

// Page is what of a sorted diff comes after a path.
func Page(d api.Diff, after string, limit int) api.Diff {
	if after != "" {
		at, found := slices.BinarySearchFunc(d.Changes, after, func(c api.Change, p string) int { return cmp.Compare(workspace.RawPath(c), p) })
		if found {
			at++
		}
		d.Changes = d.Changes[at:]
	}
	if len(d.Changes) > limit {
		d.Changes = d.Changes[:limit]
		d.Next = base64.RawURLEncoding.EncodeToString([]byte(workspace.RawPath(d.Changes[limit-1])))
	}
	if d.Changes == nil {
		d.Changes = []api.Change{}
	}
	return d
}

// Hidden returns the paths of a root at which something is put that is not the sandbox's, with all
// directories above them.
func Hidden(targets ...string) map[string]bool {
	hidden := map[string]bool{".": true}
	for _, t := range targets {
		for p := strings.TrimPrefix(path.Clean(t), "/"); p != "." && p != ""; p = path.Dir(p) {
			hidden[p] = true
		}
	}
	return hidden
}

// Root compares the tar of a root's layer with the image below it, without the directories that are
// hidden. What it reads was made by a sandbox. The changes are sorted by path.
func Root(ctx context.Context, r io.Reader, tree *image.Tree, hidden map[string]bool) ([]api.Change, error) {
	a, err := archive.OpenTar(r, archive.TarOptions{Limits: archive.Limits{Bytes: maxRoot}})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	var changes []api.Change
	// opaque are directories that hide what the image has there; seen is all that the
	// layer has.
	opaque, seen := []string{}, map[string]archive.Kind{}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e, err := a.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		seen[e.Path] = e.Kind
		before, there := tree.Lstat(e.Path)
		if e.Kind == archive.Dir && there && before.Type == api.TypeDir && e.Xattrs["trusted.overlay.opaque"] == "y" {
			opaque = append(opaque, e.Path)
		}
		if c, ok := rootChange(e, before, there); ok && !(hidden[e.Path] && e.Kind == archive.Dir) {
			changes = append(changes, c)
		}
	}
	for len(opaque) > 0 {
		dir := opaque[0]
		opaque = opaque[1:]
		for _, name := range tree.Names(dir) {
			p := path.Join(dir, name)
			before, there := tree.Lstat(p)
			switch kind, again := seen[p]; {
			case !there:
			case again && kind == archive.Dir && before.Type == api.TypeDir:
				opaque = append(opaque, p) // hides as well, without saying so
			case !again:
				c := workspace.NewChange(p, api.ChangeRemoved)
				c.Type, c.OldSize = before.Type, before.Size
				changes = append(changes, c)
			}
		}
	}
	byPath := func(a, b api.Change) int { return cmp.Compare(workspace.RawPath(a), workspace.RawPath(b)) }
	slices.SortFunc(changes, byPath)
	return slices.CompactFunc(changes, func(a, b api.Change) bool { return byPath(a, b) == 0 }), nil
}

// rootChange is what one entry of a root's layer changes, if anything.
func rootChange(e archive.Entry, before image.Stat, there bool) (api.Change, bool) {
	kind := api.ChangeAdded
	switch {
	case e.Whiteout && !there:
		return api.Change{}, false
	case e.Whiteout:
		kind = api.ChangeRemoved
	case there:
		kind = api.ChangeChanged
	}
	c := workspace.NewChange(e.Path, kind)
	switch e.Kind {
	case archive.File, archive.HardLink:
		c.Type, c.Size = api.TypeFile, e.Size
	case archive.Dir:
		c.Type = api.TypeDir
		// It is in the layer as soon as something in it is.
		if there && before.Type == api.TypeDir && before.Mode == e.Mode && before.UID == e.UID && before.GID == e.GID {
			return api.Change{}, false
		}
	case archive.Symlink:
		c.Type = api.TypeSymlink
	default:
		c.Type = api.TypeOther
	}
	if there {
		c.OldSize = before.Size
		if e.Whiteout {
			c.Type = before.Type
		}
	}
	return c, true
}

// ErrNoImage is wrapped by the error of OfRoot when the image is not there.
var ErrNoImage = errors.New("the image is not there")

// OfRoot lists the changes of a root above the image at a path. write writes the layer of the root as a tar, whose files are
// not kept. What Cloche puts at the hidden paths is left out.
func OfRoot(ctx context.Context, below string, hidden []string, write func(io.Writer) error) ([]api.Change, error) {
	tree, err := image.OpenTree(below)
	if err != nil {
		return nil, errors.Join(ErrNoImage, err)
	}
	defer tree.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	type result struct {
		list []api.Change
		err  error
	}
	read := make(chan result, 1)
	go func() {
		list, err := Root(ctx, r, tree, Hidden(hidden...))
		_ = r.Close()
		read <- result{list, err}
	}()
	werr := write(w)
	_ = w.Close()
	out := <-read
	if werr != nil && !errors.Is(werr, syscall.EPIPE) { // that is about the reader
		return nil, werr
	}
	return out.list, out.err
}

// Placed are the paths at which Cloche puts something; agent is the one of the agent's image.
func Placed(info api.Sandbox, agent string) []string {
	targets := []string{info.Workspace.Path, agent, "/proc", "/sys", "/dev", "/tmp"}
	for _, m := range info.Mounts {
		targets = append(targets, m.Target)
	}
	return targets
}
