//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/urpc"
)

// WriteRoot implements engine.RootWriter.
func (i *instance) WriteRoot(ctx context.Context, w io.Writer, meanwhile func(context.Context) error) error {
	if i.foreign() {
		return i.foreignError("read the root of")
	}
	var own error // of w or meanwhile, for the caller to have as it is
	err := i.drive(ctx, "read the root of", func(ctx context.Context) (err error) {
		before, err := i.brake.settle(ctx)
		if err != nil {
			return err
		}
		if before != paused {
			if err := i.brake.hold(ctx); err != nil {
				return err
			}
			// Whatever becomes of the caller, it goes on.
			defer func() {
				if rerr := i.brake.release(context.WithoutCancel(ctx)); rerr != nil && !i.sentry.Dead() {
					i.e.log.Error("let a sandbox go on whose root was read", "sandbox", i.rec.ID, "error", rerr)
					err = errors.Join(err, rerr)
				}
			}()
		}
		if meanwhile != nil {
			if own = meanwhile(ctx); own != nil {
				return own
			}
		}
		own, err = i.tarRoot(ctx, w)
		return errors.Join(own, err)
	})
	if own != nil {
		return own
	}
	return err
}

// HoldsFiles implements engine.RootWriter: the sentry reads a file before it writes
// it down, holes included.
func (i *instance) HoldsFiles() bool { return true }

// tarRoot has the sentry write the layer into a pipe, and w get it from there: so
// the sentry writes no more than w takes. The first error is w's.
func (i *instance) tarRoot(ctx context.Context, w io.Writer) (own, err error) {
	r, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe for the root: %w", err)
	}
	defer r.Close()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, r)
		if err != nil {
			_ = r.Close() // the sentry's next write fails
		}
		copied <- err
	}()
	err = i.ctl.callLong(ctx, callTarLayer, &tarLayer{
		ContainerID: i.rec.container(), FilePayload: urpc.FilePayload{Files: []*os.File{theirs}},
	}, nil)
	_ = theirs.Close()
	if err != nil {
		_ = r.Close() // a sentry that has not ended the stream is not waited for
	}
	own = <-copied
	if err != nil && errors.Is(own, os.ErrClosed) {
		own = nil
	}
	if err != nil && own == nil {
		// A sentry that hangs up is most likely dying: then that is what to tell.
		select {
		case <-i.sentry.Done():
		case <-time.After(deathNotice):
		}
	}
	return own, err
}

// deathNotice is how long a death may take to be seen by who has lost a connection.
const deathNotice = 500 * time.Millisecond
