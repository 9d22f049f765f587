package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// layers skips where no layer can be made.
func layers(t *testing.T) {
	t.Helper()
	if err := workspace.LayersUsable(); err != nil {
		t.Skipf("needs root and an overlay filesystem: %v", err)
	}
}

// tree is what a directory looks like to who reads it: each path with type, mode,
// owner and content, and the directories' times not.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		text := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		switch {
		case d.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += " " + string(b)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += " -> " + target
		}
		rel, err := filepath.Rel(dir, p)
		out[rel] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// over is a workspace with a layer that is mounted.
type over struct {
	t     *testing.T
	dir   *workspace.Dir
	lower string
	layer *workspace.Layer
	path  string // the layer's own directory
	// seen is where both are seen.
	seen   string
	unseat func()
}

func newOver(t *testing.T, base string) *over {
	t.Helper()
	layers(t)
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if base == "" {
		base = home
	}
	o := &over{t: t, lower: filepath.Join(base, "lower"), path: filepath.Join(home, "layer")}
	var err error
	if o.dir, err = workspace.Private(o.lower); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.dir.Close() })
	if err := os.Mkdir(filepath.Join(home, "staging"), 0o700); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *over) mount() {
	o.t.Helper()
	var err error
	if o.layer, err = workspace.MakeLayer(o.t.Context(), o.path, o.dir); err != nil {
		o.t.Fatal(err)
	}
	staged, err := o.layer.Stage(o.dir, filepath.Join(filepath.Dir(o.path), "staging"))
	if err != nil {
		o.t.Fatal(err)
	}
	o.seen = staged.Path
	done := false
	o.unseat = func() {
		if !done {
			done = true
			if err := staged.Close(); err != nil {
				o.t.Error(err)
			}
		}
	}
	o.t.Cleanup(o.unseat)
}

func (o *over) diff() map[string]api.ChangeKind {
	o.t.Helper()
	list, err := o.layer.Diff(o.t.Context(), o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	if !slices.IsSortedFunc(list, func(a, b api.Change) int { return strings.Compare(workspace.RawPath(a), workspace.RawPath(b)) }) {
		o.t.Errorf("the changes are not sorted: %v", list)
	}
	out := map[string]api.ChangeKind{}
	for _, c := range list {
		out[workspace.RawPath(c)] = c.Kind
	}
	return out
}

// wanted is what a diff has to say about a tree as it was and as it is: of what was
// removed only the top.
func wanted(before, after map[string]string) map[string]api.ChangeKind {
	out := map[string]api.ChangeKind{}
	for p, is := range after {
		switch was, there := before[p]; {
		case !there:
			out[p] = api.ChangeAdded
		case was != is:
			out[p] = api.ChangeChanged
		}
	}
	for p := range before {
		dir := filepath.Dir(p)
		top := dir == "." || strings.HasPrefix(after[dir], "4") // a directory is there still
		if _, there := after[p]; !there && top {
			out[p] = api.ChangeRemoved
		}
	}
	return out
}

// fumble changes a tree in a way that a sandbox might.
func fumble(r *rand.Rand, dir string) {
	names := []string{"a", "b", "c", "odd \xff\nname", "d"}
	at := func() string {
		p := dir
		for range 1 + r.IntN(3) {
			p = filepath.Join(p, names[r.IntN(len(names))])
		}
		return p
	}
	p := at()
	switch r.IntN(9) {
	case 0, 1:
		_ = os.MkdirAll(p, 0o755)
	case 2, 3:
		_ = os.WriteFile(p, []byte(fmt.Sprint(r.IntN(1000))), 0o644)
	case 4:
		_ = os.RemoveAll(p)
	case 5:
		_ = os.Symlink(names[r.IntN(len(names))], p)
	case 6:
		if fi, err := os.Lstat(p); err == nil && fi.Mode().Type() != fs.ModeSymlink {
			_ = os.Chmod(p, fs.FileMode(0o600+r.IntN(64)))
			_ = os.Lchown(p, r.IntN(3), r.IntN(3))
		}
	case 7:
		_ = os.Rename(p, at())
	case 8:
		if fi, err := os.Lstat(p); err == nil && fi.Mode().IsRegular() {
			if f, err := os.OpenFile(p, os.O_RDWR, 0); err == nil {
				f.Close() // is copied up, and is the same
			}
		}
	}
}

// TestLayerAgainstModel: whatever is done to a layered workspace, the diff says what
// two walks say, and the commit leaves what was seen.
func TestLayerAgainstModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			o := newOver(t, "")
			for range 30 {
				fumble(r, o.lower)
			}
			for range 2 { // the second layer is over what the first left
				before := tree(t, o.lower)
				o.mount()
				for range 60 {
					fumble(r, o.seen)
				}
				after := tree(t, o.seen)
				if got, want := o.diff(), wanted(before, after); !maps.Equal(got, want) {
					t.Fatalf("the diff says\n%q\nthe walks say\n%q", got, want)
				}
				o.unseat()
				if !maps.Equal(tree(t, o.lower), before) {
					t.Fatal("the workspace changed before the commit")
				}
				if err := o.layer.Commit(t.Context(), o.dir); err != nil {
					t.Fatal(err)
				}
				if got := tree(t, o.lower); !maps.Equal(got, after) {
					t.Fatalf("after the commit there is\n%q\nseen was\n%q", got, after)
				}
				if left := o.diff(); len(left) != 0 || o.layer.Unfinished() {
					t.Fatalf("after the commit the layer still has %v, unfinished: %v", left, o.layer.Unfinished())
				}
			}
		})
	}
}

