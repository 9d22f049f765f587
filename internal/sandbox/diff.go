package sandbox

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/changes"
)

const (
	// diffPage is the default size of a page of a diff.
	diffPage = 1000
	// diffTimeout bounds one look at a layer.
	diffTimeout = 5 * time.Minute
)

// Diff returns the changes of a sandbox, computed from the layer that holds them: of its workspace,
// running or not, if that is layered, or of its root while it runs. The processes are paused while
// the root is read. Each page computes the diff again.
func (m *Manager) Diff(ctx context.Context, caller policy.Caller, ref string, o api.DiffOptions) (api.Diff, error) {
	s, err := m.waker.find(ctx, caller, policy.VerbDiff, ref)
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
	var list []api.Change
	if scope == api.DiffRoot {
		list, err = m.layers.diffRoot(ctx, s)
	} else {
		list, err = m.layers.diffWorkspace(ctx, s)
	}
	if err != nil {
		return api.Diff{}, diskError(s, "compared", err)
	}
	return changes.Page(changes.Count(scope, list), string(after), cmp.Or(o.Limit, diffPage)), nil
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

// diffRoot reads the layer of the root as the engine writes it, without keeping its files.
func (ls layers) diffRoot(ctx context.Context, s *live) ([]api.Change, error) {
	s.mu.Lock()
	info, below := s.info, s.image.Path
	s.mu.Unlock()
	if info.ReadOnlyRoot {
		return nil, nil
	}
	list, err := changes.OfRoot(ctx, below, changes.Placed(info, agentTarget), func(w io.Writer) error { return ls.writeRoot(ctx, s, w) })
	if errors.Is(err, changes.ErrNoImage) {
		return nil, api.Errorf(api.CodeState, "the image of sandbox %s is not there any more, so there is nothing to compare its root with", s.name).
			WithHint("take a snapshot of the root instead").WithCause(err)
	}
	return list, err
}

// writeRoot has the engine write the layer of a root, and the sandbox be as one that is paused until it has.
func (ls layers) writeRoot(ctx context.Context, s *live, w io.Writer) error {
	defer s.use()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.lockOps(ctx)
	defer s.ops.Unlock()
	defer s.interruptible(cancel)()
	write, err := ls.m.pauser.quiesce(ctx, s, w)
	if err != nil {
		return err
	}
	return ls.m.pauser.goOn(ctx, s, write, nil)
}
