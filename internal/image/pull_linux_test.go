package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	gremote "github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/longtest"
)

// simple is an image with one layer that does not compress.
func simple(t testing.TB) v1.Image {
	noise := make([]byte, 600_000)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(noise)
	return imageOf(t, layerOf(t, file{name: "noise", body: string(noise)}))
}

// wantError checks the parts of an error that a caller acts on.
func wantError(t *testing.T, err error, code api.Code, retryable bool, words ...string) *api.Error {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != code || e.Retryable != retryable {
		t.Fatalf("got %#v, want %s, retryable %v", err, code, retryable)
	}
	for _, word := range words {
		if !strings.Contains(e.Error(), word) {
			t.Errorf("%q does not say %q", e.Error(), word)
		}
	}
	return e
}

// nothingVisible checks that a failed pull left no image and nothing half-made.
func nothingVisible(t *testing.T, s *Store) {
	t.Helper()
	if l := s.List(); len(l) != 1 {
		t.Errorf("images are %+v", l)
	}
	for _, sub := range []string{"roots", "images", "temp", "locks"} {
		entries, err := os.ReadDir(s.oci.at(sub))
		must(t, err)
		if len(entries) != 0 {
			t.Errorf("%s holds %v", sub, entries)
		}
	}
}

func TestPullAndResolve(t *testing.T) {
	r := startRegistry(t)
	digest := r.push(t, "team/app:1", imageOf(t,
		layerOf(t, file{name: "bin/", typ: tar.TypeDir}, file{name: "bin/a", body: "one"}, file{name: "bin/gone", body: "x"}),
		layerOf(t, file{name: "bin/.wh.gone"}, file{name: "bin/b", typ: tar.TypeLink, link: "bin/a"})))
	ref := r.host + "/team/app:1"
	s := images(t)
	_, err := s.Resolve(t.Context(), ref, Need{})
	wantError(t, err, api.CodeNotFound, false, "cloche image pull "+ref, "image_aliases")
	var phases []api.PullPhase
	img, err := s.Pull(t.Context(), ref, PullOptions{Progress: func(p api.PullProgress) { phases = append(phases, p.Phase) }})
	must(t, err)
	if img.Digest != digest || img.Name != ref || img.Platform != "linux/"+runtime.GOARCH || len(img.Layers) != 2 || img.SizeBytes == 0 {
		t.Errorf("pulled %+v", img)
	}
	if phases[0] != api.PullResolve || phases[len(phases)-1] != api.PullDone {
		t.Errorf("phases %v", phases)
	}
	for _, by := range []string{ref, r.host + "/team/app@" + digest, r.host + "/team/app:other@" + digest, digest} {
		for _, store := range []*Store{s, openStore(t, s.dir)} {
			root, err := store.Resolve(t.Context(), by, Need{MountPoints: []string{"/workspace"}})
			if err != nil || root.Digest != digest || root.User != "1001" || root.Env["A"] != "b" || root.Env["PATH"] != "/bin" ||
				root.Config.WorkingDir != "/work" || strings.Join(root.Config.Command(), " ") != "git status" {
				t.Errorf("%s resolves to %+v, %v", by, root, err)
			}
		}
	}
	root, err := s.Resolve(t.Context(), ref, Need{})
	must(t, err)
	fsck(t, root.Image)
	fsys := open(t, root.Image)
	if data, err := fs.ReadFile(fsys, "bin/b"); err != nil || string(data) != "one" {
		t.Errorf("bin/b: %q, %v", data, err)
	}
	if _, err := fs.Stat(fsys, "bin/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bin/gone: %v", err)
	}
	// Another repository may not be called as if it had the image.
	_, err = s.Resolve(t.Context(), "evil.example/app@"+digest, Need{})
	wantError(t, err, api.CodeNotFound, false)
	before := len(r.asked())
	_, err = s.Pull(t.Context(), ref, PullOptions{Missing: true})
	must(t, err)
	if after := len(r.asked()); after != before {
		t.Errorf("%d requests for what is here", after-before)
	}
	for target, ok := range map[string]bool{"/a/../b": false, "relative": false, "/bin/a": false, "/bin/a/b": false, "/bin": true, "/bin/new/er": true, "/": true} {
		if _, err = s.Resolve(t.Context(), ref, Need{MountPoints: []string{target}}); ok != (err == nil) || !ok && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("mount point %q: %v", target, err)
		}
	}
}

