package sandbox

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/spf13/cobra"
)

// PauseCommand is "cloche pause".
func PauseCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "pause SANDBOX...",
		Short: "Pause sandboxes",
		Long: `Pause every process of a sandbox and keep its memory. Calls into it are refused
until "cloche resume"; "cloche stop", "cloche kill" and "cloche rm" work. Its
idle time and the timeouts of its processes are paused too; its lifetime isn't.`,
		Example:           "  cloche pause build",
		GroupID:           command.GroupRun,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.EachSandbox(c.Context(), args, "pausing", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
				return conn.Pause(ctx, ref)
			})
		},
	}
}

// SuspendCommand is "cloche suspend".
func SuspendCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "suspend SANDBOX...",
		Short: "Save the memory of sandboxes to disk and free it",
		Long: `Save the memory and the root of a sandbox to disk, and free the memory and CPU
that it uses. "cloche resume" continues its processes, with their IDs and the
positions of their output, also after a restart of the daemon or the machine.
Connections end: those of its programs, and calls in progress. Its idle time
and the timeouts of its processes are paused too; its lifetime isn't. Only
engine gvisor can do it; on other engines, use "cloche stop" and "cloche start".`,
		Example: "  cloche suspend build\n" +
			"  cloche resume build",
		GroupID:           command.GroupRun,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.EachSandbox(c.Context(), args, "suspending", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
				return conn.Suspend(ctx, ref)
			})
		},
	}
}

// ResumeCommand is "cloche resume".
func ResumeCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "resume SANDBOX...",
		Aliases: []string{"unpause"},
		Short:   "Resume paused or suspended sandboxes",
		Long: `Resume every process of a paused or suspended sandbox. Policy decides again
about a suspended one, under the present rules; if it can't be resumed, it
stays suspended.`,
		Example:           "  cloche resume build",
		GroupID:           command.GroupRun,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.EachSandbox(c.Context(), args, "resuming", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
				return conn.Resume(ctx, ref)
			})
		},
	}
}

// HeartbeatCommand is "cloche heartbeat".
func HeartbeatCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "heartbeat SANDBOX...",
		Short: "Renew the leases of sandboxes",
		Long: `Restart the idle time of sandboxes, as every use of them does. It needs no
process inside. It doesn't renew a lifetime (--lifetime); see "cloche extend".`,
		Example:           "  cloche heartbeat build",
		GroupID:           command.GroupRun,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.EachSandbox(c.Context(), args, "renewing", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
				return conn.Heartbeat(ctx, ref)
			})
		},
	}
}

// ExtendCommand is "cloche extend".
func ExtendCommand(a *command.CLI) *cobra.Command {
	var text string
	var exact bool
	c := &cobra.Command{
		Use:   "extend --lifetime DURATION [--exact] SANDBOX...",
		Short: "Extend the lifetime of sandboxes",
		Long: `Set the rest of the lifetime of sandboxes, up to the ceiling of their profile,
and restart their idle time. It never shortens a lifetime, and changes nothing
for a sandbox without one, unless --exact is given.`,
		Example: "  cloche extend --lifetime 2h build\n" +
			"  cloche extend --lifetime 10m --exact build",
		GroupID:           command.GroupRun,
		Args:              command.Names,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			ms, err := command.ParseTimeout("--lifetime", "lifetime_ms", text)
			if err != nil {
				return err
			}
			return a.EachSandbox(c.Context(), args, "extending", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
				lifetime := time.Duration(ms) * time.Millisecond
				if exact {
					return conn.SetLifetime(ctx, ref, lifetime)
				}
				return conn.Extend(ctx, ref, lifetime)
			})
		},
	}
	c.Flags().StringVar(&text, "lifetime", "", "the time from now on, a `duration` such as 2h")
	c.Flags().BoolVar(&exact, "exact", false, "end the lifetime then, also if it would have ended later or never")
	return c
}
