package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause SANDBOX...",
		Short: "Make the processes of sandboxes stand still",
		Long: `Make every process of a sandbox stand still, keeping its memory. Calls into it
are refused until "cloche resume"; "cloche stop", "cloche kill" and "cloche rm"
work. Its idle time and the timeouts of its processes stand still with it; its
lifetime goes on.`,
		Example:           "  cloche pause build",
		GroupID:           groupRun,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.eachSandbox(c.Context(), args, "pausing", func(ctx context.Context, conn *connection, ref string) (any, error) {
				return conn.Pause(ctx, ref)
			})
		},
	}
}

func (a *app) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "resume SANDBOX...",
		Aliases:           []string{"unpause"},
		Short:             "Let the processes of paused sandboxes go on",
		Long:              "Let every process of a paused sandbox go on where it stood.",
		Example:           "  cloche resume build",
		GroupID:           groupRun,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.eachSandbox(c.Context(), args, "resuming", func(ctx context.Context, conn *connection, ref string) (any, error) {
				return conn.Resume(ctx, ref)
			})
		},
	}
}

func (a *app) heartbeatCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "heartbeat SANDBOX...",
		Short: "Renew the leases of sandboxes",
		Long: `Begin the idle time of sandboxes anew, as every use of them does. It needs no
process inside. A lifetime (--lifetime) is not renewed by it; see "cloche extend".`,
		Example:           "  cloche heartbeat build",
		GroupID:           groupRun,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.eachSandbox(c.Context(), args, "renewing", func(ctx context.Context, conn *connection, ref string) (any, error) {
				return conn.Heartbeat(ctx, ref)
			})
		},
	}
}

func (a *app) extendCommand() *cobra.Command {
	var text string
	c := &cobra.Command{
		Use:   "extend --lifetime DURATION SANDBOX...",
		Short: "Let sandboxes live longer",
		Long: `Let sandboxes live so long from now on, up to the ceiling of their profile, and
begin their idle time anew. It never brings an end nearer, and changes nothing for
a sandbox whose lifetime is not bounded.`,
		Example:           "  cloche extend --lifetime 2h build",
		GroupID:           groupRun,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			ms, err := parseTimeout("--lifetime", "lifetime_ms", text)
			if err != nil {
				return err
			}
			return a.eachSandbox(c.Context(), args, "extending", func(ctx context.Context, conn *connection, ref string) (any, error) {
				return conn.Extend(ctx, ref, time.Duration(ms)*time.Millisecond)
			})
		},
	}
	c.Flags().StringVar(&text, "lifetime", "", "how long from now on, a `duration` such as 2h")
	return c
}
