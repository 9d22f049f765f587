package endpoint

import "testing"

// TestRefusedMemoryIsNotTaken: what is refused for want of memory leaves as much as
// there was.
func TestRefusedMemoryIsNotTaken(t *testing.T) {
	var s Share
	if !s.buffer(maxBuffered - 1) {
		t.Fatal("there is less than there should be")
	}
	for range 3 {
		if s.buffer(2) {
			t.Fatal("there is more than there should be")
		}
	}
	if !s.buffer(1) {
		t.Error("what was refused is gone")
	}
	s.buffer(-maxBuffered)
	if !s.buffer(maxBuffered) {
		t.Error("what was given back is gone")
	}
}
