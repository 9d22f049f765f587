package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	gremote "github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// TestLayersComeFromTheRegistryThatHasTheManifest: a mirror that does not have an image is not asked
// for its layers.
func TestLayersComeFromTheRegistryThatHasTheManifest(t *testing.T) {
	mirror, origin := startRegistry(t), startRegistry(t)
	origin.push(t, "app:1", simple(t))
	s, err := OpenWith(filepath.Join(t.TempDir(), "images"), Options{Registries: RegistryConfig{
		Mirrors: map[string][]string{origin.host: {mirror.host}},
	}})
	must(t, err)
	_, err = s.Pull(t.Context(), origin.host+"/app:1", PullOptions{})
	must(t, err)
	isBlob := func(line string) bool { return strings.Contains(line, "/blobs/") }
	if asked := mirror.asked(); !slices.ContainsFunc(asked, func(line string) bool { return strings.Contains(line, "/manifests/") }) || slices.ContainsFunc(asked, isBlob) {
		t.Errorf("the mirror was asked %q", asked)
	}
}

// TestIndexOfAnImageIsKept: an image that was pulled by its list of platforms is found by
// the digest of that list, in whatever order it was pulled by that and by its own.
func TestIndexOfAnImageIsKept(t *testing.T) {
	r := startRegistry(t)
	img := simple(t)
	digest := r.push(t, "app:plain", img)
	config := mustConfig(t, img)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}}})
	tag, err := name.ParseReference(r.host + "/app:list")
	must(t, err)
	must(t, gremote.WriteIndex(tag, index))
	hash, err := index.Digest()
	must(t, err)
	for _, order := range [][]string{{":list", ":plain"}, {":plain", ":list"}, {":list", "@" + digest}, {"@" + digest, ":list"}} {
		s := images(t)
		for _, by := range order {
			if got, err := s.Pull(t.Context(), r.host+"/app"+by, PullOptions{}); err != nil || got.Digest != digest {
				t.Fatalf("%s: %+v, %v", by, got, err)
			}
		}
		if got, err := openStore(t, s.dir).Inspect(r.host + "/app@" + hash.String()); err != nil || got.Digest != digest || got.IndexDigest != hash.String() {
			t.Errorf("pulled by %q: %+v, %v", order, got, err)
		}
	}
}

// waitingContext calls a function when a caller begins to wait for its end.
type waitingContext struct {
	context.Context
	waits func()
}

func (c waitingContext) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// TestBlobThatAnotherFetched: a pull that waited for another pull of the same blob uses
// what that one left, and reports all its bytes.
func TestBlobThatAnotherFetched(t *testing.T) {
	s := images(t)
	content := []byte("content")
	b := blob{digest: digestOf(content), size: int64(len(content))}
	path := s.oci.at("blobs", hexOf(b.digest))
	other, err := lockFile(t.Context(), path+partSuffix)
	must(t, err)
	waited := false
	ctx := waitingContext{t.Context(), sync.OnceFunc(func() {
		waited = true
		must(t, errors.Join(os.WriteFile(path, content, 0o600), other.Close()))
	})}
	var told []int64
	got, err := s.fetchBlob(ctx, nil, b, func(done int64) { told = append(told, done) })
	must(t, err)
	if got != path || !waited || !slices.Equal(told, []int64{b.size}) {
		t.Errorf("it is %s, waited %v, told of %v", got, waited, told)
	}
	if left, _ := filepath.Glob(path + partSuffix); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	// The next one does not wait.
	if got, err := s.fetchBlob(t.Context(), nil, b, func(done int64) { told = append(told, done) }); err != nil || got != path || len(told) != 2 || told[1] != b.size {
		t.Errorf("it is %s, %v, told of %v", got, err, told)
	}
}

// TestPruneSparesWhatIsFetched: a part of a layer goes, unless another pull is fetching
// the rest.
func TestPruneSparesWhatIsFetched(t *testing.T) {
	s := images(t)
	idle, held := s.oci.at("blobs", strings.Repeat("a", 64)+partSuffix), s.oci.at("blobs", strings.Repeat("b", 64)+partSuffix)
	for _, path := range []string{idle, held} {
		must(t, os.WriteFile(path, []byte("part"), 0o600))
	}
	f, err := hostfile.OpenFile(held, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	must(t, hostfile.TryLock(f))
	got, err := s.Prune(t.Context(), PruneOptions{})
	must(t, err)
	left, _ := filepath.Glob(s.oci.at("blobs", "*"))
	used, err := s.Usage()
	must(t, err)
	if !slices.Equal(left, []string{held}) || used != got.UsedBytes {
		t.Errorf("left %v with %d bytes, told %+v", left, used, got)
	}
}

// TestSweepLeavesNothingOpen: neither what a sweep removes nor what it leaves stays open.
func TestSweepLeavesNothingOpen(t *testing.T) {
	s := images(t)
	mine, err := s.oci.temp("root-")
	must(t, err)
	defer mine.Close()
	must(t, os.Chtimes(mine.Name(), timeAgo(2), timeAgo(2)))
	for _, name := range []string{"one", "two", "three"} {
		put(t, s.oci.dir, "temp/"+name, "by a killed process", 0o600)
		must(t, os.Chtimes(s.oci.at("temp", name), timeAgo(2), timeAgo(2)))
	}
	s.oci.sweepTemps()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var open []string
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(target, s.oci.at("temp")+"/") {
			open = append(open, target)
		}
	}
	if want := []string{mine.Name()}; !slices.Equal(open, want) {
		t.Errorf("open are %q, want %q", open, want)
	}
}

