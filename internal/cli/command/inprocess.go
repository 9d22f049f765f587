package command

import (
	"context"

	"github.com/spf13/cobra"
)

// WithLocalDaemon calls do with the daemon or, if none is running, with the core in this process: images
// belong to the home directory.
func WithLocalDaemon(a *CLI, c *cobra.Command, do func(context.Context, *Connection) error) (err error) {
	ctx, cancel := Interruptible(c.Context())
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
