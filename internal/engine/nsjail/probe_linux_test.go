package nsjail_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/nsjail"
)

// with makes an engine of a program in the place of nsjail.
func with(t *testing.T, path string) *nsjail.Engine {
	t.Helper()
	dir := t.TempDir()
	e, err := nsjail.New(nsjail.Options{Program: path, StateDir: dir + "/state", RootsDir: dir + "/roots", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// TestProgramThatIsNotNsjail: what is no nsjail is not usable, and the report says what
// would be right.
func TestProgramThatIsNotNsjail(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct{ path, want string }{
		"none":    {filepath.Join(dir, "none"), "no such file"},
		"garbage": {script("garbage", "#!/bin/sh\nhead -c 5000 /dev/urandom\n"), "does not answer as nsjail does"},
		"flood":   {script("flood", "#!/bin/sh\nexec cat /dev/zero\n"), "does not answer as nsjail does"},
		"hangs":   {script("hangs", "#!/bin/sh\nexec sleep 600\n"), "does not answer"},
		"old":     {script("old", "#!/bin/sh\necho ' --chroot|-c VALUE'\n"), "has no --mode"},
		"text":    {script("text", "no program"), "does not"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := with(t, test.path).Probe(t.Context())
			if r.Usable || len(r.Problems) == 0 {
				t.Fatalf("report: %+v", r)
			}
			p := r.Problems[len(r.Problems)-1]
			if !strings.Contains(p.What, test.want) || !strings.Contains(p.Mend, "nsjail.path") || len(p.What) > 500 {
				t.Errorf("problem %+v, want one that says %q", p, test.want)
			}
		})
	}
}

// TestProgramThatIsGone between a probe and a create.
func TestProgramThatIsGone(t *testing.T) {
	usable(t)
	p := enginetest.Plan(t, enginetest.BuildImages(t, t.TempDir()))
	e := with(t, filepath.Join(t.TempDir(), "nsjail"))
	_, err := e.Create(t.Context(), p)
	if api.CodeOf(err) != api.CodeUnavailable || !strings.Contains(err.Error(), "nsjail") {
		t.Errorf("create without the binary: %v", err)
	}
	if left, _ := os.ReadDir(p.Dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// wrong are programs that say that they are nsjail and do something else. This very
// executable plays them, under a name: one that is a script could not be executed.
func wrong() map[string]func() {
	return map[string]func(){
		"nsjail-ends":    func() {},
		"nsjail-garbage": func() { os.Stderr.Write(make([]byte, 1<<20)); os.Exit(255) },
		"nsjail-dies":    func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) },
		"nsjail-hangs":   func() { <-time.After(10 * time.Minute) },
	}
}

// play is what the executable does under a name of wrong.
func play() {
	self, err := os.Executable()
	act := wrong()[filepath.Base(self)]
	if err != nil || act == nil {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "--help" {
		fmt.Println(" --mode --quiet --log_fd --time_limit --disable_rlimits --nice_level --disable_clone_newnet --chroot --rw --hostname" +
			" --user --group --pass_fd --cap --disable_proc --mount --bindmount_ro ")
	} else {
		act()
	}
	os.Exit(0)
}

// TestProgramsThatDoOtherThings than they are asked for: nothing is left of what was begun.
func TestProgramsThatDoOtherThings(t *testing.T) {
	usable(t)
	images := enginetest.BuildImages(t, t.TempDir())
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name := range wrong() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(path, self, 0o755); err != nil {
				t.Fatal(err)
			}
			e := with(t, path)
			if r := e.Probe(t.Context()); !r.Usable {
				t.Fatalf("not usable: %v", r.Problems)
			}
			p := enginetest.Plan(t, images)
			ctx, want := t.Context(), api.CodeInternal
			if name == "nsjail-hangs" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				want = api.CodeTimeout
			}
			_, err := e.Create(ctx, p)
			if api.CodeOf(err) != want || strings.Contains(err.Error(), "execute") {
				t.Errorf("create: %v", err)
			}
			if left, _ := os.ReadDir(p.Dir); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if left, _ := filepath.Glob("/sys/fs/cgroup/*/cloche-nsjail/" + p.Owner + "/" + p.ID); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
