//go:build !linux

package main

import (
	"os"

	"github.com/cloche-dev/cloche/internal/cli"
)

// playRole has no role to play: sandboxes run on Linux.
func playRole() {}

func environment() cli.Env { return cli.Env{Version: version(), Getenv: os.LookupEnv} }
