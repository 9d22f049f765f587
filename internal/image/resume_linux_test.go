package image

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// TestPartsThatARegistryDoesNotContinue: where a registry sends another part than the one
// asked for, what is here is begun again or kept; the image is right in the end.
func TestPartsThatARegistryDoesNotContinue(t *testing.T) {
	whole := []byte(noiseOf(5))
	digest := digestOf(whole)
	for what, c := range map[string]struct {
		part  []byte // what an earlier transfer left
		serve func(w http.ResponseWriter, q *http.Request) (done bool)
		// ranges are those that are asked for, in order.
		ranges []string
		fails  string
	}{
		"ignores the range": {part: whole[:1000], serve: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write(whole)
			return true
		}, ranges: []string{"bytes=1000-"}},
		"another range": {part: whole[:1000], serve: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Range", "bytes 100-5/6")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(whole[1000:])
			return true
		}, ranges: []string{"bytes=1000-"}, fails: "answered 416"},
		"no ranges at all": {part: whole[:1000], serve: func(w http.ResponseWriter, q *http.Request) bool {
			if q.Header.Get("Range") == "" {
				return false
			}
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return true
		}, ranges: []string{"bytes=1000-", ""}},
		"longer than it may be": {part: append(slices.Clone(whole), 'x'), ranges: []string{""}},
		"as long, and wrong":    {part: append(slices.Clone(whole[:len(whole)-1]), whole[0]^1), ranges: []string{""}},
		"whole":                 {part: whole},
		"empty":                 {part: []byte{}, ranges: []string{""}},
		"a byte less":           {part: whole[:len(whole)-1], ranges: []string{fmt.Sprintf("bytes=%d-", len(whole)-1)}},
		"more than is asked for": {serve: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write(append(slices.Clone(whole), 'x'))
			return true
		}, ranges: []string{""}},
	} {
		t.Run(what, func(t *testing.T) {
			r := startRegistry(t)
			var ranges []string
			r.fault = func(w http.ResponseWriter, q *http.Request) bool {
				if !strings.Contains(q.URL.Path, "/blobs/") {
					return false
				}
				ranges = append(ranges, q.Header.Get("Range"))
				if c.serve != nil && c.serve(w, q) {
					return true
				}
				http.ServeContent(w, q, "", time.Time{}, strings.NewReader(string(whole)))
				return true
			}
			s := images(t)
			if c.part != nil {
				put(t, s.oci.dir, "blobs/"+hexOf(digest)+partSuffix, string(c.part), 0o600)
			}
			ref, err := api.ParseImageRef(r.host + "/app:1")
			must(t, err)
			rem := newRemote(ref, RegistryConfig{Timeout: 10 * time.Second})
			defer rem.close()
			var told []int64
			path, err := s.fetchBlob(t.Context(), rem, blob{digest, int64(len(whole))}, func(done int64) { told = append(told, done) })
			if !slices.Equal(ranges, c.ranges) {
				t.Errorf("asked for are %q, want %q", ranges, c.ranges)
			}
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("got %v, want %q", err, c.fails)
				}
				return
			}
			must(t, err)
			got, err := os.ReadFile(path)
			if err != nil || string(got) != string(whole) || path != s.oci.at("blobs", hexOf(digest)) {
				t.Errorf("%s has %d bytes, %v", path, len(got), err)
			}
			if told[len(told)-1] != int64(len(whole)) {
				t.Errorf("told are %v", told)
			}
			if _, err := os.Lstat(path + partSuffix); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the part is left: %v", err)
			}
			// What is here is asked for no more, and noted as used.
			must(t, os.Chtimes(path, timeAgo(3), timeAgo(3)))
			before, told := len(ranges), []int64(nil)
			_, err = s.fetchBlob(t.Context(), rem, blob{digest, int64(len(whole))}, func(done int64) { told = append(told, done) })
			if err != nil || len(ranges) != before || !slices.Equal(told, []int64{int64(len(whole))}) || time.Since(timeOf(t, path)) > time.Hour {
				t.Errorf("again: %v, %d requests, told %v, used at %s", err, len(ranges)-before, told, timeOf(t, path))
			}
		})
	}
}

