//go:build !linux && !darwin && !windows

package main

import (
	"os"

	"github.com/cloche-dev/cloche/internal/cli"
	"github.com/cloche-dev/cloche/internal/daemon"
)

// playRole has no role to play: sandboxes run on Linux.
func playRole() {}

func environment() cli.Env {
	return cli.Env{
		Version: version(), Getenv: os.LookupEnv, CheckPolicy: daemon.CheckPolicy, ExplainPolicy: daemon.ExplainPolicy,
	}
}
