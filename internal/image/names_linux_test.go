package image

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// imported imports an image that has one file with the given text.
func imported(t *testing.T, s *Store, name, text string) api.Image {
	t.Helper()
	img, err := s.ImportStream(t.Context(), name, bytes.NewReader(layerTar(t, file{name: "x", body: text})), ImportOptions{})
	must(t, err)
	return img
}

// TestImageWithoutAName: an image whose name was given to another image is called by its
// digest.
func TestImageWithoutAName(t *testing.T) {
	s := images(t)
	first, second := imported(t, s, "a", "one"), imported(t, s, "a", "two")
	for digest, want := range map[string]string{first.Digest: first.Digest, second.Digest: "a:latest"} {
		img, err := s.Inspect(digest)
		if err != nil || img.Name != want {
			t.Errorf("%s is called %q, %v, want %q", digest, img.Name, err, want)
		}
		if root, err := s.Resolve(t.Context(), digest, Need{}); err != nil || !strings.Contains(root.MissingHint, want) {
			t.Errorf("the hint of %s is %q, %v", digest, root.MissingHint, err)
		}
	}
	pruned, err := s.Prune(t.Context(), PruneOptions{DryRun: true})
	must(t, err)
	var names []string
	for _, img := range pruned.Removed {
		names = append(names, img.Name)
	}
	slices.Sort(names)
	if want := []string{"a:latest", first.Digest}; !slices.Equal(names, want) {
		t.Errorf("a prune would remove %q, want %q", names, want)
	}
}

// TestDamagedNames: with a table of names that cannot be read, no reference leads to an
// image, not even a digest.
func TestDamagedNames(t *testing.T) {
	s := images(t)
	img := imported(t, s, "a", "one")
	must(t, os.WriteFile(s.oci.at(namesFile), []byte("{"), 0o600))
	s = openStore(t, s.dir)
	for _, ref := range []string{"a", img.Digest, "a@" + img.Digest} {
		if _, err := s.Resolve(t.Context(), ref, Need{}); err == nil || !strings.Contains(err.Error(), namesFile) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
