//go:build linux

// Command cloche-agent is the program inside every sandbox. It is built static
// and small, and packed into the cloche executable.
package main

import (
	"os"

	"github.com/cloche-dev/cloche/internal/agent/guest"
)

func main() { os.Exit(guest.Main()) }
