package embed

import (
	"bytes"
	"testing"
)

func TestBinaryIsAnExecutableOrAbsent(t *testing.T) {
	data, ok := Binary()
	if ok != bytes.HasPrefix(data, []byte("\x7fELF")) {
		t.Fatalf("Binary says %v about %d bytes that begin with %q", ok, len(data), data[:min(4, len(data))])
	}
}
