//go:build linux

package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSums: the checksum of a file counts until the file changes, or ten minutes have passed.
func TestSums(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reads, cancel := context.WithCancel(t.Context())
	cancel()
	var s Sums
	known := func(want bool) {
		t.Helper()
		_, _, err := s.Of(reads, f) // which fails if it has to read
		if want != (err == nil) || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("known: got %v, want %v", err, want)
		}
	}
	sum := func() string {
		t.Helper()
		size, text, err := s.Of(t.Context(), f)
		_, want, sumErr := Sum(t.Context(), f)
		if err != nil || sumErr != nil || size != 3 || text != want {
			t.Fatalf("got %d, %q, %v; want %q, %v", size, text, err, want, sumErr)
		}
		return text
	}
	first := sum()
	known(false) // it was written a moment ago, so another write could have the same time
	time.Sleep(2 * clockTick)
	sum()
	known(true)

	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	write("two")
	if err := os.Chtimes(path, fi.ModTime(), fi.ModTime()); err != nil {
		t.Fatal(err)
	}
	known(false)
	time.Sleep(2 * clockTick)
	if sum() == first {
		t.Error("the checksum of other content is the same")
	}
	known(true)
	for id, k := range s.known {
		k.read = k.read.Add(-sumTime)
		s.known[id] = k
	}
	known(false)
	for range maxSums {
		s.keep(fileState{ino: uint64(len(s.known))}, "")
	}
	if n := len(s.known); n > maxSums {
		t.Errorf("%d are known", n)
	}
}
