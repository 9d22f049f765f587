package rulefile_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/rulefile"
)

// followed is a policy file that is followed, and what came of its changes.
type followed struct {
	t       *testing.T
	path    string
	hup     chan os.Signal
	mu      sync.Mutex
	took    []rules.Rules // guarded by mu
	refused []string      // guarded by mu
	fail    atomic.Bool
}

func (f *followed) used() []rules.Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.took)
}

func (f *followed) rejected() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.refused)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// follow runs fn in a bubble in which the file, which begins with text, is followed.
func follow(t *testing.T, text string, optional bool, fn func(f *followed)) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if text != "" {
		write(t, path, text)
	}
	synctest.Test(t, func(t *testing.T) {
		file := rulefile.File{Path: path, Optional: optional}
		began, err := file.Load()
		if err != nil {
			t.Fatal(err)
		}
		f := &followed{t: t, path: path, hup: make(chan os.Signal)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&rulefile.Follower{
				File: file, Began: began, Logger: slog.New(slog.DiscardHandler),
				Use: func(_ context.Context, r rules.Rules, digest string) error {
					if f.fail.Load() {
						return errors.New("the disk is full")
					}
					if len(digest) != 64 {
						t.Errorf("digest %q", digest)
					}
					f.mu.Lock()
					defer f.mu.Unlock()
					f.took = append(f.took, r)
					return nil
				},
				Reject: func(_ context.Context, _ string, err error) {
					f.mu.Lock()
					defer f.mu.Unlock()
					f.refused = append(f.refused, err.Error())
				},
			}).Run(ctx, f.hup)
		}()
		f.wait()
		if len(f.used())+len(f.rejected()) != 0 {
			t.Errorf("nothing changed, and used %v, rejected %q", f.used(), f.rejected())
		}
		fn(f)
		cancel()
		<-done
	})
}

// wait lets the follower look a few times.
func (f *followed) wait() {
	time.Sleep(5*rulefile.LookEvery + time.Millisecond)
	synctest.Wait()
}

func TestAChangedFileIsUsed(t *testing.T) {
	follow(t, "max_sandboxes: 1\n", false, func(f *followed) {
		write(t, f.path, "max_sandboxes: 20\n")
		f.wait()
		if len(f.used()) != 1 || f.used()[0].MaxSandboxes != 20 {
			t.Fatalf("used %+v", f.used())
		}
		// The way of editors: another file in its place.
		write(t, f.path+"~", "max_sandboxes: 21\n")
		if err := os.Rename(f.path+"~", f.path); err != nil {
			t.Fatal(err)
		}
		f.wait()
		if len(f.used()) != 2 || f.used()[1].MaxSandboxes != 21 || len(f.rejected()) != 0 {
			t.Fatalf("used %+v, rejected %q", f.used(), f.rejected())
		}
		// Touched, with the same in it.
		if err := os.Chtimes(f.path, time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		f.wait()
		if len(f.used()) != 2 {
			t.Error("the same rules were used again")
		}
	})
}

func TestAWrongFileLeavesTheOldRules(t *testing.T) {
	follow(t, "max_sandboxes: 1\n", false, func(f *followed) {
		write(t, f.path, "max_sandboxes: 2\nmax_sandboxs: 3\n")
		f.wait()
		f.wait()
		if len(f.used()) != 0 || len(f.rejected()) != 1 || !strings.Contains(f.rejected()[0], "line 2, column 1") {
			t.Fatalf("used %+v, rejected %q", f.used(), f.rejected())
		}
		f.hup <- os.Interrupt
		synctest.Wait()
		if len(f.rejected()) != 2 {
			t.Errorf("whoever asks is not told again: %q", f.rejected())
		}
		if err := os.Remove(f.path); err != nil {
			t.Fatal(err)
		}
		f.wait()
		if len(f.used()) != 0 || len(f.rejected()) != 3 {
			t.Fatalf("a removed file: used %+v, rejected %q", f.used(), f.rejected())
		}
		write(t, f.path, "max_sandboxes: 4\n")
		f.wait()
		if len(f.used()) != 1 || f.used()[0].MaxSandboxes != 4 {
			t.Errorf("mended: used %+v", f.used())
		}
	})
}

// TestAnOptionalFileThatIsGone: to remove the usual file opens nothing either.
func TestAnOptionalFileThatIsGone(t *testing.T) {
	follow(t, "", true, func(f *followed) {
		write(t, f.path, "enabled: false\n")
		f.wait()
		if len(f.used()) != 1 || f.used()[0].IsEnabled() {
			t.Fatalf("a new file: used %+v", f.used())
		}
		if err := os.Remove(f.path); err != nil {
			t.Fatal(err)
		}
		f.wait()
		if len(f.used()) != 1 || len(f.rejected()) != 1 {
			t.Errorf("used %+v, rejected %q", f.used(), f.rejected())
		}
		write(t, f.path, "")
		f.wait()
		if len(f.used()) != 1 || len(f.rejected()) != 2 {
			t.Errorf("an empty file: used %+v, rejected %q", f.used(), f.rejected())
		}
		write(t, f.path, "version: 1\n")
		f.wait()
		if len(f.used()) != 2 || !f.used()[1].IsEnabled() {
			t.Errorf("a file without rules: used %+v", f.used())
		}
	})
}

func TestASignalReadsAtOnce(t *testing.T) {
	follow(t, "max_sandboxes: 1\n", false, func(f *followed) {
		write(t, f.path, "max_sandboxes: 2\n")
		f.hup <- os.Interrupt
		synctest.Wait()
		if len(f.used()) != 1 {
			t.Errorf("used %+v", f.used())
		}
	})
}

// TestAFileInTheMaking is not read before it looks the same twice.
func TestAFileInTheMaking(t *testing.T) {
	follow(t, "enabled: false\n", false, func(f *followed) {
		text := "enabled: true\n"
		for i := range len(text) {
			write(t, f.path, text[:i])
			time.Sleep(rulefile.LookEvery)
			synctest.Wait()
		}
		if len(f.used())+len(f.rejected()) != 0 {
			t.Errorf("read half: used %+v, rejected %q", f.used(), f.rejected())
		}
		write(t, f.path, text)
		f.wait()
		if len(f.used()) != 1 || !f.used()[0].IsEnabled() {
			t.Errorf("used %+v", f.used())
		}
	})
}

func TestRulesThatCannotBeRecordedAreTriedAgain(t *testing.T) {
	follow(t, "max_sandboxes: 1\n", false, func(f *followed) {
		f.fail.Store(true)
		write(t, f.path, "max_sandboxes: 2\n")
		f.wait()
		if len(f.used()) != 0 {
			t.Fatal("used")
		}
		f.fail.Store(false)
		f.wait()
		if len(f.used()) != 1 {
			t.Error("not tried again")
		}
	})
}

func TestLoadRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "none")} {
		if _, err := (rulefile.File{Path: path}).Load(); err == nil {
			t.Errorf("loaded %s", path)
		}
	}
	if got, err := (rulefile.File{Path: filepath.Join(dir, "none"), Optional: true}).Load(); err != nil || got.Digest != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A file that is empty, or was cut to nothing, is no policy without rules.
func TestAnEmptyFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	for text, ok := range map[string]bool{"": false, "\n": false, "# all of it\n": false, "---\n": false, "version: 1\n": true, "engine: auto\n": true} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := rulefile.File{Path: path, Optional: true}.Load()
		if ok != (err == nil) || loaded.Digest == "" {
			t.Errorf("%q: %v, digest %q", text, err, loaded.Digest)
		}
	}
}
