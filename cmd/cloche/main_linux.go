//go:build !cgo

package main

import (
	"context"
	"os"

	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest"
	"github.com/cloche-dev/cloche/internal/cli"
	"github.com/cloche-dev/cloche/internal/daemon"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// playRole does not return when this process was started in a role. The role is
// argv[0], which no argument that a person types can be.
func playRole() {
	gvisor.Dispatch()
	if os.Args[0] == agent.Argv0 || os.Args[0] == "/.cloche/"+agent.Argv0 {
		os.Exit(guest.Main())
	}
}

func environment() cli.Env {
	return cli.Env{
		Version: version(),
		Getenv:  os.LookupEnv,
		Serve: func(ctx context.Context, o cli.ServeOptions) error {
			return daemon.Run(ctx, daemon.Config{
				Home: homeOr(o.Home), Listen: o.Listen, Rules: o.Config, Token: os.Getenv(client.EnvToken),
				Version: version(), Log: os.Stderr, LogJSON: o.JSON,
			})
		},
		InProcess: func(ctx context.Context, home string) (*client.Client, func(context.Context) error, error) {
			in, err := daemon.Begin(ctx, daemon.Config{Home: homeOr(home), Version: version()})
			if err != nil {
				return nil, nil, err
			}
			c, err := client.New(client.Options{Host: "http://cloche", Dial: in.Dial})
			if err != nil {
				return nil, nil, err
			}
			return c, in.Close, nil
		},
	}
}

func homeOr(home string) string {
	if home != "" {
		return home
	}
	return client.DefaultHome()
}
