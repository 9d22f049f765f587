//go:build linux

package spool_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/spool"
)

// tmpfs mounts a file system of the given size.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("spool-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("needs a mount: it fills a disk: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullDisk fills the disk under a log. Readers that are near go on, those
// who come later get a gap, and when there is room again so has the log.
func TestFullDisk(t *testing.T) {
	disk := tmpfs(t, "256k")
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(disk, "log")
		must(t, os.Mkdir(dir, 0o700))
		filler := filepath.Join(disk, "filler")
		o := spool.Options{Dir: dir, MaxBytes: 1 << 20, TailBytes: 64 << 10}
		l, m := open(t, o), newModel()
		w := newWriter(t, l)
		near := l.Reader(spool.ReadOptions{})
		var recs []spool.Record
		write := func(s string) error {
			m.add(api.Stdout, []byte(s))
			err := l.Append(w.next(api.Stdout, s))
			recs = append(recs, read(t, near)...)
			return err
		}
		block := strings.Repeat("x", 8000)
		for range 10 {
			must(t, write(block))
		}
		must(t, l.Err())
		must(t, os.WriteFile(filler, nil, 0o600))
		f, err := os.OpenFile(filler, os.O_WRONLY, 0)
		must(t, err)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		must(t, f.Close())

		failures := 0
		for range 30 {
			if err := write(block); err != nil {
				failures++
				if !errors.Is(err, syscall.ENOSPC) || !errors.Is(l.Err(), syscall.ENOSPC) {
					t.Fatalf("Append: %v; Err: %v", err, l.Err())
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if failures < 20 {
			t.Fatalf("%d failures", failures)
		}
		m.checkBoth(t, recs, 0, 0)
		late := read(t, l.Reader(spool.ReadOptions{}))
		m.checkBoth(t, late, 0, m.end())
		if n := len(late); late[n-1].Gap > 0 || late[n-1].Position < m.end()-64<<10 {
			t.Errorf("what is in memory is not read: %+v", late[n-1])
		}

		must(t, os.Remove(filler))
		time.Sleep(2 * time.Second)
		must(t, write("after"))
		must(t, l.Err())
		m.checkBoth(t, recs, 0, 0)
		must(t, l.Finish("exited"))
		m.checkBoth(t, read(t, l.Reader(spool.ReadOptions{})), 0, m.end())
		must(t, l.Close())
		l = open(t, o)
		again := read(t, l.Reader(spool.ReadOptions{}))
		m.checkBoth(t, again, 0, m.end())
		if got := text(again[len(again)-1:]); got != "after" {
			t.Errorf("on disk the log ends with %q", got)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 5 {
			t.Errorf("%d files, %v", len(files), err)
		}
	})
}

// TestFinishOnAFullDisk: the log is still finished for its readers.
func TestFinishOnAFullDisk(t *testing.T) {
	disk := tmpfs(t, "16k")
	l := open(t, spool.Options{Dir: disk})
	w := newWriter(t, l)
	if err := l.Append(w.next(api.Stdout, strings.Repeat("x", 64<<10))); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append: %v", err)
	}
	if err := l.Finish("exited"); err == nil {
		// A reason is small and may have fitted; what is lost is lost.
		t.Log("the reason was written")
	}
	if got := text(read(t, l.Reader(spool.ReadOptions{}))); len(got) != 64<<10 {
		t.Errorf("%d bytes", len(got))
	}
	if _, ok := l.Finished(); !ok {
		t.Error("not finished")
	}
}

// TestDirectoryIsGone: a log whose directory was removed goes on in memory.
func TestDirectoryIsGone(t *testing.T) {
	dir := t.TempDir()
	l := open(t, spool.Options{Dir: dir, MaxBytes: 16 << 10})
	w := newWriter(t, l)
	w.out("x")
	must(t, os.RemoveAll(dir))
	var failed error
	for range 10 {
		if err := l.Append(w.next(api.Stdout, strings.Repeat("y", 1000))); err != nil {
			failed = err
		}
	}
	if failed == nil || l.Err() == nil {
		t.Error("no error")
	}
	recs := read(t, l.Reader(spool.ReadOptions{}))
	if got := text(recs); !strings.HasSuffix(got, strings.Repeat("y", 1000)) {
		t.Errorf("%.100q", got)
	}
}
