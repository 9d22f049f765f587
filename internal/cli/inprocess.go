package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/internal/cli/command"
)

// withImages calls do with the daemon or, if none is running, with the core in this process: images
// belong to the home directory.
func withImages(a *command.CLI, c *cobra.Command, do func(context.Context, *command.Connection) error) (err error) {
	ctx, cancel := command.Interruptible(c.Context())
	defer cancel()
	conn, err := a.DaemonOrInProcess(ctx, false)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := conn.Close(); err == nil {
			err = cerr
		}
	}()
	return do(ctx, conn)
}
