//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
)

// install installs the peers from the distribution. Their services are not
// started: the bench starts a Docker daemon of its own.
func install(ctx context.Context) error {
	for _, argv := range [][]string{
		{"apt-get", "update", "-qq"},
		{"apt-get", "install", "-y", "-qq", "--no-install-recommends", "docker.io", "busybox-static", "bubblewrap", "mmdebstrap", "podman", "crun"},
	} {
		cmd := command(ctx, argv...)
		// With this, Debian's init scripts are told that nothing may be started.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
	}
	return nil
}
