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

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// diffPage is a page of a diff where nobody says how large.
	diffPage = 1000
	// diffTimeout bounds one look at a layer.
	diffTimeout = 5 * time.Minute
	// maxDiffRoot bounds what is read of a root to compare it.
	maxDiffRoot = 64 << 30
)

// Diff tells what a sandbox changed, computed from the layer that has it: of its
// workspace, running or not, if that is layered; of its root while it runs, which
// stands still meanwhile. Each page looks anew.
func (m *Manager) Diff(ctx context.Context, caller policy.Caller, ref string, o cloche.DiffOptions) (cloche.Diff, error) {
	s, err := m.find(caller, policy.VerbDiff, ref)
	if err != nil {
		return cloche.Diff{}, err
	}
	after, err := base64.RawURLEncoding.DecodeString(o.Cursor)
	if err != nil {
		return cloche.Diff{}, cloche.Invalid("cursor", "the cursor does not belong to this list").WithHint("give the next of the page before, or none")
	}
	ctx, cancel := context.WithTimeout(ctx, diffTimeout)
	defer cancel()
	scope := cmp.Or(o.Scope, cloche.DiffWorkspace)
	var changes []cloche.Change
	if scope == cloche.DiffRoot {
		changes, err = m.diffRoot(ctx, s)
	} else {
		changes, err = m.diffWorkspace(ctx, s)
	}
	if err != nil {
		return cloche.Diff{}, diskError(s, "compared", err)
	}
	return page(count(scope, changes), string(after), cmp.Or(o.Limit, diffPage)), nil
}

func (m *Manager) diffWorkspace(ctx context.Context, s *live) ([]cloche.Change, error) {
	defer s.use()()
	l, err := m.openLayer(s)
	if err != nil {
		return nil, err
	}
	defer l.lower.Close()
	return l.Diff(ctx, l.lower)
}

// count makes a diff of all changes.
func count(scope cloche.DiffScope, changes []cloche.Change) cloche.Diff {
	d := cloche.Diff{Scope: scope, Changes: changes}
	for _, c := range changes {
		tally(&d, c)
	}
	return d
}

// tally counts one change.
func tally(d *cloche.Diff, c cloche.Change) {
	switch c.Kind {
	case cloche.ChangeAdded:
		d.Added++
		d.Bytes += c.Size
	case cloche.ChangeChanged:
		d.Changed++
		d.Bytes += c.Size
	case cloche.ChangeRemoved:
		d.Removed++
	}
}

// page is what of a sorted diff comes after a path.
func page(d cloche.Diff, after string, limit int) cloche.Diff {
	if after != "" {
		at, found := slices.BinarySearchFunc(d.Changes, after, func(c cloche.Change, p string) int { return cmp.Compare(workspace.RawPath(c), p) })
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
		d.Changes = []cloche.Change{}
	}
	return d
}

// diffRoot reads the layer of the root as the engine writes it, without keeping
// its files.
func (m *Manager) diffRoot(ctx context.Context, s *live) ([]cloche.Change, error) {
	s.mu.Lock()
	info, below := s.info, s.image.Path
	s.mu.Unlock()
	if info.ReadOnlyRoot {
		return nil, nil
	}
	tree, err := image.OpenTree(below)
	if err != nil {
		return nil, cloche.Errorf(cloche.CodeState, "the image of sandbox %s is not there any more, so there is nothing to compare its root with", s.name).
			WithHint("take a snapshot of the root instead").WithCause(err)
	}
	defer tree.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	type result struct {
		changes []cloche.Change
		err     error
	}
	read := make(chan result, 1)
	go func() {
		changes, err := compareRoot(ctx, r, tree, hiddenPaths(info))
		_ = r.Close()
		read <- result{changes, err}
	}()
	werr := m.writeRoot(ctx, s, w)
	_ = w.Close()
	out := <-read
	if werr != nil && !errors.Is(werr, syscall.EPIPE) { // that is about the reader
		return nil, werr
	}
	return out.changes, out.err
}

// writeRoot has the engine write the layer of a root, and the sandbox be as one that
// is paused until it has.
func (m *Manager) writeRoot(ctx context.Context, s *live, w io.Writer) error {
	defer s.use()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ops.Lock()
	defer s.ops.Unlock()
	defer s.interruptible(cancel)()
	still, err := m.standStill(ctx, s, w)
	if err != nil {
		return err
	}
	return m.goOn(s, still, nil)
}

// hiddenPaths are the places of a root at which the house puts something: what is
// made there, and on the way there, is not the sandbox's doing.
func hiddenPaths(info cloche.Sandbox) map[string]bool {
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
func compareRoot(ctx context.Context, r io.Reader, tree *image.Tree, hidden map[string]bool) ([]cloche.Change, error) {
	a, err := archive.OpenTar(r, archive.TarOptions{Limits: archive.Limits{Bytes: maxDiffRoot}})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	var changes []cloche.Change
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
		if e.Kind == archive.Dir && there && before.Type == cloche.TypeDir && e.Xattrs["trusted.overlay.opaque"] == "y" {
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
			case again && kind == archive.Dir && before.Type == cloche.TypeDir:
				opaque = append(opaque, p) // hides as well, without saying so
			case !again:
				c := workspace.NewChange(p, cloche.ChangeRemoved)
				c.Type, c.OldSize = before.Type, before.Size
				changes = append(changes, c)
			}
		}
	}
	byPath := func(a, b cloche.Change) int { return cmp.Compare(workspace.RawPath(a), workspace.RawPath(b)) }
	slices.SortFunc(changes, byPath)
	return slices.CompactFunc(changes, func(a, b cloche.Change) bool { return byPath(a, b) == 0 }), nil
}

// rootChange is what one entry of a root's layer changes, if anything.
func rootChange(e archive.Entry, before image.Stat, there bool) (cloche.Change, bool) {
	kind := cloche.ChangeAdded
	switch {
	case e.Whiteout && !there:
		return cloche.Change{}, false
	case e.Whiteout:
		kind = cloche.ChangeRemoved
	case there:
		kind = cloche.ChangeChanged
	}
	c := workspace.NewChange(e.Path, kind)
	switch e.Kind {
	case archive.File, archive.HardLink:
		c.Type, c.Size = cloche.TypeFile, e.Size
	case archive.Dir:
		c.Type = cloche.TypeDir
		// It is in the layer as soon as something in it is.
		if there && before.Type == cloche.TypeDir && before.Mode == e.Mode && before.UID == e.UID && before.GID == e.GID {
			return cloche.Change{}, false
		}
	case archive.Symlink:
		c.Type = cloche.TypeSymlink
	default:
		c.Type = cloche.TypeOther
	}
	if there {
		c.OldSize = before.Size
		if e.Whiteout {
			c.Type = before.Type
		}
	}
	return c, true
}
