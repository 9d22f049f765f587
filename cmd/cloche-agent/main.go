//go:build linux

// What the runtime does at every start for a program that may be anywhere: it reads
// the limits of a cgroup that does not exist inside, and names each of its mappings.
// Under gVisor every system call of a start is waited for.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
//go:debug decoratemappings=0

// Command cloche-agent is the program inside every sandbox. It is built static
// and small, and packed into the cloche executable.
package main

import (
	"os"
	"path"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest"
	"github.com/cloche-dev/cloche/internal/agent/guest/fsop"
	"github.com/cloche-dev/cloche/internal/agent/guest/sudo"
	"github.com/cloche-dev/cloche/internal/engine/inner"
)

func main() {
	if path.Base(os.Args[0]) == sudo.Argv0 {
		os.Exit(sudo.Main(os.Args, os.Stderr))
	}
	if os.Args[0] == agent.UnpackArgv0 {
		os.Exit(fsop.HostMain())
	}
	if path.Base(os.Args[0]) == inner.Argv0 || len(os.Args) > 1 && os.Args[1] == inner.Argv0 {
		os.Exit(inner.Main())
	}
	os.Exit(guest.Main())
}
