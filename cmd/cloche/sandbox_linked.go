//go:build linux && !cgo && !cloche_embed

package main

import (
	_ "github.com/cloche-dev/cloche/internal/engine/gvisor/early"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/role"
)

// playSandbox does not return in a process of a sandbox on gVisor. A build without the tag cloche_embed has
// no executable of its own for these, such as one of "go install".
func playSandbox() { role.Dispatch() }
