package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// TestFilesOfBundles: a bundle has regular files, also by links inside it, each as long
// as it may be.
func TestFilesOfBundles(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a/file", "text", 0o644)
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.Symlink("a/file", filepath.Join(dir, "link")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	packed := bytes.NewReader(layerTar(t, file{name: "a/", typ: tar.TypeDir}, file{name: "a/file", body: "text"}, file{name: "fifo", typ: tar.TypeFifo},
		file{name: "b/link", typ: tar.TypeSymlink, link: "../a/file"}, file{name: "link", typ: tar.TypeSymlink, link: "a/file"},
		file{name: "hard", typ: tar.TypeLink, link: "a/file"}, file{name: "out", typ: tar.TypeSymlink, link: "/etc/passwd"}))
	index, err := archive.Index(packed, archive.Limits{})
	must(t, err)
	inTar := newTarBundle(packed, index)
	for what, b := range map[string]bundle{"directory": dirBundle{root}, "tar": inTar} {
		for name, has := range map[string]bool{"a/file": true, "a": false, "fifo": false, "link": false, "none": false} {
			if b.has(name) != has {
				t.Errorf("%s has %s: %v", what, name, !has)
			}
		}
		for name, opens := range map[string]bool{"a/file": true, "./a/file": true, "link": true, "a": false, "fifo": false, "out": false, "none": false} {
			r, size, err := b.open(name)
			if !opens {
				wantError(t, err, api.CodeInvalid, false, fmt.Sprintf("%q", name))
				continue
			}
			must(t, err)
			data, err := io.ReadAll(r)
			must(t, err)
			must(t, r.Close())
			if size != 4 || string(data) != "text" {
				t.Errorf("%s: %s has %d bytes, %q", what, name, size, data)
			}
		}
		if data, err := readBundle(b, "a/file", 4); err != nil || string(data) != "text" {
			t.Errorf("%s: %q, %v", what, data, err)
		}
		_, err := readBundle(b, "a/file", 3)
		wantError(t, err, api.CodeTooLarge, false, "more than 3 bytes")
	}
	for _, name := range []string{"hard", "b/link"} {
		if _, size, err := inTar.open(name); err != nil || size != 4 {
			t.Errorf("%s has %d bytes, %v", name, size, err)
		}
	}
	if _, err := readBundle(growing{}, "x", 10); err == nil || !strings.Contains(err.Error(), "it grew") {
		t.Errorf("a file that grew: %v", err)
	}
}

// growing is a bundle whose files are longer than they were.
type growing struct{}

func (growing) has(string) bool { return true }
func (growing) open(string) (io.ReadCloser, int64, error) {
	return io.NopCloser(strings.NewReader("eleven byte")), 10, nil
}

// nested writes a layout whose image is below that many lists of platforms.
func nested(t *testing.T, img v1.Image, lists int, platform *v1.Platform) (dir string, outermost string) {
	t.Helper()
	dir = t.TempDir()
	l, err := ocilayout.Write(dir, empty.Index)
	must(t, err)
	must(t, l.AppendImage(img))
	digest, err := img.Digest()
	must(t, err)
	size, err := img.Size()
	must(t, err)
	next := v1.Descriptor{MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: digest, Size: size, Platform: platform}
	for range lists {
		body, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: "application/vnd.oci.image.index.v1+json", Manifests: []v1.Descriptor{next}})
		must(t, err)
		next.Digest, _, err = v1.SHA256(bytes.NewReader(body))
		must(t, err)
		next.Size, next.MediaType, next.Platform = int64(len(body)), "application/vnd.oci.image.index.v1+json", nil
		put(t, dir, "blobs/sha256/"+next.Digest.Hex, string(body), 0o644)
		outermost = next.Digest.String()
	}
	body, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{next}})
	must(t, err)
	put(t, dir, "index.json", string(body), 0o644)
	return dir, outermost
}

// TestLayoutsOfLists: an image may stand below three lists of platforms; the digest of
// the outermost is noted.
func TestLayoutsOfLists(t *testing.T) {
	img, _ := twoLayers(t)
	digest, err := img.Digest()
	must(t, err)
	for _, lists := range []int{0, 1, 3} {
		dir, outermost := nested(t, img, lists, nil)
		got, err := images(t).Import(t.Context(), "app", dir, ImportOptions{})
		must(t, err)
		if got.Digest != digest.String() || got.IndexDigest != outermost {
			t.Errorf("below %d lists it is %s of %q, want %s of %q", lists, got.Digest, got.IndexDigest, digest, outermost)
		}
	}
	s := images(t)
	dir, _ := nested(t, img, 4, nil)
	_, err = s.Import(t.Context(), "app", dir, ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "leads to lists only")
	nothingVisible(t, s)

	// Without a digest there is nothing to look for.
	put(t, dir, "index.json", `{"schemaVersion":2,"manifests":[{"size":1}]}`, 0o644)
	_, err = s.Import(t.Context(), "app", dir, ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "its index names the digest")
	put(t, dir, "index.json", `{"schemaVersion":2,"manifests":[]}`, 0o644)
	_, err = s.Import(t.Context(), "app", dir, ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "none is chosen")
}

