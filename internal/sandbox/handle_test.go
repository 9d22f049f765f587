package sandbox

import (
	"errors"
	"testing"
)

// The end of a sandbox removes what a write has left that goes on or failed.
func TestEndKnowsOfWrites(t *testing.T) {
	s := &live{}
	done := handle{s: s}.Writing()
	if s.writes.Load() != 1 || s.cut.Load() {
		t.Errorf("%d writes go on, cut %t", s.writes.Load(), s.cut.Load())
	}
	done(nil)
	if s.writes.Load() != 0 || s.cut.Load() {
		t.Errorf("%d writes go on after one, cut %t", s.writes.Load(), s.cut.Load())
	}
	handle{s: s}.Writing()(errors.New("failed"))
	if !s.cut.Load() {
		t.Error("a failed write leaves nothing to remove")
	}
}
