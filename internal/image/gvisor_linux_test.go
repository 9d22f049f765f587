package image

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gerofs "gvisor.dev/gvisor/pkg/erofs"
)

// lookUp walks to name as gVisor's filesystem does.
func lookUp(t *testing.T, img *gerofs.Image, name string) gerofs.Inode {
	t.Helper()
	ino, err := img.Inode(img.RootNid())
	must(t, err)
	for part := range strings.SplitSeq(name, "/") {
		nid, err := ino.Lookup(part)
		if err != nil {
			t.Fatalf("look up %.40q of %.40q: %v", part, name, err)
		}
		ino, err = img.Inode(nid)
		must(t, err)
	}
	return ino
}

// TestGVisorReadsImages holds the images against the very reader that sandboxes
// use: every file must be mappable, which it refuses for inline data.
func TestGVisorReadsImages(t *testing.T) {
	tr, files := sample(t)
	for i, target := range sampleLinks() {
		must(t, tr.symlink(fmt.Sprint("links/", i), target))
	}
	_, raw := encode(t, tr)
	path := filepath.Join(t.TempDir(), "i.erofs")
	must(t, os.WriteFile(path, raw, 0o600))
	f, err := os.Open(path)
	must(t, err)
	img, err := gerofs.OpenImage(f) // checks the checksum too
	must(t, err)
	defer img.Close()

	for name, want := range files {
		ino := lookUp(t, img, name)
		if _, err := ino.DataOffset(); err != nil {
			t.Fatalf("%.40q cannot be mapped: %v", name, err)
		}
		ranges, err := ino.DataRanges()
		must(t, err)
		if !bytes.Equal(ranges[0].Bytes, want) {
			t.Fatalf("%.40q has %d bytes, want %d", name, len(ranges[0].Bytes), len(want))
		}
	}
	if ino := lookUp(t, img, "empty"); ino.Mode() != modeDir|0o1777 {
		t.Errorf("empty has mode %#o", ino.Mode())
	}
	if ino := lookUp(t, img, "owned"); ino.UID() != 100_000 || ino.GID() != 65_536 {
		t.Errorf("owned belongs to %d:%d", ino.UID(), ino.GID())
	}
	for i, want := range sampleLinks() {
		ino := lookUp(t, img, fmt.Sprint("links/", i))
		if got, err := ino.Readlink(); err != nil || got != want {
			t.Errorf("link %d has %d bytes (%v), want %d", i, len(got), err, len(want))
		}
	}
}