// TestConfigurationThatIsDamaged: a configuration that is kept and is damaged is
// refused, and fetched again by the next pull.
func TestConfigurationThatIsDamaged(t *testing.T) {
	r := startRegistry(t)
	img := simple(t)
	r.push(t, "app:1", img)
	m, err := img.Manifest()
	must(t, err)
	s := images(t)
	kept := s.oci.at("blobs", m.Config.Digest.Hex)
	must(t, os.WriteFile(kept, []byte(strings.Repeat("x", int(m.Config.Size))), 0o600))
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
	wantError(t, err, api.CodeInvalid, false, "what is kept as "+m.Config.Digest.String())
	nothingVisible(t, s)
	if _, err := os.Lstat(kept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still kept: %v", err)
	}
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
	must(t, err)
}

// TestBytesOfBadImagesAreNotKept: the layers of an image that is not what it says are not
// kept, those of a pull that was broken off are.
func TestBytesOfBadImagesAreNotKept(t *testing.T) {
	r := startRegistry(t)
	good := layerOf(t, file{name: "noise", body: noiseOf(7)})
	img := imageOf(t, good, layerOf(t, file{name: "x", body: "y"}, file{name: "x/below", body: "y"}))
	r.push(t, "bad:1", img)
	s := images(t)
	_, err := s.Pull(t.Context(), r.host+"/bad:1", PullOptions{})
	if e := wantError(t, err, api.CodeInvalid, false, "below something"); e.Field != "image" || e.Hint == "" {
		t.Errorf("field %q, hint %q", e.Field, e.Hint)
	}
	nothingVisible(t, s)
	digest, err := good.Digest()
	must(t, err)
	if _, err := os.Lstat(s.oci.at("blobs", digest.Hex)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a layer of it is kept: %v", err)
	}
	s.removeBlobs([]api.ImageLayer{{DiffID: "x"}}) // one that came from elsewhere has none
	if _, err := os.Lstat(s.oci.at("blobs")); err != nil {
		t.Error(err)
	}
	// Limits are those of all layers together.
	_, err = s.Pull(t.Context(), r.host+"/bad:1", PullOptions{Limits: archive.Limits{Bytes: 600_000}})
	wantError(t, err, api.CodeTooLarge, false)
}

// TestPullIsCheckedFirst: the check of an image gets its digests before
// more than its manifest is fetched.
func TestPullIsCheckedFirst(t *testing.T) {
	r := startRegistry(t)
	digest := r.push(t, "app:1", simple(t))
	s := images(t)
	refused := api.Errorf(api.CodeDenied, "no").WithHint("h")
	var asked []string
	r.fault = func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/blobs/") {
			t.Errorf("asked for %s", q.URL.Path)
		}
		return false
	}
	_, err := s.Pull(t.Context(), r.host+"/app:1", PullOptions{Check: func(digest, index string) error {
		asked = append(asked, digest, index)
		return refused
	}})
	wantError(t, err, api.CodeDenied, false, "no")
	if !slices.Equal(asked, []string{digest, ""}) {
		t.Errorf("it was asked about %q", asked)
	}
	nothingVisible(t, s)
	r.fault = nil
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{Check: func(string, string) error { return nil }})
	must(t, err)
}

