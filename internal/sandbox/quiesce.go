package sandbox

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/sandbox/rootwrite"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/snapshot"
)

// quiesce pauses the processes of a running sandbox, so that its root can be written to w. The
// caller holds s.ops and calls goOn.
func (pr pauser) quiesce(ctx context.Context, s *live, w io.Writer) (*rootwrite.Write, error) {
	s.mu.Lock()
	info, inst := s.info, s.inst
	s.mu.Unlock()
	switch info.State {
	case api.StateRunning:
	case api.StateStopped, api.StateLost:
		return nil, snapshot.RootGone(info)
	default:
		return nil, stage.NotRunning(info)
	}
	root, ok := inst.(engine.RootWriter)
	pauser, also := inst.(engine.Pauser)
	if !ok || !also {
		return nil, api.Errorf(api.CodeUnsupported, "engine %s cannot show what was changed in a root", info.Engine)
	}
	if root.HoldsFiles() {
		if err := pr.checkRootFits(ctx, s, info); err != nil {
			return nil, err
		}
	}
	write := rootwrite.New(ctx, pauser, root, w)
	return write, pr.pauseForNow(ctx, s, write)
}

// rootShare is the part of a sandbox's memory that one file of its root may have:
// gVisor holds one at a time while it writes the root, and another that it has not
// let go of yet.
const rootShare = 2

// checkRootFits refuses what the sandbox would die of. What runs inside can still
// bring that about, to itself alone.
func (pr pauser) checkRootFits(ctx context.Context, s *live, info api.Sandbox) error {
	most := info.Limits.MemoryBytes
	if most == 0 {
		most = hostfile.Memory()
	}
	if most == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := pr.m.agentOf(ctx, s)
	if err != nil {
		return err
	}
	files, err := client.LargeFiles(ctx, "/", most/rootShare)
	if errors.Is(err, api.ErrUnsupported) || errors.Is(err, api.ErrInvalid) {
		return nil // an older agent cannot tell
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if s.ofImage(f) {
			continue
		}
		return api.Errorf(api.CodeState, "the root of sandbox %s cannot be read: its file %.200q has %d bytes, holes included, which takes more memory than it has", info.Name, f.Path, f.Size).
			WithHint("move it to the workspace or remove it; a snapshot of the workspace alone needs no memory")
	}
	return nil
}

// ofImage reports whether a file is one of the image, which is not written.
func (s *live) ofImage(f agent.LargeFile) bool {
	s.mu.Lock()
	below := s.image.Path
	s.mu.Unlock()
	tree, err := image.OpenTree(below)
	if err != nil {
		return false
	}
	defer tree.Close()
	st, there := tree.Lstat(strings.TrimPrefix(f.Path, "/"))
	return there && st.Size == f.Size
}

// pauseForNow pauses a sandbox that a next daemon would have to resume. The caller
// holds s.ops and calls resumeNow.
func (pr pauser) pauseForNow(ctx context.Context, s *live, p engine.Pauser) error {
	s.stand(true)
	err := pr.pause(context.WithoutCancel(ctx), s, p)
	if err != nil {
		s.stand(false)
	}
	return err
}

// resumeNow takes back pauseForNow. It goes on when ctx ends; what fails is tried again
// in the background.
func (pr pauser) resumeNow(ctx context.Context, s *live, p engine.Pauser) error {
	s.stand(false)
	err := pr.resume(context.WithoutCancel(ctx), s, p)
	if err != nil {
		pr.resumeLater(s, p)
	}
	return err
}

func (s *live) stand(still bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiesced = still
}

// goOn lets the root be written, unless something has gone wrong meanwhile, and the
// sandbox go on. The caller holds s.ops.
func (pr pauser) goOn(ctx context.Context, s *live, write *rootwrite.Write, err error) error {
	werr := write.Finish(err)
	if rerr := pr.resumeNow(ctx, s, write); rerr != nil {
		pr.m.log.Error("resume after the root was written", "sandbox", s.id, "error", rerr)
		if werr == nil {
			return rerr
		}
	}
	return werr
}
