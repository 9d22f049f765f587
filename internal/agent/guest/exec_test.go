//go:build linux

package guest

import (
	"testing"
)

func TestExecSaysHello(t *testing.T) {
	in := boot(t, nil)
	if got := in.run(t, "echo hello; id -u"); got != "hello\n0" {
		t.Fatalf("got %q", got)
	}
}