func TestPullErrors(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	answer := func(status int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, q *http.Request) bool {
			if !strings.Contains(q.URL.Path, "/manifests/") {
				return false
			}
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			return true
		}
	}
	at := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
	for what, c := range map[string]struct {
		ref       string
		fault     func(http.ResponseWriter, *http.Request) bool
		code      api.Code
		retryable bool
		after     [2]int64 // bounds of RetryAfterMS
		words     []string
	}{
		"missing tag":   {ref: "app:2", code: api.CodeNotFound, words: []string{"no such image or tag", `image_aliases: {"`}},
		"missing name":  {ref: "other:1", code: api.CodeNotFound},
		"login":         {fault: answer(401), code: api.CodeNotFound, words: []string{"docker login " + r.host}},
		"forbidden":     {fault: answer(403), code: api.CodeNotFound},
		"too many":      {fault: answer(429, "Retry-After", "17"), code: api.CodeNoCapacity, retryable: true, after: [2]int64{17_000, 17_000}},
		"too many date": {fault: answer(429, "Retry-After", at), code: api.CodeNoCapacity, retryable: true, after: [2]int64{60_000, 90_000}},
		"broken":        {fault: answer(502), code: api.CodeUnavailable, retryable: true},
		"odd":           {fault: answer(418), code: api.CodeUnavailable},
		"redirect to plain HTTP": {fault: func(w http.ResponseWriter, q *http.Request) bool {
			http.Redirect(w, q, "http://registry.invalid/x", http.StatusFound)
			return strings.Contains(q.URL.Path, "/manifests/")
		}, code: api.CodeUnavailable, words: []string{"plain HTTP"}},
		"redirect to the cloud": {fault: func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/manifests/") {
				http.Redirect(w, q, "https://169.254.169.254/x", http.StatusFound)
				return true
			}
			return false
		}, code: api.CodeUnavailable, words: []string{"link-local"}},
		"not json": {fault: func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/manifests/") {
				fmt.Fprint(w, "<html>")
				return true
			}
			return false
		}, code: api.CodeInvalid},
		"other digest": {ref: "app@sha256:" + strings.Repeat("a", 64), fault: func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/manifests/") {
				fmt.Fprint(w, "{}")
				return true
			}
			return false
		}, code: api.CodeInvalid, words: []string{"sent a manifest with the digest"}},
		"huge manifest": {fault: func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/manifests/") {
				_, _ = io.CopyN(w, neverending{}, maxManifest+10)
				return true
			}
			return false
		}, code: api.CodeTooLarge},
		"nobody there": {ref: "127.0.0.1:1/app:1", code: api.CodeUnavailable, retryable: true, words: []string{"cannot be reached: the connection was refused"}},
		"no reference": {ref: "App:1", code: api.CodeInvalid},
	} {
		t.Run(what, func(t *testing.T) {
			r.fault = c.fault
			defer func() { r.fault = nil }()
			ref := c.ref
			switch {
			case ref == "":
				ref = r.host + "/app:1"
			case !strings.HasPrefix(ref, "127"):
				ref = r.host + "/" + ref
			}
			s := images(t)
			_, err := s.Pull(t.Context(), ref, PullOptions{})
			e := wantError(t, err, c.code, c.retryable, c.words...)
			if e.RetryAfterMS < c.after[0] || e.RetryAfterMS > c.after[1] {
				t.Errorf("retry after %d ms, want %v", e.RetryAfterMS, c.after)
			}
			if e.Hint == "" {
				t.Errorf("no hint in %v", e)
			}
			nothingVisible(t, s)
		})
	}
}

type neverending struct{}

func (neverending) Read(p []byte) (int, error) { return len(p), nil }

