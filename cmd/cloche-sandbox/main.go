//go:build linux

// Command cloche-sandbox is the processes of a sandbox on gVisor, the sentry and the gofer. It is built static and
// packed into the cloche executable, so that a sandbox does not pay for the rest of that.
package main

import (
	"os"

	_ "github.com/cloche-dev/cloche/internal/engine/gvisor/early"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/role"
)

func main() {
	role.Dispatch()
	_, _ = os.Stderr.WriteString("cloche-sandbox: cloche starts this program\n")
	os.Exit(2)
}
