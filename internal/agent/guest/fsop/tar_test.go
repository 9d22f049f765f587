//go:build linux

package fsop

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/test/tarfile"
)

// FuzzUnpack imports arbitrary archives: nothing is ever outside of the
// directory, and a refused atomic import leaves it empty.
func FuzzUnpack(f *testing.F) {
	for _, m := range [][]tarfile.Member{
		{tarfile.Regular("a", "x"), tarfile.Regular("d/e", "y")},
		{{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, Content: ""}, tarfile.Regular("l/x", "x")},
		{{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../outside"}, Content: ""}, {Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "l"}, Content: ""}, tarfile.Regular("h", "x")},
		{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0}, Content: ""}, tarfile.Regular("d/../../x", "x")},
	} {
		f.Add(tarfile.Pack(f, m...).Bytes(), true)
		f.Add(tarfile.Pack(f, m...).Bytes(), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, atomic bool) {
		dir := t.TempDir()
		target := filepath.Join(dir, "target")
		if err := errors.Join(os.Mkdir(target, 0o700), os.WriteFile(filepath.Join(dir, "outside"), []byte("outside"), 0o600)); err != nil {
			t.Fatal(err)
		}
		d, err := os.Open(target)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		x := &unpacker{
			rules: &pathwalk.Restrictions{}, setMode: pathwalk.SetMode, base: target, options: wire.Tar{Atomic: atomic}, buf: make([]byte, 4096),
			budget: archive.NewBudget(archive.Limits{Bytes: 1 << 20, Entries: 1000}),
		}
		if atomic {
			err = x.atomic(d, bytes.NewReader(data))
		} else {
			x.dir.entries.Top, x.dir.links.Top = d, d
			err = x.all(bytes.NewReader(data))
		}
		x.dir.entries.Close()
		x.dir.links.Close()
		if left, lerr := os.ReadDir(target); atomic && err != nil && (lerr != nil || len(left) != 0) {
			t.Fatalf("%v left %v, %v", err, left, lerr)
		}
		var st unix.Stat_t
		out, oerr := os.ReadFile(filepath.Join(dir, "outside"))
		all, derr := os.ReadDir(dir)
		if serr := unix.Lstat(filepath.Join(dir, "outside"), &st); errors.Join(oerr, derr, serr) != nil || string(out) != "outside" || len(all) != 2 || st.Nlink != 1 || st.Mode&0o777 != 0o600 {
			t.Fatalf("outside: %q, %d names, %d links, %v", out, len(all), st.Nlink, errors.Join(oerr, derr, serr))
		}
	})
}
