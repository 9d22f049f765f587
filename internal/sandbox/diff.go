package sandbox

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
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// diffPage is the default size of a page of a diff.
	diffPage = 1000
	// diffTimeout bounds one look at a layer.
	diffTimeout = 5 * time.Minute
	// maxDiffRoot bounds what is read of a root to compare it.
	maxDiffRoot = 64 << 30
)

// Diff returns the changes of a sandbox, computed from the layer that holds them: of its workspace,
// running or not, if that is layered, or of its root while it runs. The processes are paused while
// the root is read. Each page computes the diff again.
func (m *Manager) Diff(ctx context.Context, caller policy.Caller, ref string, o api.DiffOptions) (api.Diff, error) {
	s, err := m.find(caller, policy.VerbDiff, ref)
	if err != nil {
		return api.Diff{}, err
	}
	after, err := base64.RawURLEncoding.DecodeString(o.Cursor)
	if err != nil {
		return api.Diff{}, api.Invalid("cursor", "the cursor does not belong to this list").WithHint("give the next of the page before, or none")
	}
	ctx, cancel := context.WithTimeout(ctx, diffTimeout)
	defer cancel()
	scope := cmp.Or(o.Scope, api.DiffWorkspace)
	var changes []api.Change
	if scope == api.DiffRoot {
		changes, err = m.layers.diffRoot(ctx, s)
	} else {
		changes, err = m.layers.diffWorkspace(ctx, s)
	}
	if err != nil {
		return api.Diff{}, diskError(s, "compared", err)
	}
	return page(count(scope, changes), string(after), cmp.Or(o.Limit, diffPage)), nil
}

func (ls layers) diffWorkspace(ctx context.Context, s *live) ([]api.Change, error) {
	defer s.use()()
	l, err := ls.open(s)
	if err != nil {
		return nil, err
	}
	defer l.lower.Close()
	return l.Diff(ctx, l.lower)
}

// count makes a diff of all changes.
func count(scope api.DiffScope, changes []api.Change) api.Diff {
	d := api.Diff{Scope: scope, Changes: changes}
	for _, c := range changes {
		tally(&d, c)
	}
	return d
}

// tally counts one change.
func tally(d *api.Diff, c api.Change) {
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

// page is what of a sorted diff comes after a path.
func page(d api.Diff, after string, limit int) api.Diff {
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

// diffRoot reads the layer of the root as the engine writes it, without keeping
// its files.
func (ls layers) diffRoot(ctx context.Context, s *live) ([]api.Change, error) {
	s.mu.Lock()
	info, below := s.info, s.image.Path
	s.mu.Unlock()
	if info.ReadOnlyRoot {
		return nil, nil
	}
	tree, err := image.OpenTree(below)
	if err != nil {
		return nil, api.Errorf(api.CodeState, "the image of sandbox %s is not there any more, so there is nothing to compare its root with", s.name).
			WithHint("take a snapshot of the root instead").WithCause(err)
	}
	defer tree.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	type result struct {
		changes []api.Change
		err     error
	}
	read := make(chan result, 1)
	go func() {
		changes, err := compareRoot(ctx, r, tree, hiddenPaths(info))
		_ = r.Close()
		read <- result{changes, err}
	}()
	werr := ls.writeRoot(ctx, s, w)
	_ = w.Close()
	out := <-read
	if werr != nil && !errors.Is(werr, syscall.EPIPE) { // that is about the reader
		return nil, werr
	}
	return out.changes, out.err
}

// writeRoot has the engine write the layer of a root, and the sandbox be as one that
// is paused until it has.
func (ls layers) writeRoot(ctx context.Context, s *live, w io.Writer) error {
	defer s.use()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.lockOps(ctx)
	defer s.ops.Unlock()
	defer s.interruptible(cancel)()
	still, err := ls.m.pauser.quiesce(ctx, s, w)
	if err != nil {
		return err
	}
	return ls.m.pauser.goOn(s, still, nil)
}

// hiddenPaths returns the paths of a root at which Cloche puts something. What is created there,
// and the parent directories, are not changes of the sandbox.
func hiddenPaths(info api.Sandbox) map[string]bool {
	hidden := map[string]bool{".": true}
	targets := []string{info.Workspace.Path, agentTarget, "/proc", "/sys", "/dev", "/tmp"}
	for _, m := range info.Mounts {
		targets = append(targets, m.Target)
	}
	for _, t := range targets {
		for p := strings.TrimPrefix(path.Clean(t), "/"); p != "." && p != ""; p = path.Dir(p) {
			hidden[p] = true
		}
	}
	return hidden
}

// compareRoot compares the tar of a root's layer with the image below it. What it
// reads was made by a sandbox.
func compareRoot(ctx context.Context, r io.Reader, tree *image.Tree, hidden map[string]bool) ([]api.Change, error) {
	a, err := archive.OpenTar(r, archive.TarOptions{Limits: archive.Limits{Bytes: maxDiffRoot}})
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
