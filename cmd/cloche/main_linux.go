//go:build !cgo

package main

import (
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest"
	"github.com/cloche-dev/cloche/internal/agent/guest/sudo"
	"github.com/cloche-dev/cloche/internal/egress/fdstore"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/inner"
	"github.com/cloche-dev/cloche/internal/engine/oci"
)

// playRole does not return when this process was started in a role. The role is
// argv[0], which no argument that a person types can be.
func playRole() {
	playSandbox()
	docker.Dispatch()
	oci.Dispatch()
	if os.Args[0] == fdstore.Argv0 {
		os.Exit(fdstore.Main())
	}
	if os.Args[0] == agent.Argv0 || os.Args[0] == "/.cloche/"+agent.Argv0 {
		os.Exit(guest.Main())
	}
	if filepath.Base(os.Args[0]) == sudo.Argv0 {
		// Another file of that name on this machine has another path.
		if exe, err := os.Executable(); err == nil && exe == "/.cloche/"+agent.Argv0 {
			os.Exit(sudo.Main(os.Args, os.Stderr))
		}
	}
	if os.Args[0] == "/.cloche/"+inner.Argv0 {
		os.Exit(inner.Main())
	}
}
