package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestTransfersAreGivenUp: a registry that sends nothing is asked blobAttempts times, and
// one that breaks off after each byte maxAttempts times.
func TestTransfersAreGivenUp(t *testing.T) {
	whole := []byte(noiseOf(6))
	digest := digestOf(whole)
	for what, c := range map[string]struct {
		sends int
		want  int32
	}{"nothing": {0, blobAttempts}, "a byte": {1, maxAttempts}} {
		t.Run(what, func(t *testing.T) {
			r := startRegistry(t)
			var asked atomic.Int32
			r.fault = func(w http.ResponseWriter, q *http.Request) bool {
				if !strings.Contains(q.URL.Path, "/blobs/") {
					return false
				}
				asked.Add(1)
				from, _, _ := strings.Cut(strings.TrimPrefix(q.Header.Get("Range"), "bytes="), "-")
				at, _ := strconv.Atoi(from)
				w.Header().Set("Content-Length", strconv.Itoa(len(whole)-at))
				if at > 0 {
					w.Header().Set("Content-Range", "bytes "+from+"-/*")
					w.WriteHeader(http.StatusPartialContent)
				}
				_, _ = w.Write(whole[at : at+c.sends])
				return true
			}
			ref, err := api.ParseImageRef(r.host + "/app:1")
			must(t, err)
			rem := newRemote(ref, RegistryConfig{})
			defer rem.close()
			s := images(t)
			_, err = s.fetchBlob(t.Context(), rem, blob{digest, int64(len(whole))}, func(int64) {})
			wantError(t, err, api.CodeUnavailable, true, "broke off")
			if got := asked.Load(); got != c.want {
				t.Errorf("it was asked %d times, want %d", got, c.want)
			}
			info, err := os.Stat(s.oci.at("blobs", hexOf(digest)+partSuffix))
			if err != nil || info.Size() != int64(c.sends)*int64(c.want) {
				t.Errorf("kept are %v, %v", info, err)
			}
		})
	}
}

// TestTransfersWithoutAFile: an error of the file of a transfer ends the transfer.
func TestTransfersWithoutAFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "part"))
	must(t, err)
	_, err = f.WriteString("part")
	must(t, err)
	started := func(size int64) *transfer {
		return &transfer{f: f, blob: blob{size: size}, sum: sha256.New(), progress: func(int64) {}, have: 3}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := started(9).resume(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
	must(t, f.Close())
	for what, do := range map[string]func() error{
		"resume":      func() error { return started(9).resume(t.Context()) },
		"resume none": func() error { return started(1).resume(t.Context()) },
		"restart":     func() error { return started(9).restart() },
		"run":         func() error { return started(9).run(t.Context()) },
	} {
		if err := do(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s with a file that is closed: %v", what, err)
		}
	}
	if err := flock(t.Context(), f); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the lock of a file that is closed: %v", err)
	}
}

// TestNothingStaysOpen: no call leaves a file open, whether it succeeds or fails.
func TestNothingStaysOpen(t *testing.T) {
	s := images(t)
	img := imported(t, s, "app", "text")
	dir := t.TempDir()
	put(t, dir, "text", "no image", 0o600)
	put(t, dir, "program", "#!/bin/sh\n", 0o755)
	unlock, err := s.lock(t.Context())
	must(t, err)
	defer unlock()
	ended := func() context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	for what, do := range map[string]func() error{
		"libraries":    func() error { return notEmpty(libraryDirs()) },
		"lock":         func() error { return fails(failed(s.lock(ended()))) },
		"program":      func() error { return closed(openProgram(filepath.Join(dir, "program"))) },
		"directory":    func() error { return fails(closed(openProgram(dir))) },
		"resolve":      func() error { return failed(s.Resolve(t.Context(), "app", Need{MountPoints: []string{"/mnt"}})) },
		"resolve file": func() error { return fails(failed(s.Resolve(t.Context(), "app", Need{MountPoints: []string{"/x/y"}}))) },
		"inspect":      func() error { return failed(s.Inspect("app")) },
		"import": func() error {
			return failed(s.Import(t.Context(), "again", filepath.Join(dir, "program"), ImportOptions{}))
		},
		"import dir":     func() error { return failed(s.Import(t.Context(), "dir", dir, ImportOptions{})) },
		"import missing": func() error { return fails(failed(s.Import(t.Context(), "x", dir+"/none", ImportOptions{}))) },
		"stream": func() error {
			return fails(failed(s.ImportStream(t.Context(), "x", strings.NewReader("text"), ImportOptions{})))
		},
		"base": func() error {
			return failed(s.BuildBase(t.Context(), "base", []string{dir + "/text"}, ImportOptions{}))
		},
		"prune":   func() error { return failed(s.Prune(t.Context(), PruneOptions{MaxBytes: 1 << 40})) },
		"record":  func() error { _, ok := s.oci.load(img.Digest); return unless(ok) },
		"damaged": func() error { return unless(len(s.oci.damaged()) == 0) },
		"temp": func() error {
			f, err := s.oci.temp("x-")
			if err == nil {
				err = f.Close()
			}
			return err
		},
	} {
		before := openFiles(t)
		err := do()
		if what == "import" { // it is no tar
			err = fails(err)
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if now := openFiles(t); now > before {
			t.Errorf("after %s %d files are open, before %d", what, now, before)
		}
	}
}

func failed[T any](v T, err error) error {
	if c, ok := any(v).(io.Closer); ok && err == nil {
		return c.Close()
	}
	return err
}

func closed[T any](f *os.File, _ T, err error) error {
	if err == nil {
		err = f.Close()
	}
	return err
}

func fails(err error) error {
	if err == nil {
		return errors.New("it did not fail")
	}
	return nil
}

func unless(ok bool) error {
	if !ok {
		return errors.New("it failed")
	}
	return nil
}

func notEmpty(list []string) error { return unless(len(list) > 0) }
