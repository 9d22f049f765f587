//go:build darwin || windows

package main

import "github.com/cloche-dev/cloche/internal/engine/docker"

// playRole does not return when this process was started to see to a container of one
// that is gone. There is no other role: sandboxes run on another machine, be it a virtual
// one.
func playRole() { docker.Dispatch() }
