package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/erofstar"
)

// Export writes an image as a tar that is both an OCI layout and an archive of Docker, under a name. Its files
// are one layer. An image on host is refused: most of its files are this machine's.
func (s *Store) Export(ctx context.Context, ref, name string, w io.Writer) error {
	if ref == api.DefaultImage {
		return exportsNoHost(ref)
	}
	r, _, err := s.find(ref)
	if err != nil {
		return err
	}
	if r.OnHost {
		return exportsNoHost(name)
	}
	tree, err := OpenTree(s.oci.at("roots", r.Root))
	if err != nil {
		return err
	}
	defer tree.Close()
	want, err := platform(r.Platform)
	if err != nil {
		return err
	}
	// The names in the archive are digests, so the layer is written down first.
	f, err := s.oci.temp("export-")
	if err != nil {
		return err
	}
	_ = os.Remove(f.Name())
	defer f.Close()
	sum := sha256.New()
	layer := tar.NewWriter(io.MultiWriter(f, sum))
	if err := tree.Pack(ctx, &erofstar.Packer{Tar: layer}, ".", ".", nil); err != nil {
		return err
	}
	if err := layer.Close(); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	e := &exporting{out: tar.NewWriter(w), name: name}
	return e.write(f, "sha256:"+hex.EncodeToString(sum.Sum(nil)), want, r.Config)
}

func exportsNoHost(name string) error {
	return api.Errorf(api.CodeUnsupported, "image %q cannot be exported: it shows this machine's own tools", clip(name)).
		WithHint("build it on an image of a registry")
}

// exporting is one export.
type exporting struct {
	out  *tar.Writer
	name string
}

func (e *exporting) write(layer *os.File, digest string, platform v1.Platform, c api.ImageConfig) error {
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("measure layer: %w", err)
	}
	config, err := configFile(platform, c, []string{digest})
	if err != nil {
		return err
	}
	layers, err := descriptor(types.OCIUncompressedLayer, digest, size)
	if err != nil {
		return err
	}
	about, err := descriptor(types.OCIConfigJSON, digestOf(config), int64(len(config)))
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: about, Layers: []v1.Descriptor{layers}})
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	top, err := descriptor(types.OCIManifestSchema1, digestOf(manifest), int64(len(manifest)))
	if err != nil {
		return err
	}
	ref, err := api.ParseImageRef(e.name)
	if err != nil {
		return err
	}
	called := ref.String()
	top.Platform, top.Annotations = &platform, map[string]string{nameAnnotation: called, "org.opencontainers.image.ref.name": ref.Tag}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{top}})
	if err != nil {
		return fmt.Errorf("encode index: %w", err)
	}
	docker, err := json.Marshal([]map[string]any{{
		"Config": blobPath(digestOf(config)), "RepoTags": []string{called}, "Layers": []string{blobPath(digest)},
	}})
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	for _, part := range []struct {
		name string
		data []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", index}, {"manifest.json", docker},
		{blobPath(digestOf(manifest)), manifest}, {blobPath(digestOf(config)), config},
	} {
		if err := e.file(part.name, int64(len(part.data))); err != nil {
			return err
		}
		if _, err := e.out.Write(part.data); err != nil {
			return fmt.Errorf("write %s: %w", part.name, err)
		}
	}
	if err := e.file(blobPath(digest), size); err != nil {
		return err
	}
	if _, err := io.Copy(e.out, io.NewSectionReader(layer, 0, size)); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	return errors.Join(e.out.Close())
}

func (e *exporting) file(name string, size int64) error {
	if err := e.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, Format: tar.FormatPAX}); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func descriptor(kind types.MediaType, digest string, size int64) (v1.Descriptor, error) {
	h, err := v1.NewHash(digest)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("encode manifest: %w", err)
	}
	return v1.Descriptor{MediaType: kind, Digest: h, Size: size}, nil
}
