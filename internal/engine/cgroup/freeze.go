//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// ErrNoFreezer says that the group has no part in a hierarchy of version 2, whose
// freezer the kernel keeps: no process has to remember it, and what is frozen can be killed.
var ErrNoFreezer = errors.New("there is no cgroup hierarchy of version 2 that the daemon can use")

// freezer is the directory of the group's freezer.
func (g *Group) freezer() (string, bool) {
	dir := g.Unified()
	return dir, dir != "" && unix.Access(filepath.Join(dir, "cgroup.freeze"), unix.W_OK) == nil
}

// Frozen reports whether the group is frozen, or soon will be.
func (g *Group) Frozen() bool {
	dir, ok := g.freezer()
	return ok && readInt(dir, "cgroup.freeze") == 1
}

// Freeze freezes every process and returns when all are frozen. After an error they run as before. The
// error is ErrNoFreezer if the group cannot be frozen.
func (g *Group) Freeze(ctx context.Context) error {
	err := g.freeze(ctx, "1", "frozen 1")
	if err != nil && !errors.Is(err, ErrNoFreezer) {
		err = errors.Join(err, g.Thaw(context.WithoutCancel(ctx)))
	}
	return err
}

// Thaw lets them go on, and returns when they do.
func (g *Group) Thaw(ctx context.Context) error { return g.freeze(ctx, "0", "frozen 0") }

// freeze writes what is wanted and waits: the kernel tells by an event on a file.
func (g *Group) freeze(ctx context.Context, value, want string) error {
	dir, ok := g.freezer()
	if !ok {
		return ErrNoFreezer
	}
	events, err := os.Open(filepath.Join(dir, "cgroup.events"))
	if err != nil {
		return fmt.Errorf("open cgroup events: %w", err)
	}
	defer events.Close()
	if err := pidfd.Write(dir, "cgroup.freeze", value); err != nil {
		return fmt.Errorf("write freezer: %w", err)
	}
	b := make([]byte, 256)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := events.ReadAt(b, 0)
		if n == 0 {
			return fmt.Errorf("read cgroup events: %w", err)
		}
		if strings.Contains(string(b[:n]), want) {
			return nil
		}
		fds := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		// A little at a time: ctx is looked at in between.
		if _, err := unix.Poll(fds, int(10*time.Millisecond/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the freezer: %w", err)
		}
	}
}

// Release has what is frozen go on, without waiting for it.
func (g *Group) Release() {
	if g.Frozen() {
		_ = pidfd.Write(g.Unified(), "cgroup.freeze", "0")
	}
}
