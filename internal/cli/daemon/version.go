package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Versions is the JSON result of version.
type Versions struct {
	Version string `json:"version"`
	API     string `json:"api"`
	// Daemon is the daemon's version where one answers.
	Daemon string `json:"daemon,omitempty"`
}

// VersionCommand is "cloche version".
func VersionCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Print the version of this program, and of the daemon if one answers.",
		Example: "  cloche version\n  cloche version --json",
		GroupID: command.GroupHost,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			v := Versions{Version: a.Env.Version, API: api.APIVersion, Daemon: daemonVersion(c.Context(), a)}
			return PrintVersion(a, v)
		},
	}
}

// PrintVersion prints the versions of the program and of the API.
func PrintVersion(a *command.CLI, v Versions) error {
	if a.JSON {
		return a.PrintJSON(v)
	}
	fmt.Fprintf(a.Stdio.Out, "cloche %s (API %s)\n", terminal.Printable(v.Version), v.API)
	if v.Daemon != "" {
		fmt.Fprintf(a.Stdio.Out, "daemon %s\n", terminal.Printable(v.Daemon))
	}
	return nil
}

// daemonVersion is "" when no daemon answers at once: the question is about
// this program first.
func daemonVersion(ctx context.Context, a *command.CLI) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := a.Daemon()
	if err != nil {
		return ""
	}
	defer conn.Close()
	v, err := conn.Version(ctx)
	if err != nil {
		return ""
	}
	return v.Version
}
