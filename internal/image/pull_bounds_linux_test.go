package image

import (
	"archive/tar"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// TestPullIsBoundedBeforeItBegins: a manifest that promises too much has none of
// its layers fetched.
func TestPullIsBoundedBeforeItBegins(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	for what, c := range map[string]struct {
		most  int64
		sizes int64 // what the manifest says of each layer; 0 is the truth
		words string
	}{
		"the operator's bound": {most: 1000, words: "all that images may occupy here"},
		"more than any disk":   {sizes: 1 << 62, words: "its layers have more than"},
	} {
		t.Run(what, func(t *testing.T) {
			r.fault = func(w http.ResponseWriter, q *http.Request) bool {
				if c.sizes == 0 || q.Method != http.MethodGet || !strings.Contains(q.URL.Path, "/manifests/") {
					return false
				}
				m, err := simple(t).Manifest()
				must(t, err)
				m = m.DeepCopy()
				// Several, of which the sum would wrap around.
				l := m.Layers[0]
				l.Size = c.sizes
				m.Layers = []v1.Descriptor{l, l, l}
				w.Header().Set("Content-Type", string(m.MediaType))
				must(t, json.NewEncoder(w).Encode(m))
				return true
			}
			s := images(t)
			before := len(r.asked())
			_, err := s.Pull(t.Context(), r.host+"/app:1", PullOptions{MaxBytes: c.most})
			if e := wantError(t, err, api.CodeTooLarge, false, c.words); e.Hint == "" {
				t.Error("no hint")
			}
			for _, asked := range r.asked()[before:] {
				if strings.Contains(asked, "/blobs/") {
					t.Errorf("asked for %s", asked)
				}
			}
			nothingVisible(t, s)
		})
	}
}

// TestEnvironmentThatNothingStartsWith is refused when the image comes, not by
// every program.
func TestEnvironmentThatNothingStartsWith(t *testing.T) {
	r := startRegistry(t)
	long := strings.Repeat("x", maxVarBytes)
	var many []string
	for range 20 {
		many = append(many, "B="+long[:maxVarBytes/2])
	}
	for what, c := range map[string]struct {
		env []string
		ok  bool
	}{
		"fits":      {env: []string{"A=" + long[:maxVarBytes-3]}, ok: true},
		"one long":  {env: []string{"PATH=/bin", "A=" + long}},
		"many long": {env: many},
	} {
		t.Run(what, func(t *testing.T) {
			img, err := mutate.Config(simple(t), v1.Config{Env: c.env})
			must(t, err)
			r.push(t, "env:1", img)
			s := images(t)
			_, err = s.Pull(t.Context(), r.host+"/env:1", PullOptions{})
			if c.ok {
				must(t, err)
				return
			}
			wantError(t, err, api.CodeTooLarge, false, "its environment is too long")
			nothingVisible(t, s)
		})
	}
}

// TestLoopbackIsOnlyForWhoAskedForIt: a registry elsewhere cannot point the
// daemon at services of its own machine.
func TestLoopbackIsOnlyForWhoAskedForIt(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	for what, c := range map[string]struct {
		registry string
		config   RegistryConfig
		allowed  bool
	}{
		"elsewhere":      {registry: "ghcr.io"},
		"here":           {registry: "127.0.0.1:5000", allowed: true},
		"localhost":      {registry: "localhost:5000", allowed: true},
		"mirrored here":  {registry: "ghcr.io", config: RegistryConfig{Mirrors: map[string][]string{"ghcr.io": {"[::1]:5000/x"}}}, allowed: true},
		"named insecure": {registry: "ghcr.io", config: RegistryConfig{Insecure: []string{host}}, allowed: true},
	} {
		t.Run(what, func(t *testing.T) {
			ref, err := api.ParseImageRef(c.registry + "/a/b:1")
			must(t, err)
			r := newRemote(ref, c.config)
			defer r.close()
			for _, name := range []string{host, strings.Replace(host, "127.0.0.1", "localhost", 1)} {
				if what == "named insecure" && name != host {
					continue
				}
				asked = 0
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+name+"/v1/kill", nil)
				must(t, err)
				resp, err := r.guard.RoundTrip(req)
				if err == nil {
					must(t, resp.Body.Close())
				}
				if (err == nil) != c.allowed || (asked == 1) != c.allowed {
					t.Errorf("%s: asked %d times, %v", name, asked, err)
				}
				if err != nil {
					wantError(t, r.classify(t.Context(), r.endpoints[0], "a layer", err), api.CodeUnavailable, false, "loopback")
				}
			}
		})
	}
}

// TestMountPointsOfEverySandbox: what is no directory where every sandbox has one
// of its own gives way, and that is told.
func TestMountPointsOfEverySandbox(t *testing.T) {
	link := func(name, target string) file { return file{name: name, typ: tar.TypeSymlink, link: target} }
	for what, c := range map[string]struct {
		files []file
		gone  []string
	}{
		"files":             {files: []file{{name: "proc", body: "x"}, {name: "dev", body: "x"}, {name: "sys", body: "x"}, {name: "tmp", body: "x"}, {name: ".cloche", body: "x"}}, gone: []string{".cloche", "dev", "proc", "sys", "tmp"}},
		"symlinks":          {files: []file{link("proc", "/etc"), link(".cloche", "tmp"), link("tmp", "nowhere")}, gone: []string{".cloche", "proc", "tmp"}},
		"a tmp that leads":  {files: []file{{name: "var/tmp", typ: tar.TypeDir}, link("tmp", "var/tmp")}},
		"what belongs here": {files: []file{{name: "proc", typ: tar.TypeDir}, {name: "dev/x", body: "x"}}},
	} {
		t.Run(what, func(t *testing.T) {
			root, err := build(t, images(t), archive.Limits{}, layerTar(t, c.files...))
			must(t, err)
			if len(root.notes) != len(c.gone) {
				t.Fatalf("notes %q, want of %q", root.notes, c.gone)
			}
			fsys := open(t, root.path)
			for i, name := range c.gone {
				if info, err := fs.Lstat(fsys, name); err != nil || !info.IsDir() || !strings.HasPrefix(root.notes[i], "/"+name+", which is no directory") {
					t.Errorf("%s: %v, %v; note %q", name, info, err, root.notes[i])
				}
			}
		})
	}
}
