//go:build linux

package process

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
)

// Whatever pieces the input came in, those that are written again are repeats.
func TestInputRemembersItsEnd(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "input")
	if err != nil {
		t.Fatal(err)
	}
	in := newInput(false)
	in.attach(f)
	var all []byte
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		piece := make([]byte, random.IntN(1<<(1+random.IntN(18))))
		for i := range piece {
			piece[i] = byte(random.Uint32())
		}
		at := int64(len(all))
		all = append(all, piece...)
		for range 2 {
			if got, err := in.write(t.Context(), at, piece); err != nil || got != int64(len(all)) {
				t.Fatalf("%d bytes at %d: %d, %v", len(piece), at, got, err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, all) {
		t.Fatalf("%d bytes of %d arrived, %v", len(got), len(all), err)
	}
}