// TestCommitThatIsInterrupted: wherever a commit stops, another one finishes it.
func TestCommitThatIsInterrupted(t *testing.T) {
	stop := errors.New("stop")
	for _, other := range []bool{false, true} {
		base := ""
		if other {
			layers(t)
			base = memoryDisk(t) // another filesystem than the layer's
		}
		for point := 1; ; point++ {
			o := newOver(t, base)
			if other {
				t.Cleanup(func() { _ = workspace.RemoveTree(o.lower) })
			}
			r := rand.New(rand.NewPCG(7, 7))
			for range 40 {
				fumble(r, o.lower)
			}
			o.mount()
			for range 60 {
				fumble(r, o.seen)
			}
			after := tree(t, o.seen)
			o.unseat()
			step := 0
			workspace.SetTrap(o.layer, func(string) error {
				if step++; step == point {
					return stop
				}
				return nil
			})
			err := o.layer.Commit(t.Context(), o.dir)
			if err == nil {
				if point < 10 {
					t.Errorf("the commit took only %d steps", point)
				}
				break
			}
			if !errors.Is(err, stop) {
				t.Fatal(err)
			}
			again, err := workspace.OpenLayer(o.path, o.dir) // as the next daemon does
			if err != nil {
				t.Fatal(err)
			}
			if !again.Unfinished() {
				t.Fatalf("stopped at step %d, and nobody would finish it", point)
			}
			if err := again.Discard(o.dir); api.CodeOf(err) != api.CodeState {
				t.Errorf("a rollback of what is half committed: %v", err)
			}
			if err := again.Commit(t.Context(), o.dir); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, o.lower); !maps.Equal(got, after) {
				t.Fatalf("stopped at step %d and finished, there is\n%q\nseen was\n%q", point, got, after)
			}
			if again.Unfinished() {
				t.Error("it is finished, and says that it is not")
			}
			if other {
				_ = workspace.RemoveTree(o.lower)
			}
		}
	}
}

