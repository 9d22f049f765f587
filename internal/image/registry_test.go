//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	gremote "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// testRegistry is a registry on the loopback device, with faults.
type testRegistry struct {
	host string
	// fault may answer a request itself and then says so.
	fault func(w http.ResponseWriter, r *http.Request) bool
	// asked lists method and path of what was asked for.
	asked func() []string
	// real is the registry without faults.
	real http.Handler
}

func startRegistry(t testing.TB) *testRegistry {
	t.Helper()
	// No login of this machine belongs into a test.
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	r := &testRegistry{}
	r.real = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	requests := &requestLog{}
	r.asked = requests.all
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		requests.add(q)
		if r.fault != nil && r.fault(w, q) {
			return
		}
		r.real.ServeHTTP(w, q)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// file is an entry of a layer made in a test.
type file struct {
	name string
	typ  byte // 0 is a file
	body string
	link string
	mode int64
	uid  int
	pax  map[string]string
}

func layerTar(t testing.TB, files ...file) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.typ, Linkname: f.link, Mode: f.mode, Uid: f.uid, Gid: f.uid, PAXRecords: f.pax, Format: tar.FormatPAX}
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(f.body))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, f.body[:h.Size])
		must(t, err)
	}
	must(t, w.Close())
	return buf.Bytes()
}

func layerOf(t testing.TB, files ...file) v1.Layer {
	t.Helper()
	raw := layerTar(t, files...)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
	must(t, err)
	return l
}

func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{
		Env: []string{"A=b", "PATH=/bin"}, User: "1001", WorkingDir: "/work", Entrypoint: []string{"git"}, Cmd: []string{"status"},
	}})
	must(t, err)
	img, err = mutate.AppendLayers(img, layers...)
	must(t, err)
	return img
}

func (r *testRegistry) push(t testing.TB, ref string, img v1.Image) string {
	t.Helper()
	parsed, err := name.ParseReference(r.host + "/" + ref)
	must(t, err)
	must(t, gremote.Write(parsed, img))
	d, err := img.Digest()
	must(t, err)
	return d.String()
}

func images(t testing.TB) *Store {
	return openStore(t, filepath.Join(t.TempDir(), "images"))
}
