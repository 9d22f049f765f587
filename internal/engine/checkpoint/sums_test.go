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
	unknown := func() {
		t.Helper()
		if _, _, err := s.Of(reads, f); !errors.Is(err, context.Canceled) { // it has to read
			t.Errorf("the checksum is known: %v", err)
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
	// kept computes the checksum until the write is long enough ago for that to be kept.
	kept := func() (text string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			text = sum()
			if _, _, err := s.Of(reads, f); err == nil {
				return text
			}
		}
		t.Fatal("the checksum is not kept")
		return ""
	}
	// What was written a moment ago is not kept: another write could have the same time. A machine that was busy in that
	// moment tries again.
	for begun := time.Now(); ; begun = time.Now() {
		write("one")
		sum()
		if _, _, err := s.Of(reads, f); time.Since(begun) < clockTick/2 {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("it is kept at once: %v", err)
			}
			break
		}
	}
	first := kept()

	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	write("two")
	if err := os.Chtimes(path, fi.ModTime(), fi.ModTime()); err != nil {
		t.Fatal(err)
	}
	unknown()
	if kept() == first {
		t.Error("the checksum of other content is the same")
	}
	for id, k := range s.known {
		k.read = k.read.Add(-sumTime)
		s.known[id] = k
	}
	unknown()
	for range maxSums {
		s.keep(fileState{ino: uint64(len(s.known))}, "")
	}
	if n := len(s.known); n > maxSums {
		t.Errorf("%d are known", n)
	}
}