func TestPullFromARegistryThatHangs(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	for what, part := range map[string]string{"login": "/v2/", "manifest": "/manifests/", "layer": "/blobs/"} {
		t.Run(what, func(t *testing.T) {
			var calls atomic.Int64
			r.fault = func(w http.ResponseWriter, q *http.Request) bool {
				if q.Method != http.MethodGet || !strings.Contains(q.URL.Path, part) || part == "/v2/" && q.URL.Path != part {
					return false
				}
				calls.Add(1)
				if part == "/blobs/" {
					w.Header().Set("Content-Length", "5000000")
					_, _ = w.Write([]byte("a few bytes"))
					_ = http.NewResponseController(w).Flush()
				}
				<-q.Context().Done()
				return true
			}
			// Longer where the machine took that time for what comes before the part.
			for timeout := 60 * time.Millisecond; calls.Load() == 0; timeout *= 4 {
				if timeout > time.Minute {
					t.Fatal("nobody asked for it")
				}
				s, err := OpenWith(filepath.Join(t.TempDir(), "images"), Options{Registries: RegistryConfig{Timeout: timeout}})
				must(t, err)
				_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
				wantError(t, err, api.CodeTimeout, true, "did not answer")
				nothingVisible(t, s)
			}
		})
	}
	r.fault = nil
}

// TestPullWithoutAConnection: an address that takes no connection is given up after
// dialTimeout, long before a registry that says nothing.
func TestPullWithoutAConnection(t *testing.T) {
	longtest.Skip(t, "it waits for a connection that does not come")
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(listener) })
	must(t, unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, unix.Listen(listener, 0))
	bound, err := unix.Getsockname(listener)
	must(t, err)
	host := fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
	for full := false; !full; { // then the kernel takes no more
		c, err := net.DialTimeout("tcp", host, time.Second)
		if full = err != nil; !full {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	s, err := OpenWith(filepath.Join(t.TempDir(), "images"), Options{Registries: RegistryConfig{Timeout: time.Hour}})
	must(t, err)
	_, err = s.Pull(t.Context(), host+"/nosuch:1", PullOptions{})
	if e := wantError(t, err, api.CodeTimeout, true, "did not answer within "+dialTimeout.String()); !strings.Contains(e.Hint, "image ls") {
		t.Errorf("the hint is %q", e.Hint)
	}
	nothingVisible(t, s)
}

func TestPullEndsWithItsCaller(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	ctx, cancel := context.WithCancel(t.Context())
	r.fault = func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/blobs/") {
			cancel()
			<-q.Context().Done()
			return true
		}
		return false
	}
	s := images(t)
	_, err := s.Pull(ctx, r.host+"/app:1", PullOptions{})
	wantError(t, err, api.CodeCanceled, false)
	nothingVisible(t, s)
}

func TestInterruptedPullGoesOn(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("ranges %v", ranges), func(t *testing.T) {
			r := startRegistry(t)
			r.push(t, "app:1", simple(t))
			var sent, asked atomic.Int64
			var first atomic.Bool
			first.Store(true)
			var from []string
			r.fault = func(w http.ResponseWriter, q *http.Request) bool {
				if q.Method != http.MethodGet || !strings.Contains(q.URL.Path, "/blobs/") {
					return false
				}
				asked.Add(1)
				body := blobOf(t, r, q.URL.Path)
				if len(body) < 10_000 {
					return false // the configuration
				}
				from = append(from, q.Header.Get("Range"))
				start := 0
				if h := q.Header.Get("Range"); h != "" && ranges {
					start, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(h, "bytes="), "-"))
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(body)-1, len(body)))
					w.Header().Set("Content-Length", strconv.Itoa(len(body)-start))
					w.WriteHeader(http.StatusPartialContent)
				} else {
					w.Header().Set("Content-Length", strconv.Itoa(len(body)))
				}
				rest := body[start:]
				if first.Swap(false) {
					rest = rest[:len(rest)/2] // and then the connection breaks
				}
				n, _ := w.Write(rest)
				sent.Add(int64(n))
				return true
			}
			s := images(t)
			// Every attempt of the first pull but one fails before it sends anything.
			img, err := s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
			must(t, err)
			size := img.Layers[0].SizeBytes
			if want := size; ranges && sent.Load() != want {
				t.Errorf("%d bytes were sent for a layer of %d", sent.Load(), want)
			}
			if len(from) != 2 || from[0] != "" || !strings.HasPrefix(from[1], "bytes=") {
				t.Errorf("asked for %q", from)
			}
			root, err := s.Resolve(t.Context(), r.host+"/app:1", Need{})
			must(t, err)
			fsck(t, root.Image)
		})
	}
}

// blobOf reads a blob of the registry without its faults.
func blobOf(t testing.TB, r *testRegistry, path string) []byte {
	t.Helper()
	w := newRecorder()
	q, err := http.NewRequest(http.MethodGet, "http://"+r.host+path, nil)
	must(t, err)
	r.real.ServeHTTP(w, q)
	return w.Body.Bytes()
}

