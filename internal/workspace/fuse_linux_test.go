package workspace_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/workspace"
)

// unmapped mounts a filesystem that maps no owners.
func unmapped(t *testing.T) string {
	t.Helper()
	below, at := tempDir(t), tempDir(t)
	must(t, os.Chmod(below, 0o755))
	root, err := fs.NewLoopbackRoot(below)
	must(t, err)
	server, err := fs.Mount(at, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: true, DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV},
	})
	if err != nil {
		t.Skip("needs to mount FUSE: ", err)
	}
	t.Cleanup(func() { must(t, server.Unmount()) })
	return at
}

// TestClosed: a directory to read is said to be closed where its filesystem lets it be, and
// what is found in one that is not can be covered.
func TestClosed(t *testing.T) {
	needRoot(t)
	open, closed := filepath.Join(unmapped(t), "d"), filepath.Join(tempDir(t), "d")
	closer := &workspace.Closer{}
	for _, dir := range []string{open, closed} {
		must(t, os.Mkdir(dir, 0o755))
		listenOn(t, dir, "s", unix.SOCK_STREAM)
	}
	for _, c := range []struct {
		dir      string
		closing  workspace.Closing
		readOnly bool
		want     bool
	}{
		{open, workspace.CloseForeign, true, false},
		{open, workspace.CloseAll, true, false},
		{open, workspace.CloseAll, false, false},
		{closed, workspace.CloseForeign, true, true},
		{closed, workspace.CloseAll, true, true},
		{closed, workspace.CloseForeign, false, false},
		{closed, workspace.CloseAll, false, false},
		{closed, workspace.CloseNone, true, false},
	} {
		d, err := workspace.OpenDir(c.dir)
		must(t, err)
		d.CloseSockets(c.closing, closer)
		s, err := d.Stage(tempDir(t), c.readOnly)
		must(t, err)
		if s.Closed != c.want {
			t.Errorf("%+v: closed is %v", c, s.Closed)
		}
		if found, err := s.Sockets(9); err != nil || !slices.Equal(found, []string{"s"}) {
			t.Errorf("%+v: found %q, %v", c, found, err)
		}
		must(t, s.Close())
		must(t, d.Close())
	}
}

// TestClosedManaged: where an engine mounts what is staged as it is, Cloche's own
// directories to read are closed like others.
func TestClosedManaged(t *testing.T) {
	needRoot(t)
	for _, closing := range []workspace.Closing{workspace.CloseForeign, workspace.CloseAll} {
		d, err := workspace.Private(filepath.Join(tempDir(t), "workspace"))
		must(t, err)
		listenOn(t, d.Path(), "s", unix.SOCK_STREAM)
		d.CloseSockets(closing, &workspace.Closer{})
		s, err := d.Stage(tempDir(t), true)
		must(t, err)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: s.Path + "/s"})
		_ = unix.Close(fd)
		if refused := err != nil; !s.Closed || refused != (closing == workspace.CloseAll) {
			t.Errorf("%v: closed is %v, and a connect says %v", closing, s.Closed, err)
		}
		must(t, s.Close())
		must(t, d.Close())
	}
}