// TestProgressIsToldNowAndThen: the bytes of a layer are told at most once in reportEvery,
// and always when all of them are here.
func TestProgressIsToldNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []int64
		r := &reporter{tell: func(p api.PullProgress) { told = append(told, p.Bytes) }}
		layer, other := api.ImageLayer{DiffID: "one", SizeBytes: 9}, api.ImageLayer{DiffID: "two", SizeBytes: 100}
		for done := range int64(10) {
			r.bytes(api.PullDownload, layer, done)
			if done == 4 {
				r.bytes(api.PullDownload, other, 50) // has times of its own
				r.bytes(api.PullUnpack, layer, 60)   // so has another phase
				time.Sleep(reportEvery)
			}
		}
		if want := []int64{0, 50, 60, 5, 9}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
	})
}

func TestTimeouts(t *testing.T) {
	for want, errs := range map[bool][]error{
		true:  {context.DeadlineExceeded, os.ErrDeadlineExceeded, &net.DNSError{IsTimeout: true}, fmt.Errorf("dial: %w", &net.OpError{Err: os.ErrDeadlineExceeded})},
		false: {nil, context.Canceled, io.EOF, &net.DNSError{}, &net.OpError{Err: syscall.ECONNREFUSED}},
	} {
		for _, err := range errs {
			if got := isTimeout(err); got != want {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
}

// TestPullClosesItsConnections, also those without a known certificate.
func TestPullClosesItsConnections(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	for what, insecure := range map[string]bool{"a loopback address": false, "an insecure registry": true} {
		t.Run(what, func(t *testing.T) {
			ended := make(chan struct{}, 100)
			var open atomic.Int64
			srv := httptest.NewUnstartedServer(r.real)
			srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					open.Add(1)
				case http.StateClosed:
					open.Add(-1)
					ended <- struct{}{}
				}
			}
			srv.Start()
			defer srv.Close()
			host := strings.TrimPrefix(srv.URL, "http://")
			var config RegistryConfig
			if insecure {
				config.Insecure = []string{host}
			}
			s, err := OpenWith(filepath.Join(t.TempDir(), "images"), Options{Registries: config})
			must(t, err)
			_, err = s.Pull(t.Context(), host+"/app:1", PullOptions{})
			must(t, err)
			late := time.After(10 * time.Second)
			for open.Load() != 0 {
				select {
				case <-ended:
				case <-late:
					t.Fatalf("%d connections are open", open.Load())
				}
			}
		})
	}
}

// TestAgain: what may help soon is waited for, and anything else is told at once.
func TestAgain(t *testing.T) {
	told := func(code api.Code, retryable bool, after time.Duration) *api.Error {
		e := api.Errorf(code, "x")
		e.Retryable, e.RetryAfterMS = retryable, after.Milliseconds()
		return e
	}
	const no = -1
	for what, c := range map[string]struct {
		err    error
		failed int
		waits  time.Duration
	}{
		"another error":            {err: io.ErrUnexpectedEOF, waits: no},
		"not retryable":            {err: told(api.CodeUnavailable, false, 0), waits: no},
		"the first time":           {err: told(api.CodeUnavailable, true, 0), waits: 25 * time.Millisecond},
		"the third time":           {err: told(api.CodeUnavailable, true, 0), failed: 2, waits: 100 * time.Millisecond},
		"unavailable for long":     {err: told(api.CodeUnavailable, true, maxPatience+time.Millisecond), waits: no},
		"unavailable for a while":  {err: told(api.CodeUnavailable, true, maxPatience), waits: maxPatience},
		"busy for long":            {err: told(api.CodeNoCapacity, true, maxPatience+time.Millisecond), waits: no},
		"busy for a while":         {err: told(api.CodeNoCapacity, true, maxPatience), waits: maxPatience},
		"busy for an unknown time": {err: told(api.CodeNoCapacity, true, 0), waits: no},
		"a full disk":              {err: told(api.CodeNoCapacity, true, time.Second).WithCause(syscall.ENOSPC), waits: no},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				again := (&transfer{}).again(t.Context(), c.err, c.failed)
				if took := time.Since(begin); again != (c.waits != no) || again && took != c.waits || !again && took != 0 {
					t.Errorf("%v after %v, want to wait for %v", again, took, c.waits)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if (&transfer{}).again(ctx, told(api.CodeUnavailable, true, time.Second), 0) {
		t.Error("it goes on after its caller gave up")
	}
}

// TestLayersComeFromTheNextRegistry: a layer that one registry does not have, or has
// wrongly, comes from the next one.
func TestLayersComeFromTheNextRegistry(t *testing.T) {
	for what, answer := range map[string]func(w http.ResponseWriter){
		"missing": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"wrong":   func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat("x", 1<<20)) },
	} {
		t.Run(what, func(t *testing.T) {
			mirror, origin := startRegistry(t), startRegistry(t)
			for _, r := range []*testRegistry{mirror, origin} {
				r.push(t, "app:1", simple(t))
			}
			mirror.fault = func(w http.ResponseWriter, q *http.Request) bool {
				if !strings.Contains(q.URL.Path, "/blobs/") {
					return false
				}
				answer(w)
				return true
			}
			s, err := OpenWith(filepath.Join(t.TempDir(), "images"), Options{Registries: RegistryConfig{
				Mirrors: map[string][]string{origin.host: {mirror.host}},
			}})
			must(t, err)
			_, err = s.Pull(t.Context(), origin.host+"/app:1", PullOptions{})
			must(t, err)
			isBlob := func(line string) bool { return strings.HasPrefix(line, "GET ") && strings.Contains(line, "/blobs/") }
			if !slices.ContainsFunc(mirror.asked(), isBlob) || !slices.ContainsFunc(origin.asked(), isBlob) {
				t.Errorf("the mirror was asked %q, the registry %q", mirror.asked(), origin.asked())
			}
		})
	}
}
