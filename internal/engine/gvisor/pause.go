//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Pause implements engine.Pauser.
func (i *instance) Pause(ctx context.Context) error {
	if i.foreign() {
		return i.foreignError("pause")
	}
	return i.drive(ctx, "pause", i.brake.hold)
}

// Resume implements engine.Pauser.
func (i *instance) Resume(ctx context.Context) error {
	if i.foreign() {
		return i.foreignError("resume")
	}
	return i.drive(ctx, "resume", i.brake.release)
}

func (i *instance) drive(ctx context.Context, what string, do func(context.Context) error) error {
	return i.Drive(ctx, what, i.sentry.Dead, do, i.sentry.Done(), i.ending)
}

// foreign reports whether the sentry is another version of gVisor than this
// build's, or one that cannot be told. Its control server may know other calls.
func (i *instance) foreign() bool { return i.rec.GVisor != i.e.version }

func (i *instance) foreignError(what string) error {
	return api.Errorf(api.CodeUnsupported, "%s sandbox %s: it was started by another version of cloche", what, i.rec.ID).
		WithHint("it can be used and removed; to have all of it, make it again")
}

// markFile says in the plan's directory how far a pause by the sentry has come.
const markFile = "paused"

// lineFeeds are the beginning of no message that an agent knows.
const lineFeeds = "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"

// phase is the content of the mark. Without a mark, nothing is paused.
type phase string

const (
	running  phase = ""
	pausing  phase = "pausing"
	paused   phase = "paused"
	resuming phase = "resuming"
)

// sentryBrake pauses an instance: it stops the tasks in the sentry's
// kernel. The freezer of a cgroup would interrupt the system call in which each
// process of the sandbox waits for the sentry; after two such interruptions the
// sentry takes that for its death and kills the process when next it runs.
//
// The sentry counts its pauses, does not tell how many there are, and dies when
// there is one resume too many. So it must not be asked twice, and each call is
// noted before it is made. A note of a call that may or may not have been made,
// because a daemon died, is cleared up by asking the agent.
type sentryBrake struct {
	i    *instance
	mark string
}

// held reports whether it is paused, or soon will be.
func (b *sentryBrake) held() bool { return b.phase() != running }

func (b *sentryBrake) phase() phase {
	text, err := os.ReadFile(b.mark)
	if err != nil {
		return running
	}
	return phase(strings.TrimSpace(string(text)))
}

// note replaces the mark by one write: there is no moment in which a sandbox that
// is paused has none.
func (b *sentryBrake) note(p phase) error {
	if p == running {
		err := os.Remove(b.mark)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	f, err := os.OpenFile(b.mark, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("note pause: %w", err)
	}
	_, err = fmt.Fprintf(f, "%-8s\n", p) // all words fit
	return errors.Join(err, f.Close())
}

// call makes one of the two calls. It is not given up when the caller is: a
// call that is under way could be overtaken by the one that takes it back.
func (b *sentryBrake) call(ctx context.Context, method string) error {
	return b.i.ctl.call(context.WithoutCancel(ctx), method, nil, nil)
}

// hold returns when all tasks are paused; after an error they run on.
func (b *sentryBrake) hold(ctx context.Context) error {
	now, err := b.settle(ctx)
	if err != nil || now == paused {
		return err
	}
	if err := b.note(pausing); err != nil {
		return err
	}
	if err := b.call(ctx, callPause); err != nil {
		if back := b.call(ctx, callResume); back != nil {
			return errors.Join(err, back)
		}
		return errors.Join(err, b.note(running))
	}
	return b.note(paused)
}

// release lets it go on.
func (b *sentryBrake) release(ctx context.Context) error {
	now, err := b.settle(ctx)
	if err != nil || now == running {
		return err
	}
	if err := b.note(resuming); err != nil {
		return err
	}
	if err := b.call(ctx, callResume); err != nil {
		return err
	}
	return b.note(running)
}

// settleTimeout is how long an agent that is not paused may take to hang up, and
// settleInterval the time between two tries to make it.
const (
	settleTimeout  = 3 * time.Second
	settleInterval = 100 * time.Millisecond
)

// settle finds out whether the sentry is paused and notes it. An agent that is
// not hangs up on who begins with line feeds. They are repeated, because the
// sentry may leave the first where they are until there are more.
func (b *sentryBrake) settle(ctx context.Context) (phase, error) {
	now := b.phase()
	if now == running || now == paused {
		return now, nil
	}
	conn, err := b.i.forward(ctx)
	if err != nil {
		return now, err
	}
	defer conn.Close()
	now = paused
	for end := time.Now().Add(settleTimeout); now == paused && time.Now().Before(end); {
		if ctx.Err() != nil {
			return now, ctx.Err()
		}
		_ = conn.SetDeadline(time.Now().Add(settleInterval))
		_, _ = io.WriteString(conn, lineFeeds) // who hung up is seen by the read
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			now = running
		}
	}
	return now, b.note(now)
}
