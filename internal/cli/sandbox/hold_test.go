package sandbox

import (
	"os"
	"testing"
)

// TestEndOf: only an input that another process holds open can end a hold.
func TestEndOf(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if endOf(nil) != nil || endOf(null) != nil {
		t.Error("an input that is none would end a hold at once")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ended := endOf(r)
	select {
	case <-ended:
		t.Error("an open pipe has ended")
	default:
	}
	w.Close()
	<-ended
}
