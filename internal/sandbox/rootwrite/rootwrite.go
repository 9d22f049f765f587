// Package rootwrite writes the root of a sandbox while the processes of the sandbox are paused.
package rootwrite

import (
	"context"
	"errors"
	"io"

	"github.com/cloche-dev/cloche/internal/engine"
)

// Write is a write of a root that waits until every process is paused. The code that pauses and resumes sandboxes uses
// it as a pauser, so the agent's timers, the record and the recovery after a daemon crash work as in any pause. Its
// methods are called by one goroutine at a time.
type Write struct {
	inst engine.Pauser
	root engine.RootWriter
	w    io.Writer
	ctx  context.Context //nolint:containedctx // of the call that writes
	// begun: WriteRoot was called.
	begun bool
	// proceed gets nil when the root is to be written, or an error when it is not.
	proceed chan error
	// done is closed when WriteRoot has returned err.
	done chan struct{}
	err  error
}

// New returns a write of root to w, which the end of ctx ends.
func New(ctx context.Context, inst engine.Pauser, root engine.RootWriter, w io.Writer) *Write {
	return &Write{inst: inst, root: root, w: w, ctx: ctx, proceed: make(chan error, 1), done: make(chan struct{})}
}

// errNotNow keeps the root from being written.
var errNotNow = errors.New("the sandbox goes on")

// Pause implements engine.Pauser. It returns when every process is paused.
func (p *Write) Pause(context.Context) error {
	reached := make(chan struct{})
	p.begun = true
	go func() { // ends with Finish
		defer close(p.done)
		p.err = p.root.WriteRoot(p.ctx, p.w, func(context.Context) error {
			close(reached)
			return <-p.proceed
		})
	}()
	select {
	case <-reached:
		return nil
	case <-p.done:
		return p.err
	}
}

// Resume implements engine.Pauser. The instance goes on by itself when its root is
// written; it is asked again in case that failed.
func (p *Write) Resume(ctx context.Context) error {
	if p.begun {
		_ = p.Finish(errNotNow) // Finish was called before, or nothing is to be written
	}
	return p.inst.Resume(ctx)
}

// Finish has the root be written if err is nil, unless that is decided already, and waits until it is. It is called after
// Pause has returned nil.
func (p *Write) Finish(err error) error {
	select {
	case p.proceed <- err:
	default:
	}
	<-p.done
	return p.err
}
