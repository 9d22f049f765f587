package workspace_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// needDisks skips where the kernel cannot hold a workspace to its bounds.
func needDisks(t *testing.T) {
	t.Helper()
	needRoot(t)
	if can := workspace.HardQuota(t.TempDir()); !can.OK {
		t.Skip("needs loop devices and ext4: " + can.Reason)
	}
}

// loops lists the loop devices that have a file below dir.
func loops(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(t, err)
	var out []string
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), dir) {
			out = append(out, f)
		}
	}
	return out
}

// fill writes until there is no more room and returns how much there was.
func fill(t *testing.T, dir string) int64 {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	must(t, err)
	defer f.Close()
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	var total int64
	for {
		n, err := f.Write(chunk)
		if total += int64(n); errors.Is(err, unix.ENOSPC) {
			return total
		}
		must(t, err)
	}
}

func TestDiskHoldsItsBounds(t *testing.T) {
	needDisks(t)
	for i, bounds := range []workspace.Bounds{
		{SizeBytes: 1 << 20, Inodes: 256},
		{SizeBytes: 8 << 20, Inodes: 100},
		{SizeBytes: 3<<20 + 5, Inodes: 1},
		{SizeBytes: 126 << 20, Inodes: 3000}, // its tables do not fit the first group
		{SizeBytes: 300 << 20, Inodes: 500},
	} {
		t.Run(fmt.Sprintf("%d bytes %d files", bounds.SizeBytes, bounds.Inodes), func(t *testing.T) {
			home := tempDir(t)
			disk := filepath.Join(home, fmt.Sprintf("disk-%d-of-this-test.ext4", i))
			d, err := workspace.PrivateDisk(disk, home, bounds)
			must(t, err)
			holds(t, d.Path(), disk, bounds)
			must(t, d.Close())
			if left := loops(t, home); len(left) != 0 {
				t.Errorf("loop devices are left: %v", left)
			}
			if entries, _ := filepath.Glob(home + "/m-*"); len(entries) != 0 {
				t.Errorf("mount points are left: %v", entries)
			}
			fsck(t, disk)
		})
	}
}

// holds fails when not exactly what is in bounds goes into the empty dir.
func holds(t *testing.T, dir, disk string, bounds workspace.Bounds) {
	t.Helper()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("an empty workspace has %v, %v", entries, err)
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	if st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
		t.Errorf("mount flags %#x, want nosuid and nodev", st.Flags)
	}
	// A large file has blocks of its own for where it lies.
	if n := fill(t, dir); n < bounds.SizeBytes*99/100 || n > bounds.SizeBytes*102/100+16<<10 {
		t.Errorf("%d bytes went into %d", n, bounds.SizeBytes)
	}
	unix.Sync()
	full := taken(t, disk)
	must(t, os.Remove(filepath.Join(dir, "fill")))
	unix.Sync()
	if now := taken(t, disk); now > full-bounds.SizeBytes*9/10 {
		t.Errorf("it takes %d bytes when it is full, and %d when it is empty again", full, now)
	}
	n := 0
	for ; ; n++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(n)))
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		must(t, err)
		must(t, f.Close())
	}
	// Very few files are rounded up to what a group of blocks has.
	if least := bounds.SizeBytes >> 20; int64(n) != bounds.Inodes && (bounds.Inodes > least || int64(n) < bounds.Inodes) {
		t.Errorf("%d files went in, want %d", n, bounds.Inodes)
	}
}

