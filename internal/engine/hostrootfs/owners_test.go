//go:build linux

package hostrootfs

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// TestCheckOwners on a filesystem that has idmapped mounts, and on one that has none.
func TestCheckOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: no other user's sandboxes have ids of their own")
	}
	ids := IDs{UID: freeBase, GID: freeBase, Size: rangeSize}
	base := t.TempDir()
	for _, dir := range []string{"memory", "lower", "upper", "home"} {
		if err := os.Mkdir(base+"/"+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(source, at, kind, options string) {
		if err := unix.Mount(source, base+"/"+at, kind, 0, options); err != nil {
			t.Skipf("needs mounts of %s: %v", kind, err)
		}
		t.Cleanup(func() { _ = unix.Unmount(base+"/"+at, unix.MNT_DETACH) })
	}
	mount("none", "memory", "tmpfs", "size=1m")
	mount("none", "upper", "tmpfs", "size=1m")
	for _, dir := range []string{"/upper/files", "/upper/work"} {
		if err := os.Mkdir(base+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mount("none", "home", "overlay", "lowerdir="+base+"/lower,upperdir="+base+"/upper/files,workdir="+base+"/upper/work")
	for _, kernel := range []bool{false, true} {
		if p := (&Images{dir: base + "/memory/roots", kernel: kernel}).CheckOwners(ids); p != nil {
			t.Errorf("on tmpfs: %+v", p)
		}
		im := &Images{dir: base + "/home/roots", kernel: kernel}
		p := im.CheckOwners(ids)
		if p == nil || !strings.Contains(p.What, "overlayfs") || !strings.Contains(p.What, "idmapped mounts") || !strings.Contains(p.Mend, "a volume") {
			t.Errorf("on an overlay: %+v", p)
		}
		if p := im.CheckOwners(IDs{Size: 1}); p != nil {
			t.Errorf("with one user: %+v", p)
		}
		if err := im.OwnersError(unix.EINVAL); !errors.Is(err, api.ErrUnsupported) || !strings.Contains(err.Error(), "overlayfs") {
			t.Error(err)
		}
	}
}
