package image

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cloche-dev/cloche/api"
)

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
		says string // what the error says when no platform fits
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

// TestManifestsThatAreRefused: a manifest may list as much as the bounds say, of
// platforms or of layers.
func TestManifestsThatAreRefused(t *testing.T) {
	one := v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}}
	list := func(n int) []v1.Descriptor { return slices.Repeat([]v1.Descriptor{one}, n) }
	for what, c := range map[string]struct {
		document
		code  api.Code
		words string
	}{
		"many platforms":     {document: document{SchemaVersion: 2, Manifests: list(maxPlatforms)}},
		"many layers":        {document: document{SchemaVersion: 2, Layers: list(maxLayers)}},
		"too many platforms": {document{SchemaVersion: 2, Manifests: list(maxPlatforms + 1)}, api.CodeTooLarge, "lists more than"},
		"too many layers":    {document{SchemaVersion: 2, Layers: list(maxLayers + 1)}, api.CodeTooLarge, "lists more than"},
		"both":               {document{SchemaVersion: 2, Manifests: list(1), Layers: list(1)}, api.CodeInvalid, "a list and an image at once"},
		"of 2015":            {document{SchemaVersion: 1}, api.CodeUnsupported, "the form of 2015"},
	} {
		t.Run(what, func(t *testing.T) {
			c.Config = one
			body, err := json.Marshal(c.document)
			must(t, err)
			got, err := parseManifest("app", body)
			if c.code != "" {
				wantError(t, err, c.code, false, c.words)
			} else if err != nil || len(got.Manifests) != len(c.Manifests) || len(got.Layers) != len(c.Layers) {
				t.Errorf("%d platforms, %d layers, %v", len(got.Manifests), len(got.Layers), err)
			}
		})
	}
}

// TestLayersThatAreRefused: a manifest names layers of forms that can be read, with
// digests and sizes that may be.
func TestLayersThatAreRefused(t *testing.T) {
	good := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}
	for what, c := range map[string]struct {
		config, layer v1.Descriptor
		code          api.Code
		words         string
	}{
		"fits":              {config: v1.Descriptor{Digest: good, Size: maxConfigFile}, layer: v1.Descriptor{MediaType: types.OCILayer, Digest: good}},
		"small":             {config: v1.Descriptor{Digest: good, Size: 1}, layer: v1.Descriptor{MediaType: types.OCILayerZStd, Digest: good, Size: 1}},
		"no configuration":  {config: v1.Descriptor{Size: 1}, code: api.CodeInvalid, words: "no configuration"},
		"an empty one":      {config: v1.Descriptor{Digest: good}, code: api.CodeInvalid, words: "no configuration"},
		"a large one":       {config: v1.Descriptor{Digest: good, Size: maxConfigFile + 1}, code: api.CodeInvalid, words: "no configuration"},
		"kept elsewhere":    {layer: v1.Descriptor{MediaType: types.DockerForeignLayer, Digest: good}, code: api.CodeUnsupported, words: "kept elsewhere"},
		"another form":      {layer: v1.Descriptor{MediaType: "text/plain", Digest: good}, code: api.CodeUnsupported, words: `"text/plain"`},
		"without a digest":  {layer: v1.Descriptor{MediaType: types.OCILayer}, code: api.CodeInvalid, words: "names a layer"},
		"of negative bytes": {layer: v1.Descriptor{MediaType: types.OCILayer, Digest: good, Size: -1}, code: api.CodeInvalid, words: "-1 bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			d := document{Config: c.config, Layers: []v1.Descriptor{c.layer}}
			if c.layer.MediaType == "" {
				d.Layers = nil
			} else if d.Config.Size == 0 {
				d.Config = v1.Descriptor{Digest: good, Size: 1}
			}
			got, err := d.checkLayers("app")
			if c.code != "" {
				wantError(t, err, c.code, false, c.words)
			} else if err != nil || len(got) != 1 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
