package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TestTree: what an open image has is told without a sandbox.
func TestTree(t *testing.T) {
	s := images(t)
	_, err := s.ImportStream(t.Context(), "a", bytes.NewReader(layerTar(t,
		file{name: "d/", typ: tar.TypeDir, mode: 0o1777, uid: 7}, file{name: "d/f", body: "four", mode: 0o6751, uid: 9},
		file{name: "d/l", typ: tar.TypeSymlink, link: "f"})), ImportOptions{})
	must(t, err)
	root, err := s.Resolve(t.Context(), "a", Need{})
	must(t, err)
	tree, err := OpenTree(root.Image)
	must(t, err)
	for name, want := range map[string]Stat{
		"d":   {Type: api.TypeDir, Mode: 0o1777, UID: 7, GID: 7},
		"d/f": {Type: api.TypeFile, Size: 4, Mode: 0o6751, UID: 9, GID: 9},
		"d/l": {Type: api.TypeSymlink, Mode: 0o777},
	} {
		if got, ok := tree.Lstat(name); !ok || got != want {
			t.Errorf("%s is %+v, %v, want %+v", name, got, ok, want)
		}
	}
	for _, name := range []string{"d/none", "none/f", "d/f/x"} {
		if got, ok := tree.Lstat(name); ok {
			t.Errorf("%s is %+v", name, got)
		}
	}
	for dir, want := range map[string][]string{"d": {"f", "l"}, "d/f": nil, "none": nil} {
		if got := tree.Names(dir); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", dir, got, want)
		}
	}
	must(t, tree.Close())
	if err := tree.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	text := write(t, []byte("text"))
	for _, bad := range []string{text, filepath.Join(text, "none")} {
		if _, err := OpenTree(bad); err == nil {
			t.Errorf("%s was opened", bad)
		}
	}
}

// TestTouch: the time of use of an image is written when it is older than freshen.
func TestTouch(t *testing.T) {
	s := images(t)
	path := write(t, nil)
	if s.Touch(filepath.Join(filepath.Dir(path), "none")) {
		t.Error("a missing image was touched")
	}
	old, young := timeAgo(2), time.Now().Add(-freshen/2).Truncate(time.Second)
	for _, at := range []time.Time{young, old} {
		must(t, os.Chtimes(path, at, at))
		if !s.Touch(path) {
			t.Error("an image was not found")
		}
		if got := timeOf(t, path); got.Equal(at) != at.Equal(young) {
			t.Errorf("used at %v, it says %v", at, got)
		}
	}
}

// TestLookOfWhatIsHere: only images of this machine's platform are found.
func TestLookOfWhatIsHere(t *testing.T) {
	s := images(t)
	img := imported(t, s, "a", "one")
	imported(t, s, "b", "one") // the same image
	other := "linux/s390x"
	_, err := s.ImportStream(t.Context(), "other", bytes.NewReader(layerTar(t, file{name: "x", body: "y"})), ImportOptions{Platform: other})
	must(t, err)
	for ref, want := range map[string][]string{"a": {"a:latest", "b:latest"}, img.Digest: {"a:latest", "b:latest"}, "host": {"host"}, "": nil, "none": nil, "other": nil} {
		if got, all, ok := s.Look(ref); ok != (want != nil) || !slices.Equal(all, want) || ok && got.Name == "" {
			t.Errorf("%q is %+v, %q, %v, want %q", ref, got, all, ok, want)
		}
	}
	for platform, want := range map[string]bool{other: false, img.Platform: true, img.Platform + "/v9": true, img.Platform + "x": false} {
		if got := forThisMachine(platform); got != want {
			t.Errorf("%s: %v", platform, got)
		}
	}
}

// TestPullThatEnds: the error tells whether the caller gave up or its time was over.
func TestPullThatEnds(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	wantError(t, fromContext(canceled, api.ImageRef{}, context.Canceled), api.CodeCanceled, false, "was canceled")
	wantError(t, fromContext(late, api.ImageRef{}, context.DeadlineExceeded), api.CodeTimeout, true, "in the time that was given")
}