func TestPartsOfAnEarlierPullAreUsed(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	var broken atomic.Bool
	broken.Store(true)
	var ranged atomic.Bool
	r.fault = func(w http.ResponseWriter, q *http.Request) bool {
		if q.Method != http.MethodGet || !strings.Contains(q.URL.Path, "/blobs/") {
			return false
		}
		body := blobOf(t, r, q.URL.Path)
		if q.Header.Get("Range") != "" {
			ranged.Store(true)
		}
		if len(body) < 10_000 || !broken.Load() {
			return false
		}
		if q.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:100_000])
		return true
	}
	s := images(t)
	_, err := s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
	wantError(t, err, api.CodeUnavailable, true)
	nothingVisible(t, s)
	parts, _ := filepath.Glob(s.oci.at("blobs", "*"+partSuffix))
	if len(parts) != 1 {
		t.Fatalf("parts are %v", parts)
	}
	if info, err := os.Stat(parts[0]); err != nil || info.Size() != 100_000 {
		t.Errorf("the part has %v", info.Size())
	}
	// What is there may have been damaged since.
	f, err := os.OpenFile(parts[0], os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("damage"), 50_000)
	must(t, err)
	f.Close()
	broken.Store(false)
	ranged.Store(false)
	_, err = openStore(t, s.dir).Pull(t.Context(), r.host+"/app:1", PullOptions{})
	must(t, err)
	if !ranged.Load() {
		t.Error("the part was not continued")
	}
}

func TestWrongLayers(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	swap := func(change func([]byte) []byte) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method != http.MethodGet || !strings.Contains(q.URL.Path, "/blobs/") {
				return false
			}
			body := blobOf(t, r, q.URL.Path)
			if len(body) < 10_000 {
				return false
			}
			_, _ = w.Write(change(body))
			return true
		}
	}
	for what, c := range map[string]struct {
		fault     func(http.ResponseWriter, *http.Request) bool
		code      api.Code
		retryable bool
	}{
		"other content": {swap(func(b []byte) []byte { return append(bytes.Clone(b[:len(b)-1]), b[len(b)-1]^1) }), api.CodeInvalid, false},
		"truncated":     {swap(func(b []byte) []byte { return b[:len(b)/2] }), api.CodeUnavailable, true},
		"empty":         {swap(func([]byte) []byte { return nil }), api.CodeUnavailable, true},
	} {
		t.Run(what, func(t *testing.T) {
			r.fault = c.fault
			s := images(t)
			_, err := s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
			if e := wantError(t, err, c.code, c.retryable); e.Hint == "" {
				t.Errorf("no hint in %v", e)
			}
			nothingVisible(t, s)
		})
	}
}

func TestLayerWithAnotherDiffID(t *testing.T) {
	r := startRegistry(t)
	img := simple(t)
	config, err := img.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.RootFS.DiffIDs[0].Hex = strings.Repeat("b", 64)
	lying, err := mutate.ConfigFile(img, config)
	must(t, err)
	r.push(t, "app:1", lying)
	s := images(t)
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
	wantError(t, err, api.CodeInvalid, false, "unpacks to")
	nothingVisible(t, s)
}

