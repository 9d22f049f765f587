package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloche-dev/cloche/api"
)

// TestImportFormats: a format that is given must be the one of the archive, and a root
// filesystem may hold the files of one.
func TestImportFormats(t *testing.T) {
	img, _ := twoLayers(t)
	dir := t.TempDir()
	l, err := ocilayout.Write(dir, empty.Index)
	must(t, err)
	must(t, l.AppendImage(img))
	layout := packTar(t, dir)
	tag, err := name.NewTag("a:1")
	must(t, err)
	var saved bytes.Buffer
	must(t, tarball.Write(tag, img, &saved))
	// What `docker save` writes today is an OCI layout too.
	manifest, err := img.Manifest()
	must(t, err)
	list := savedImage{Config: blobPath(manifest.Config.Digest.String())}
	for _, layer := range manifest.Layers {
		list.Layers = append(list.Layers, blobPath(layer.Digest.String()))
	}
	text, err := json.Marshal([]savedImage{list})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o600))
	both := packTar(t, dir)
	root := layerTar(t, file{name: "x", body: "y"})

	const oci, docker, plain = api.FormatOCIArchive, api.FormatDockerArchive, api.FormatTar
	for what, c := range map[string]struct {
		raw []byte
		// is has the source that an image has by the format that was given; where it
		// has none, other is the format that the error tells.
		is    map[api.ImageFormat]string
		other api.ImageFormat
	}{
		"layout":      {layout, map[api.ImageFormat]string{"": "oci", oci: "oci", plain: "tar"}, oci},
		"docker save": {saved.Bytes(), map[api.ImageFormat]string{"": "docker-archive", docker: "docker-archive", plain: "tar"}, docker},
		"both":        {both, map[api.ImageFormat]string{"": "oci", oci: "oci", docker: "docker-archive", plain: "tar"}, ""},
		"tar":         {root, map[api.ImageFormat]string{"": "tar", plain: "tar"}, plain},
	} {
		for _, format := range []api.ImageFormat{"", oci, docker, plain} {
			t.Run(what+" as "+string(format), func(t *testing.T) {
				s := images(t)
				got, err := s.Import(t.Context(), "x", write(t, c.raw), ImportOptions{Format: format})
				if source, ok := c.is[format]; ok {
					if err != nil || got.Source != source {
						t.Errorf("its source is %q, %v, want %q", got.Source, err, source)
					}
					return
				}
				if e := wantError(t, err, api.CodeInvalid, false, `and it is "`+string(c.other)+`"`); e.Field != "format" {
					t.Errorf("the field is %q", e.Field)
				}
				nothingVisible(t, s)
			})
		}
	}
	_, err = images(t).Import(t.Context(), "x", write(t, root), ImportOptions{Format: "zip"})
	wantError(t, err, api.CodeInvalid, false, "no format", string(oci), string(docker), string(plain))
}

// TestLayersThatAreLinks: an archive of Docker may hold a layer that is there twice as a
// link to the first one.
func TestLayersThatAreLinks(t *testing.T) {
	img := imageOf(t, layerOf(t, file{name: "x", body: "y"}))
	config, err := img.RawConfigFile()
	must(t, err)
	layer := string(layerTar(t, file{name: "x", body: "y"}))
	for what, c := range map[string]struct {
		file
		ok bool
	}{
		"symlink":                {file{typ: tar.TypeSymlink, link: "../first/layer.tar"}, true},
		"hard link":              {file{typ: tar.TypeLink, link: "first/layer.tar"}, true},
		"symlink to nothing":     {file{typ: tar.TypeSymlink, link: "../none"}, false},
		"symlink to a symlink":   {file{typ: tar.TypeSymlink, link: "layer.tar"}, false},
		"symlink that leads out": {file{typ: tar.TypeSymlink, link: "/etc/passwd"}, false},
		"directory":              {file{typ: tar.TypeDir}, false},
	} {
		t.Run(what, func(t *testing.T) {
			link := c.file
			link.name = "second/layer.tar"
			raw := layerTar(t, file{name: "config.json", body: string(config)}, file{name: "first/layer.tar", body: layer}, link,
				file{name: "manifest.json", body: `[{"Config":"config.json","Layers":["second/layer.tar"]}]`})
			s := images(t)
			_, err := s.Import(t.Context(), "a", write(t, raw), ImportOptions{})
			if !c.ok {
				wantError(t, err, api.CodeInvalid, false, "second/layer.tar")
				nothingVisible(t, s)
				return
			}
			must(t, err)
			root, err := s.Resolve(t.Context(), "a", Need{})
			must(t, err)
			if got := contentOf(t, open(t, root.Image)); got["x"] != "y" {
				t.Errorf("got %q", got)
			}
		})
	}
}
