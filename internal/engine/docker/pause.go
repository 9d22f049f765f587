package docker

import (
	"context"
	"time"

	"github.com/moby/moby/client"
)

// Pause implements engine.Pauser: the daemon freezes the container's cgroup. That is
// not cut off half way.
func (i *instance) Pause(ctx context.Context) error {
	return i.drive(ctx, "pause", true, func(ctx context.Context) error {
		_, err := i.d.ContainerPause(ctx, i.rec.Container, client.ContainerPauseOptions{})
		return err
	})
}

// Resume implements engine.Pauser.
func (i *instance) Resume(ctx context.Context) error {
	return i.drive(ctx, "resume", false, func(ctx context.Context) error {
		_, err := i.d.ContainerUnpause(ctx, i.rec.Container, client.ContainerUnpauseOptions{})
		return err
	})
}

// What a daemon says of a container's state follows what it does, by a moment: it
// is believed when it has said the same so many times.
const (
	settles    = 4
	mostTries  = 100
	settleTime = 25 * time.Millisecond
)

// drive makes the container paused or not. What is as it is wanted is no error.
func (i *instance) drive(ctx context.Context, what string, want bool, call func(context.Context) error) error {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	what += " sandbox " + i.rec.ID
	for same, tries := 0, 0; ; tries++ {
		if i.dead() {
			return i.lost(what, nil)
		}
		if err := ctx.Err(); err != nil {
			return i.e.classify(ctx, what, err)
		}
		err := call(whole)
		if err == nil {
			return nil
		}
		running, paused, lerr := i.look(whole)
		switch {
		case lerr == nil && !running:
			return i.lost(what, err)
		case unreachable(err) || lerr != nil && unreachable(lerr) || tries == mostTries:
			return i.e.classify(whole, what, err)
		case lerr != nil || paused != want: // one that is being removed cannot be looked at
			same = 0
		default:
			same++
		}
		if same == settles {
			return nil
		}
		select {
		case <-time.After(settleTime):
		case <-whole.Done():
			return i.e.classify(whole, what, err)
		}
	}
}