// memoryDisk mounts a small filesystem in memory.
func memoryDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		t.Skipf("needs root: a filesystem of its own cannot be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestCommitLosesSetID: a file that a layer has of a set-id one below, and one that was
// moved into a new directory, are not set-id in the workspace, where the host executes
// them. A directory that is set-group-ID stays so.
func TestCommitLosesSetID(t *testing.T) {
	for _, other := range []bool{false, true} {
		base := ""
		if other {
			layers(t)
			base = memoryDisk(t)
		}
		o := newOver(t, base)
		if other {
			t.Cleanup(func() { _ = workspace.RemoveTree(o.lower) })
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"changed", "moved", "untouched"} {
			check(os.WriteFile(filepath.Join(o.lower, name), []byte("before"), 0o755))
			check(unix.Chmod(filepath.Join(o.lower, name), 0o6755))
		}
		o.mount()
		check(os.WriteFile(filepath.Join(o.seen, "changed"), []byte("after"), 0o755))
		check(unix.Chmod(filepath.Join(o.seen, "changed"), 0o4711))
		check(os.MkdirAll(filepath.Join(o.seen, "new", "deep"), 0o755))
		check(unix.Chmod(filepath.Join(o.seen, "new"), 0o2775))
		check(os.Rename(filepath.Join(o.seen, "moved"), filepath.Join(o.seen, "new", "deep", "moved")))
		o.unseat()
		check(o.layer.Commit(t.Context(), o.dir))
		for name, want := range map[string]uint32{"changed": 0o711, "new": 0o2775, "new/deep/moved": 0o755, "untouched": 0o6755} {
			var st unix.Stat_t
			check(unix.Lstat(filepath.Join(o.lower, name), &st))
			if st.Mode&0o7777 != want {
				t.Errorf("from another filesystem: %v: %s has mode %o, want %o", other, name, st.Mode&0o7777, want)
			}
		}
	}
}

func TestRollback(t *testing.T) {
	o := newOver(t, "")
	r := rand.New(rand.NewPCG(3, 3))
	for range 30 {
		fumble(r, o.lower)
	}
	before := tree(t, o.lower)
	o.mount()
	for range 30 {
		fumble(r, o.seen)
	}
	o.unseat()
	if err := o.layer.Discard(o.dir); err != nil {
		t.Fatal(err)
	}
	if got := o.diff(); len(got) != 0 {
		t.Errorf("after the rollback the layer still has %v", got)
	}
	if !maps.Equal(tree(t, o.lower), before) {
		t.Error("the rollback changed the workspace")
	}
}

// TestLayerIsCarefullyMounted: a set-user-ID bit and a device mean nothing in it.
func TestLayerIsCarefullyMounted(t *testing.T) {
	o := newOver(t, "")
	o.mount()
	var st unix.Statfs_t
	if err := unix.Statfs(o.seen, &st); err != nil {
		t.Fatal(err)
	}
	if st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
		t.Errorf("its flags are %#x, without nosuid or nodev", st.Flags)
	}
	if err := os.Mkdir(filepath.Join(o.lower, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.unseat()
	o.mount()
	if err := os.Rename(filepath.Join(o.seen, "old"), filepath.Join(o.seen, "new")); !errors.Is(err, unix.EXDEV) {
		t.Errorf("renaming a directory that was there before: %v", err)
	}
}

func TestDiffTellsSizes(t *testing.T) {
	o := newOver(t, "")
	if err := os.WriteFile(filepath.Join(o.lower, "f"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	o.mount()
	if err := os.WriteFile(filepath.Join(o.seen, "f"), []byte("longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.seen, "\xff"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := o.layer.Diff(t.Context(), o.dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []api.Change{
		{Path: "f", Kind: api.ChangeChanged, Type: api.TypeFile, Size: 6, OldSize: 3},
		{Path: "\uFFFD", PathBytes: []byte("\xff"), Kind: api.ChangeAdded, Type: api.TypeFile},
	}
	if fmt.Sprint(list) != fmt.Sprint(want) {
		t.Errorf("the changes are %+v, want %+v", list, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.layer.Diff(ctx, o.dir); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestTooDeep: what could never be gone through to its end is refused before
// anything is changed.
func TestTooDeep(t *testing.T) {
	o := newOver(t, "")
	o.mount()
	dir, err := os.OpenRoot(o.seen)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if err := dir.Mkdir("d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := dir.OpenRoot("d")
		dir.Close()
		if err != nil {
			t.Fatal(err)
		}
		dir = next
	}
	dir.Close()
	o.unseat()
	if err := o.layer.Commit(t.Context(), o.dir); api.CodeOf(err) != api.CodeTooLarge {
		t.Errorf("the commit of a very deep tree: %v", err)
	}
	if o.layer.Unfinished() {
		t.Error("it was refused, and begun all the same")
	}
	if err := o.layer.Discard(o.dir); err != nil {
		t.Error(err)
	}
}

// TestDiffSkipsHoles: what a sandbox makes large without writing takes no time.
func TestDiffSkipsHoles(t *testing.T) {
	o := newOver(t, "")
	grow := func(dir, tail string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_CREATE|os.O_RDWR, 0o644)
		must(t, err)
		defer f.Close()
		_, err = f.WriteAt([]byte(tail), 8<<40-1)
		must(t, err)
	}
	grow(o.lower, "x")
	must(t, os.WriteFile(filepath.Join(o.lower, "g"), make([]byte, 1<<20), 0o644))
	must(t, os.WriteFile(filepath.Join(o.lower, "h"), make([]byte, 1<<20), 0o644))
	o.mount()
	grow(o.seen, "x") // is copied up, and is the same
	for _, name := range []string{"g", "h"} {
		must(t, os.Remove(filepath.Join(o.seen, name)))
		must(t, os.WriteFile(filepath.Join(o.seen, name), nil, 0o644))
		must(t, os.Truncate(filepath.Join(o.seen, name), 1<<20)) // zeros, and no data
	}
	f, err := os.OpenFile(filepath.Join(o.seen, "h"), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("y"), 1<<20-1)
	must(t, errors.Join(err, f.Close()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list, err := o.layer.Diff(ctx, o.dir)
	if err != nil || len(list) != 1 || list[0].Path != "h" {
		t.Errorf("the changes are %v, %v", list, err)
	}
	o.unseat()
	o.mount()
	grow(o.seen, "y")
	if got := o.diff(); got["f"] != api.ChangeChanged {
		t.Errorf("the changes are %v", got)
	}
}

// boundOver is a workspace with bounds, and a layer that is mounted.
func boundOver(t *testing.T, b workspace.Bounds) (*over, func()) {
	t.Helper()
	needDisks(t)
	o := newOver(t, "")
	must(t, o.dir.Close())
	home := filepath.Dir(o.path)
	disk := filepath.Join(home, api.NewID("d-")+".ext4")
	open := func() {
		dir, err := workspace.PrivateDisk(disk, filepath.Join(home, "staging"), b)
		must(t, err)
		o.dir, o.lower = dir, dir.Path()
	}
	open()
	t.Cleanup(func() { _ = o.dir.Close() })
	return o, func() { must(t, o.dir.Close()); open() }
}

// TestLayerWithinBounds: what a layer holds is within the bounds of the workspace.
func TestLayerWithinBounds(t *testing.T) {
	o, again := boundOver(t, workspace.Bounds{SizeBytes: 8 << 20, Inodes: 1000})
	must(t, os.WriteFile(filepath.Join(o.lower, "old"), make([]byte, 3<<20), 0o644))
	o.mount()
	if got := fill(t, o.seen); got > 5<<20 || got < 4<<20 {
		t.Errorf("%d bytes fit beside 3 MiB of 8", got)
	}
	if f, err := os.OpenFile(filepath.Join(o.seen, "old"), os.O_RDWR, 0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("what is to be changed is copied up: %v", errors.Join(err, f.Close()))
	}
	must(t, os.Remove(filepath.Join(o.seen, "fill")))
	must(t, os.WriteFile(filepath.Join(o.seen, "new"), []byte("new"), 0o644))
	o.unseat()
	again() // as the next daemon does
	layer, err := workspace.OpenLayer(o.path, o.dir)
	must(t, err)
	o.layer = layer
	if got := o.diff(); len(got) != 1 || got["new"] != api.ChangeAdded {
		t.Errorf("the changes are %v", got)
	}
	must(t, layer.Commit(t.Context(), o.dir))
	again()
	if b, err := os.ReadFile(filepath.Join(o.lower, "new")); string(b) != "new" {
		t.Errorf("the workspace has %q, %v", b, err)
	}
	// A layer whose sandbox has gone has no owner.
	o.mount()
	must(t, os.WriteFile(filepath.Join(o.seen, "left"), nil, 0o644))
	o.unseat()
	again()
	must(t, o.dir.DropLayer(t.Context()))
	if _, err := workspace.OpenLayer(o.path, o.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there still: %v", err)
	}
}

// TestCommitWithoutSpace: a commit that could stop halfway is refused before it has
// changed anything, and all that is refused can be rolled back.
func TestCommitWithoutSpace(t *testing.T) {
	o, _ := boundOver(t, workspace.Bounds{SizeBytes: 4 << 20, Inodes: 1000})
	must(t, os.Mkdir(filepath.Join(o.lower, "d"), 0o755))
	o.mount()
	for i := range 900 {
		must(t, os.WriteFile(filepath.Join(o.seen, "d", fmt.Sprintf("%s-%04d", strings.Repeat("n", 200), i)), nil, 0o644))
	}
	fill(t, o.seen)
	o.unseat()
	before := tree(t, o.lower)
	err := o.layer.Commit(t.Context(), o.dir)
	if api.CodeOf(err) != api.CodeNoCapacity || o.layer.Unfinished() {
		t.Errorf("the commit came to %v, unfinished: %v", err, o.layer.Unfinished())
	}
	if !maps.Equal(tree(t, o.lower), before) {
		t.Error("it was refused, and changed something")
	}
	must(t, o.layer.Discard(o.dir))
	// With room for the names alone it goes through. How large a directory becomes is
	// not the same each time: the filesystem spreads names by a hash with a seed.
	o.mount()
	for i := range 900 {
		must(t, os.WriteFile(filepath.Join(o.seen, "d", fmt.Sprintf("%s-%04d", strings.Repeat("n", 200), i)), nil, 0o644))
	}
	must(t, os.WriteFile(filepath.Join(o.seen, "room"), make([]byte, 800<<10), 0o644))
	fill(t, o.seen)
	must(t, os.Remove(filepath.Join(o.seen, "room")))
	o.unseat()
	after := len(tree(t, o.lower))
	if err := o.layer.Commit(t.Context(), o.dir); err != nil {
		t.Fatal(err)
	}
	if got := len(tree(t, o.lower)); got != after+901 {
		t.Errorf("%d paths after the commit, want %d", got, after+901)
	}
}