// TestLayoutsOfSeveralPlatforms: of several images that say their platforms, the one for
// this machine is imported; of several that do not, none.
func TestLayoutsOfSeveralPlatforms(t *testing.T) {
	img, _ := twoLayers(t)
	dir := t.TempDir()
	l, err := ocilayout.Write(dir, empty.Index)
	must(t, err)
	want, err := platform("")
	must(t, err)
	must(t, l.AppendImage(img, ocilayout.WithPlatform(want)))
	must(t, l.AppendImage(simple(t), ocilayout.WithPlatform(v1.Platform{OS: "linux", Architecture: "s390x"})))
	got, err := images(t).Import(t.Context(), "app", dir, ImportOptions{})
	digest, _ := img.Digest()
	if err != nil || got.Digest != digest.String() {
		t.Errorf("imported %s, %v", got.Digest, err)
	}
	_, err = images(t).Import(t.Context(), "app", dir, ImportOptions{Platform: "linux/riscv64"})
	wantError(t, err, api.CodeUnsupported, false, "linux/s390x", "linux/riscv64")
	_, err = images(t).Import(t.Context(), "app", dir, ImportOptions{Ref: "none:1"})
	wantError(t, err, api.CodeInvalid, false, `"none:1"`)

	// An image that is alone is for what its configuration says, whatever the list says.
	wrong, _ := nested(t, img, 0, &v1.Platform{OS: "linux", Architecture: "s390x"})
	if _, err := images(t).Import(t.Context(), "app", wrong, ImportOptions{}); err != nil {
		t.Error(err)
	}
}

// TestSavedImagesAreBounded: an archive of Docker has no more layers than an image may
// have, and its file list names what it has.
func TestSavedImagesAreBounded(t *testing.T) {
	saved := func(layers int) string {
		list, err := json.Marshal([]savedImage{{Config: "config.json", Layers: make([]string, layers)}})
		must(t, err)
		return write(t, layerTar(t, file{name: "manifest.json", body: string(list)}, file{name: "config.json", body: "{}"}))
	}
	_, err := images(t).Import(t.Context(), "app", saved(maxLayers+1), ImportOptions{})
	wantError(t, err, api.CodeTooLarge, false, "more than 512 layers")
	_, err = images(t).Import(t.Context(), "app", saved(maxLayers), ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "platform")
}

// TestImportedStreamsAreBounded: a stream may have as many bytes as the limits say, and
// leaves nothing behind where it has more.
func TestImportedStreamsAreBounded(t *testing.T) {
	raw := layerTar(t, file{name: "x", body: "y"})
	for most, fits := range map[int]bool{len(raw): true, len(raw) - 1: false} {
		s := images(t)
		im, err := s.newImport("app", ImportOptions{Limits: archive.Limits{Bytes: int64(most)}})
		must(t, err)
		f, err := im.spool(t.Context(), bytes.NewReader(gzipped(t, raw)))
		if !fits {
			wantError(t, err, api.CodeTooLarge, false, fmt.Sprintf("more than %d bytes", most))
			nothingVisible(t, s)
			continue
		}
		must(t, err)
		if info, err := f.Stat(); err != nil || info.Size() != int64(len(raw)) {
			t.Errorf("kept are %v, %v", info, err)
		}
		if left, _ := os.ReadDir(s.oci.at("temp")); len(left) != 0 {
			t.Errorf("it has a name: %v", left)
		}
		f.Close()
	}
	torn := gzipped(t, []byte(noiseOf(3)))
	s := images(t)
	_, err := s.ImportStream(t.Context(), "app", bytes.NewReader(torn[:len(torn)/2]), ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "what is compressed cannot be read")
	nothingVisible(t, s)
}

// TestSameReferences: a reference chooses an image by any form of its name.
func TestSameReferences(t *testing.T) {
	for pair, same := range map[[2]string]bool{
		{"app:1", "docker.io/library/app:1"}: true, {"app", "app:latest"}: true, {"1", "1"}: true, {"Not", "Not"}: true,
		{"app:1", "app:2"}: false, {"Not", "Nor"}: false, {"Not", "app"}: false, {"app", "Not"}: false,
	} {
		if sameRef(pair[0], pair[1]) != same {
			t.Errorf("%q: %v", pair, !same)
		}
	}
}
