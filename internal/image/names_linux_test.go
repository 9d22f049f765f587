package image

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

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

// TestChoosePlatform: of a list of platforms, the variant that most machines run is chosen.
func TestChoosePlatform(t *testing.T) {
	list := func(platforms ...string) (d document) {
		for _, text := range platforms {
			var m v1.Descriptor
			if text != "" {
				p, err := v1.ParsePlatform(text)
				must(t, err)
				m.Platform = p
			}
			d.Manifests = append(d.Manifests, m)
		}
		return d
	}
	for what, c := range map[string]struct {
		document
		want string
		is   int    // which one is chosen
		says string // what the error says when there is none
	}{
		"the plain one":          {document: list("linux/amd64/v3", "linux/amd64", "linux/amd64/v2"), want: "linux/amd64", is: 1},
		"v8 is every arm64":      {document: list("linux/arm64/v9", "linux/arm64/v8"), want: "linux/arm64", is: 1},
		"v7 before others":       {document: list("linux/arm/v6", "linux/arm/v7", "linux/arm/v5"), want: "linux/arm", is: 1},
		"the first of equals":    {document: list("linux/arm/v6", "linux/arm/v5"), want: "linux/arm", is: 0},
		"the variant":            {document: list("linux/arm", "linux/arm/v7", "linux/arm/v6"), want: "linux/arm/v6", is: 2},
		"another system":         {document: list("windows/amd64", "linux/amd64"), want: "linux/amd64", is: 1},
		"the only one":           {document: list(""), want: "linux/amd64", is: 0},
		"no such variant":        {document: list("linux/arm/v6"), want: "linux/arm/v7", says: "is for linux/arm/v6, and linux/arm/v7 is wanted"},
		"several without":        {document: list("", ""), want: "linux/amd64", says: "is for no platform, and linux/amd64 is wanted"},
		"attestations":           {document: list("unknown/unknown"), want: "linux/amd64", says: "is for no platform"},
		"an unknown processor":   {document: list("linux/unknown"), want: "linux/amd64", says: "is for no platform"},
		"an unknown system":      {document: list("unknown/amd64"), want: "linux/amd64", says: "is for no platform"},
		"one of another machine": {document: list("linux/s390x", ""), want: "linux/amd64", says: "is for linux/s390x, and"},
	} {
		t.Run(what, func(t *testing.T) {
			for i := range c.Manifests {
				c.Manifests[i].Size = int64(i)
			}
			want, err := platform(c.want)
			must(t, err)
			got, err := c.choose("app", want)
			if c.says != "" {
				wantError(t, err, api.CodeUnsupported, false, c.says)
				return
			}
			if err != nil || got.Size != int64(c.is) {
				t.Errorf("chose %d, %v, want %d", got.Size, err, c.is)
			}
		})
	}
	many := slices.Repeat([]string{"linux/s390x"}, 12)
	_, err := list(append(many, "linux/riscv64")...).choose("app", v1.Platform{OS: "linux", Architecture: "amd64"})
	if e := wantError(t, err, api.CodeUnsupported, false, strings.Join(many, ", ")); strings.Contains(e.Error(), "riscv64") {
		t.Errorf("more than 12 platforms are named: %v", e)
	}
}