// taken is what a file takes of its disk, in bytes.
func taken(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

// A sandbox may do to its own directory what it likes: the next one still
// gets it, and so does a reader of its use.
func TestFilesOfAnyOwner(t *testing.T) {
	needDisks(t)
	s, home := store(t)
	for name, b := range map[string]workspace.Bounds{"plain": {}, "bounded": {SizeBytes: 1 << 20, Inodes: 10}} {
		w := wish(name)
		w.Bounds = b
		_, err := s.Attach(w, writer("a"))
		must(t, err)
		for range 2 {
			d, err := s.Open("local", name, home)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var st unix.Stat_t
			must(t, unix.Stat(d.Path(), &st))
			if st.Mode&0o7777 != 0o777 {
				t.Errorf("%s: mode %#o", name, st.Mode)
			}
			must(t, os.Chown(d.Path(), 1234, 4321))
			must(t, os.Chmod(d.Path(), 0))
			must(t, workspace.Measure(t.Context(), d, workspace.Bounds{Inodes: 1}))
			must(t, d.Close())
		}
		must(t, s.Detach("local", name, "d-1", "a", false))
		must(t, s.Remove("local", name))
	}
	path := filepath.Join(home, "private")
	for range 2 {
		d, err := workspace.Private(path)
		must(t, err)
		must(t, os.Chown(path, 1234, 4321))
		must(t, d.Close())
	}
}

// A home that is full is said to be that, and leaves nothing.
func TestNoSpace(t *testing.T) {
	needDisks(t)
	home := tempDir(t)
	must(t, unix.Mount("tmpfs", home, "tmpfs", 0, "size=1m,mode=0700"))
	defer unix.Unmount(home, unix.MNT_DETACH)
	s, err := workspace.Open(home)
	must(t, err)
	_, err = s.Create(wish("before"))
	must(t, err)
	fill(t, home)
	w := wish("bounded")
	w.Bounds = workspace.Bounds{SizeBytes: 1 << 30, Inodes: 1000}
	_, err = s.Create(w)
	code(t, "with bounds", err, api.CodeNoCapacity)
	_, err = s.Attach(wish("before"), writer("a"))
	code(t, "attach", err, api.CodeNoCapacity)
	_, err = workspace.PrivateDisk(filepath.Join(home, "private-of-this-test.ext4"), home, w.Bounds)
	code(t, "private", err, api.CodeNoCapacity)
	must(t, os.Remove(filepath.Join(home, "fill")))
	l, err := s.List(func(string) bool { return true })
	if err != nil || len(l) != 1 || len(l[0].Sandboxes) != 0 {
		t.Errorf("it has %+v, %v", l, err)
	}
	_, err = s.Create(w)
	must(t, err)
}

func fsck(t *testing.T, disk string) {
	t.Helper()
	path, err := exec.LookPath("/usr/sbin/e2fsck")
	if err != nil {
		t.Log("no e2fsck: the disk is not checked")
		return
	}
	if out, err := exec.CommandContext(t.Context(), path, "-fn", disk).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A disk that is used has one loop device, whichever process opens it, and none when the
// last has gone: what staged mounts need is enough to keep it.
func TestDiskIsAttachedOnce(t *testing.T) {
	needDisks(t)
	s, home := store(t)
	w := wish("data")
	w.Bounds = workspace.Bounds{SizeBytes: 16 << 20, Inodes: 500}
	info, err := s.Attach(w, reader("a"))
	must(t, err)
	if info.Enforced != api.HeldByKernel || info.SizeBytes != 16<<20 || info.Inodes != 500 {
		t.Errorf("made %+v", info)
	}
	var staged []*workspace.Staged
	for range 3 {
		d, err := s.Open("local", "data", home)
		must(t, err)
		place := filepath.Join(home, api.NewID("staging-"))
		must(t, os.Mkdir(place, 0o700))
		st, err := d.Stage(place, false)
		must(t, err)
		must(t, d.Close())
		staged = append(staged, st)
	}
	if n := len(loops(t, home)); n != 1 {
		t.Errorf("%d loop devices for one disk", n)
	}
	must(t, os.WriteFile(filepath.Join(staged[0].Path, "f"), make([]byte, 1<<20), 0o600))
	if fi, err := os.Stat(filepath.Join(staged[2].Path, "f")); err != nil || fi.Size() != 1<<20 {
		t.Errorf("another mount of the disk: %v", err)
	}
	unix.Sync()
	used := func(when string) {
		info, err := s.Get("local", "data")
		must(t, err)
		if info.UsedBytes == nil || *info.UsedBytes < 1<<20 || *info.UsedBytes > 1<<20+64<<10 || *info.UsedInodes != 1 {
			t.Errorf("%s it holds %v bytes, %v files", when, deref(info.UsedBytes), deref(info.UsedInodes))
		}
	}
	used("while it is mounted")
	for _, st := range staged {
		must(t, st.Close())
	}
	if left := loops(t, home); len(left) != 0 {
		t.Errorf("loop devices are left: %v", left)
	}
	used("when nobody has it")
	w.Bounds.SizeBytes = 32 << 20
	must(t, s.Detach("local", "data", "d-1", "a", false))
	_, err = s.Attach(w, writer("a"))
	code(t, "another size", err, api.CodeConflict)
	must(t, s.Remove("local", "data"))
	if left, _ := filepath.Glob(filepath.Join(home, "workspaces", "local", ".cloche", "*.ext4")); len(left) != 0 {
		t.Errorf("left of the disk: %v", left)
	}
}

func deref(p *int64) any {
	if p == nil {
		return nil
	}
	return *p
}

// A process that is killed with the disk mounted at a mount point leaves nothing
// that a sweep does not find.
func TestDiskLeftIsSwept(t *testing.T) {
	needDisks(t)
	home := tempDir(t)
	_, err := workspace.PrivateDisk(filepath.Join(home, "disk-left.ext4"), home, workspace.Bounds{SizeBytes: 1 << 20, Inodes: 10})
	must(t, err) // and never closed
	if len(loops(t, home)) != 1 {
		t.Fatal("the disk has no loop device")
	}
	must(t, workspace.SweepStaging(home))
	if left, _ := filepath.Glob(home + "/m-*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMeasure(t *testing.T) {
	dir := tempDir(t)
	must(t, os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1000), 0o600))
	must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "again")))
	must(t, os.MkdirAll(filepath.Join(dir, "d/e/f"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "d/e/f/b"), make([]byte, 24), 0o600))
	must(t, os.Symlink("/usr/bin/python3", filepath.Join(dir, "link"))) // 16 bytes of itself
	d, err := workspace.OpenDir(dir)
	must(t, err)
	defer d.Close()
	for _, c := range []struct {
		limit workspace.Bounds
		unit  api.QuotaUnit
	}{
		{workspace.Bounds{}, ""},
		{workspace.Bounds{SizeBytes: 1040}, ""},
		{workspace.Bounds{SizeBytes: 1039}, api.QuotaBytes},
		{workspace.Bounds{Inodes: 6}, ""},
		{workspace.Bounds{Inodes: 5}, api.QuotaInodes},
		{workspace.Bounds{SizeBytes: 1040, Inodes: 6}, ""},
	} {
		err := workspace.Measure(t.Context(), d, c.limit)
		e, over := errors.AsType[*api.Error](err)
		switch {
		case c.unit == "" && err != nil:
			t.Errorf("%+v: %v", c.limit, err)
		case c.unit == "":
		case !over || e.Code != api.CodeQuota || e.Quota == nil || e.Quota.Unit != c.unit || e.Quota.Used <= e.Quota.Limit || e.Hint == "":
			t.Errorf("%+v: %#v", c.limit, err)
		}
	}
}

