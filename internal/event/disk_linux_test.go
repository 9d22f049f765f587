//go:build linux

package event_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/event"
)

// TestFullDisk: what cannot be written is read from memory, Err says so, and
// all of it is on disk when there is room again.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("event-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs a mount: it fills a disk: ", err)
	}
	defer func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "events")
		l := open(t, event.Options{Path: path})
		publish(l, 1, 10)
		must(t, l.Err())
		filler, err := os.OpenFile(filepath.Join(dir, "filler"), os.O_WRONLY|os.O_CREATE, 0o600)
		must(t, err)
		for err == nil {
			_, err = filler.Write(make([]byte, 4096))
		}
		must(t, filler.Close())
		publish(l, 11, 100)
		if err := l.Err(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("Err: %v", err)
		}
		time.Sleep(2 * time.Second)
		publish(l, 111, 1)
		if err := l.Err(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("Err: %v", err)
		}
		if got := read(t, l, api.EventOptions{}); len(got) != 111 || got[110].Missed != 0 {
			t.Fatalf("%s", show(got))
		}
		must(t, os.Remove(filepath.Join(dir, "filler")))
		time.Sleep(2 * time.Second)
		publish(l, 112, 1)
		must(t, l.Err())
		all := read(t, l, api.EventOptions{})
		again := open(t, event.Options{Path: path}) // as a kill leaves it
		if got := read(t, again, api.EventOptions{}); len(got) != 112 || !reflect.DeepEqual(got, all) {
			t.Errorf("%s", show(got))
		}
		must(t, again.Close())
		must(t, l.Close())
	})
}
