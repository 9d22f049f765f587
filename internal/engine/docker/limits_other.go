//go:build !linux

package docker

import "github.com/moby/moby/api/types/container"

// limits: the daemon is on another machine, which knows its own.
func limits(bool) []*container.Ulimit { return nil }