func TestPlatforms(t *testing.T) {
	r := startRegistry(t)
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	for_ := func(arch string) v1.Image {
		img, err := mutate.ConfigFile(simple(t), &v1.ConfigFile{OS: "linux", Architecture: arch, RootFS: mustConfig(t, simple(t)).RootFS})
		must(t, err)
		return img
	}
	r.push(t, "single:1", for_(other))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: for_("s390x"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}},
		mutate.IndexAddendum{Add: for_(other), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other, Variant: "v8"}}},
		mutate.IndexAddendum{Add: for_(runtime.GOARCH), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	ref, err := name.ParseReference(r.host + "/multi:1")
	must(t, err)
	must(t, gremote.WriteIndex(ref, index))
	indexDigest, err := index.Digest()
	must(t, err)
	only := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: for_(other), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other}}})
	ref, err = name.ParseReference(r.host + "/only:1")
	must(t, err)
	must(t, gremote.WriteIndex(ref, only))

	s := images(t)
	mine := "linux/" + runtime.GOARCH
	for _, repo := range []string{"single:1", "only:1"} {
		_, err = s.Pull(t.Context(), r.host+"/"+repo, PullOptions{})
		wantError(t, err, api.CodeUnsupported, false, "linux/"+other, mine)
	}
	img, err := s.Pull(t.Context(), r.host+"/multi:1", PullOptions{})
	must(t, err)
	if img.Platform != mine || img.IndexDigest != indexDigest.String() {
		t.Errorf("pulled %+v", img)
	}
	// Pinned to the list, as people pin.
	pinned := r.host + "/multi@" + indexDigest.String()
	if root, err := s.Resolve(t.Context(), pinned, Need{}); err != nil || root.Digest != img.Digest {
		t.Errorf("%s: %+v, %v", pinned, root, err)
	}
	_, err = images(t).Pull(t.Context(), pinned, PullOptions{})
	must(t, err)
	foreign, err := s.Pull(t.Context(), r.host+"/single:1", PullOptions{Platform: "linux/" + other})
	must(t, err)
	_, err = s.Resolve(t.Context(), foreign.Name, Need{})
	wantError(t, err, api.CodeUnsupported, false, "linux/"+other, mine)
	_, err = s.Pull(t.Context(), r.host+"/multi:1", PullOptions{Platform: "windows"})
	wantError(t, err, api.CodeInvalid, false)
}

func mustConfig(t testing.TB, img v1.Image) *v1.ConfigFile {
	c, err := img.ConfigFile()
	must(t, err)
	return c
}

func TestMirrors(t *testing.T) {
	origin, mirror := startRegistry(t), startRegistry(t)
	digest := mirror.push(t, "cache/app:1", simple(t))
	dead := "127.0.0.1:1"
	s, err := OpenWith(filepath.Join(t.TempDir(), "images"), Options{Registries: RegistryConfig{
		Mirrors: map[string][]string{origin.host: {dead, mirror.host + "/cache"}},
	}})
	must(t, err)
	img, err := s.Pull(t.Context(), origin.host+"/app:1", PullOptions{})
	if err != nil || img.Digest != digest || len(origin.asked()) != 0 {
		t.Errorf("pulled %+v, %v; the registry was asked %v", img, err, origin.asked())
	}
	origin.push(t, "app:2", simple(t))
	_, err = s.Pull(t.Context(), origin.host+"/app:2", PullOptions{})
	must(t, err)
	_, err = s.Pull(t.Context(), origin.host+"/app:3", PullOptions{})
	wantError(t, err, api.CodeNotFound, false)
}

func TestLogins(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	const secret = "user:s3cret"
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(secret))
	for what, fault := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"basic": func(w http.ResponseWriter, q *http.Request) bool {
			if q.Header.Get("Authorization") == basic {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
		"bearer": func(w http.ResponseWriter, q *http.Request) bool {
			switch {
			case q.URL.Path == "/token" && q.Header.Get("Authorization") == basic && q.URL.Query().Get("scope") == "repository:app:pull":
				fmt.Fprint(w, `{"token":"granted"}`)
			case q.URL.Path == "/token":
				w.WriteHeader(http.StatusUnauthorized)
			case q.Header.Get("Authorization") == "Bearer granted":
				return false
			default:
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.host+`/token",service="s"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
			return true
		},
	} {
		t.Run(what, func(t *testing.T) {
			r.fault = fault
			dir := t.TempDir()
			t.Setenv("DOCKER_CONFIG", dir)
			s := images(t)
			_, err := s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
			wantError(t, err, api.CodeNotFound, false, "docker login")
			config, err := json.Marshal(map[string]any{"auths": map[string]any{r.host: map[string]string{"auth": strings.TrimPrefix(basic, "Basic ")}}})
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
			_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
			must(t, err)
			// A credential helper that fails is told of, and its words are not.
			must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"credHelpers":{"`+r.host+`":"cloche-test"}}`), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "docker-credential-cloche-test"), []byte("#!/bin/sh\necho "+secret+"\nexit 1\n"), 0o700))
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			_, err = images(t).Pull(t.Context(), r.host+"/app:1", PullOptions{})
			e := wantError(t, err, api.CodeUnavailable, false, "credential helper")
			if strings.Contains(e.Error(), "s3cret") {
				t.Errorf("the error tells the password: %v", e)
			}
		})
	}
}
