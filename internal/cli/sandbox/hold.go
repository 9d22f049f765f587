package sandbox

import (
	"context"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/image"
)

// HoldCommand is "cloche hold".
func HoldCommand(a *command.CLI) *cobra.Command {
	var f SpecFlags
	c := &cobra.Command{
		Use:   "hold [flags]",
		Short: "Create a sandbox that is removed with this program",
		Long: `Create a sandbox, print its name, and hold it. The sandbox and all its files are
removed when this program ends for any reason: an interrupt or, if standard
input is a pipe, the end of the pipe. A program that starts this one holds the
sandbox by keeping the pipe open. Other commands can use the sandbox meanwhile.

The exit status is 0 after a regular end, and 125 if the sandbox was lost
before.`,
		Example: "  cloche hold --name scratch --memory 512m",
		GroupID: command.GroupRun,
		Args:    command.Exactly(0, "none: the name goes with --name"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("transient") && !f.transient {
				return api.Invalid("transient", "--transient=false, and a sandbox that is held is always transient").WithHint(`use "cloche create" for one that stays`)
			}
			f.transient = true
			return withSpec(a, c, &f, func(ctx context.Context, conn *command.Connection, spec api.SandboxSpec) error {
				return hold(ctx, a, conn, spec)
			})
		},
	}
	f.Register(c.Flags())
	return c
}

func hold(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.SandboxSpec) error {
	v := image.WatchCreate(a, "creating", false)
	held, err := conn.Hold(client.WithPullProgress(ctx, v.Pulling), spec, v.Step)
	v.Stop()
	if err != nil {
		return err
	}
	defer held.Close()
	if err := announceSandbox(a, held.Sandbox.Sandbox); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-endOf(a.Stdio.In):
	case <-held.Done():
		if ctx.Err() == nil {
			return held.Err()
		}
	}
	return nil
}

// endOf returns a channel that is closed when an input ends that another process holds open.
// Terminals and files are excluded: a background process that reads a terminal is stopped, and
// /dev/null has always ended.
func endOf(in io.Reader) <-chan struct{} {
	if in == nil {
		return nil
	}
	if f, ok := in.(*os.File); ok {
		info, err := f.Stat()
		if err != nil || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) == 0 {
			return nil
		}
	}
	ended := make(chan struct{})
	// A read of standard input cannot be interrupted on every kind of file, so
	// this goroutine ends with the process, not before.
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, in)
	}()
	return ended
}
