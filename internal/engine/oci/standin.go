//go:build linux

package oci

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// standInPlace is a directory of the container that files are made in before they are put
// in their places.
const standInPlace = "/dev"

// putStandIns puts the files of /proc that no runtime takes in a bundle into a container that
// was created and not started.
func (c *creation) putStandIns(ctx context.Context) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(c.init.ID.PID) + "/ns/mnt")
	if err != nil {
		return fmt.Errorf("open the container's mounts: %w", err)
	}
	defer ns.Close()
	// The process is the sandbox's still, so the namespace is.
	if err := c.ns.has(c.init.ID.PID); err != nil {
		return err
	}
	files := slices.DeleteFunc(hostrootfs.StandIns(), bindable)
	// The thread ends with this. It is not the first one, whose mounts stand for those of
	// this process.
	thread := pidfd.NewSpawner()
	defer thread.Close()
	return thread.Do(ctx, func() error { return putStandInsIn(ns, files) })
}

// putStandInsIn is for a thread that ends afterwards: it stays in the namespace.
func putStandInsIn(ns *os.File, files []hostrootfs.StandIn) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	return hostrootfs.PutStandIns(standInPlace, files)
}