// A file that vanishes during a look does not count, and is no error.
func TestMeasureWhileFilesVanish(t *testing.T) {
	dir := tempDir(t)
	d, err := workspace.OpenDir(dir)
	must(t, err)
	defer d.Close()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			sub := filepath.Join(dir, fmt.Sprint(i%7))
			if err := errors.Join(os.MkdirAll(filepath.Join(sub, "a", "b"), 0o700), os.WriteFile(filepath.Join(sub, "a", "f"), []byte("x"), 0o600), os.RemoveAll(sub)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 2000 {
		if err := workspace.Measure(t.Context(), d, workspace.Bounds{SizeBytes: 1 << 20, Inodes: 100}); err != nil {
			t.Errorf("while files come and go: %v", err)
			break
		}
	}
	close(done)
	wg.Wait()
}

func TestMeasureRefusesWhatItCannotCount(t *testing.T) {
	dir := tempDir(t)
	at := dir
	for range 600 {
		at = filepath.Join(at, "d")
		must(t, os.Mkdir(at, 0o700))
	}
	d, err := workspace.OpenDir(dir)
	must(t, err)
	defer d.Close()
	if err := workspace.Measure(t.Context(), d, workspace.Bounds{SizeBytes: 1 << 40}); !errors.Is(err, api.ErrQuota) || !strings.Contains(err.Error(), "nested") {
		t.Errorf("600 levels: %v", err)
	}
}

// A home on memory, where what is written cannot go past the page cache.
func TestDiskOnTmpfs(t *testing.T) {
	needDisks(t)
	home := tempDir(t)
	must(t, unix.Mount("tmpfs", home, "tmpfs", 0, "size=64m,mode=0700"))
	defer unix.Unmount(home, unix.MNT_DETACH)
	d, err := workspace.PrivateDisk(filepath.Join(home, "disk-on-tmpfs.ext4"), home, workspace.Bounds{SizeBytes: 4 << 20, Inodes: 10})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(d.Path(), "f"), make([]byte, 1<<20), 0o600))
	must(t, d.Close())
}

func BenchmarkPrivateBounded(b *testing.B) {
	if !workspace.HardQuota(b.TempDir()).OK {
		b.Skip("needs loop devices and ext4")
	}
	home := filepath.Join(b.TempDir(), "h")
	if err := os.Mkdir(home, 0o700); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		d, err := workspace.PrivateBounded(filepath.Join(home, fmt.Sprintf("bench-%d-%d", os.Getpid(), i)), home, workspace.Bounds{SizeBytes: 1 << 30, Inodes: 65536})
		if err != nil {
			b.Fatal(err)
		}
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
