//go:build linux

package netstack

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestJournal: what was begun and not ended is there for who opens the file later.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	at := func(i int) tuple {
		return tuple{uint16(20000 + i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 443)}
	}
	j := NewJournal(path)
	if left := j.left(); len(left) != 0 {
		t.Errorf("%v is left of nothing", left)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("there is a file although there was no connection")
	}
	const room = journalSize / journalEntry
	ends := make([]func(), room+10)
	for i := range ends {
		ends[i] = j.begin(at(i))
	}
	if left := j.left(); len(left) != room {
		t.Errorf("%d of %d are noted", len(left), room)
	}
	for _, end := range slices.Backward(ends[2:]) {
		end()
	}
	want := []tuple{at(0), at(1)}
	if left := NewJournal(path).left(); !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
	j.begin(at(7))
	if left := NewJournal(path).left(); len(left) != 3 {
		t.Errorf("room was not given back: %v", left)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	ends[0]() // after Close it is nothing
	// The next life begins with an empty file.
	next := NewJournal(path)
	defer next.Close()
	if left := next.left(); len(left) != 3 {
		t.Errorf("left are %v", left)
	}
	next.begin(at(9))
	if left := next.left(); !slices.Equal(left, []tuple{at(9)}) {
		t.Errorf("left are %v", left)
	}
	for _, damaged := range [][]byte{{1, 2, 3}, make([]byte, 2*journalSize), {0, 0, 1, 1, 1, 1, 1, 1}} {
		if err := os.WriteFile(path+".bad", damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if left := NewJournal(path + ".bad").left(); len(left) != 0 {
			t.Errorf("%v is left of what is none", left)
		}
	}
}