// TestPullByDigest: with a digest the tag says nothing, so the image has the name of its
// repository and digest alone.
func TestPullByDigest(t *testing.T) {
	r := startRegistry(t)
	digest := r.push(t, "app:1", simple(t))
	s := images(t)
	_, err := s.Pull(t.Context(), r.host+"/app:9@"+digest, PullOptions{})
	must(t, err)
	if got, want := s.Names(digest), []string{r.host + "/app@" + digest}; !slices.Equal(got, want) {
		t.Errorf("its names are %q, want %q", got, want)
	}
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{})
	must(t, err)
	_, err = s.Pull(t.Context(), r.host+"/app@"+digest, PullOptions{})
	must(t, err)
	if got, want := s.Names(digest), []string{r.host + "/app:1", r.host + "/app@" + digest}; !slices.Equal(got, want) {
		t.Errorf("its names are %q, want %q", got, want)
	}
	// What is here for another platform is not what is missing.
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{Missing: true, Platform: "linux/s390x"})
	if err != nil && !errors.Is(err, api.ErrUnsupported) {
		t.Error(err)
	}
	before := len(r.asked())
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{Missing: true, Platform: "linux/s390x"})
	if after := len(r.asked()); after == before {
		t.Errorf("an image of this machine was taken for one of another: %v", err)
	}
}

// TestPullsOfOneImageWait: a pull of what another one makes says that it waits.
func TestPullsOfOneImageWait(t *testing.T) {
	r := startRegistry(t)
	digest := r.push(t, "app:1", simple(t))
	s := images(t)
	unlock, err := s.oci.lock(t.Context(), hexOf(digest))
	must(t, err)
	waits := make(chan struct{})
	var once atomic.Bool
	done := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), r.host+"/app:1", PullOptions{Progress: func(p api.PullProgress) {
			if p.Phase == api.PullWait && !once.Swap(true) {
				close(waits)
			}
		}})
		done <- err
	}()
	<-waits
	select {
	case err := <-done:
		t.Errorf("it did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	unlock()
	must(t, <-done)
	var phases []api.PullPhase
	_, err = s.Pull(t.Context(), r.host+"/app:1", PullOptions{Progress: func(p api.PullProgress) {
		if p.Image != r.host+"/app:1" {
			t.Errorf("told of %q", p.Image)
		}
		phases = append(phases, p.Phase)
	}})
	if err != nil || !slices.Equal(phases, []api.PullPhase{api.PullResolve, api.PullDone}) {
		t.Errorf("what is here is told as %v, %v", phases, err)
	}
}

// TestListsThatLeadToLists: a list of platforms may hold a list, and no more.
func TestListsThatLeadToLists(t *testing.T) {
	r := startRegistry(t)
	img := simple(t)
	digest := r.push(t, "app:1", img)
	want, err := platform("")
	must(t, err)
	lists := map[string]string{}
	next := digest
	for i := range 3 {
		body := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","size":1,"digest":%q,"platform":{"os":"linux","architecture":%q}}]}`, next, want.Architecture)
		next = digestOf([]byte(body))
		lists[next] = body
		if i == 1 {
			lists["two"] = body
		}
	}
	lists["three"] = lists[next]
	lists["broken"] = `{"schemaVersion":2,"manifests":[{"size":1,"digest":"","platform":{"os":"linux","architecture":"` + want.Architecture + `"}}]}`
	r.fault = func(w http.ResponseWriter, q *http.Request) bool {
		_, reference, _ := strings.Cut(q.URL.Path, "/manifests/")
		body, ok := lists[reference]
		if ok {
			_, _ = io.WriteString(w, body)
		}
		return ok
	}
	got, err := images(t).Pull(t.Context(), r.host+"/app:two", PullOptions{})
	if err != nil || got.Digest != digest || got.IndexDigest != digestOf([]byte(lists["two"])) {
		t.Errorf("pulled %s of %s, %v", got.Digest, got.IndexDigest, err)
	}
	_, err = images(t).Pull(t.Context(), r.host+"/app:three", PullOptions{})
	wantError(t, err, api.CodeInvalid, false, "leads to lists only")
	_, err = images(t).Pull(t.Context(), r.host+"/app:broken", PullOptions{})
	wantError(t, err, api.CodeInvalid, false)
}
