// Package cli implements the command line: commands, flags and output. It accesses sandboxes only
// through package client, which connects to a daemon or to the same core that the caller of this
// package started in this process.
package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/daemon"
	"github.com/cloche-dev/cloche/internal/cli/image"
	"github.com/cloche-dev/cloche/internal/cli/job"
	"github.com/cloche-dev/cloche/internal/cli/network"
	"github.com/cloche-dev/cloche/internal/cli/policy"
	"github.com/cloche-dev/cloche/internal/cli/process"
	"github.com/cloche-dev/cloche/internal/cli/sandbox"
	"github.com/cloche-dev/cloche/internal/cli/skill"
	"github.com/cloche-dev/cloche/internal/cli/workspace"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Main runs one command line, without the program's name, and returns the exit
// status. It handles signals itself. The end of ctx ends every verb but "run",
// "exec", "shell" and "attach", which know what to do with a signal and end with
// their command.
func Main(ctx context.Context, args []string, stdio command.Streams, env command.Env) int {
	a := &command.CLI{Stdio: stdio, Env: env}
	root := rootCommand(a)
	root.SetArgs(args)
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	err := root.ExecuteContext(ctx)
	command.PrintError(stdio.Err, err, a.Flags.ErrorsAsJSON())
	return command.ExitStatus(err)
}

func rootCommand(a *command.CLI) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "cloche",
		Short: "Run untrusted code in sandboxes",
		Long: strings.TrimSpace(`
Cloche runs untrusted code in sandboxes.

"cloche run -- COMMAND" needs nothing else: it creates a sandbox, runs the
command in it and removes it. The other commands use the sandboxes of a daemon,
which "cloche serve" starts.

Exit status: the status of the command; 124 a timeout, 125 an error of Cloche,
126 the policy refused or the command is not executable, 127 the command was not
found, 128+n signal n ended the command.

--json writes the result to standard output as JSON, one document for each
sandbox that was given, and an error to standard error as {"error": {"code": …,
"message": …, "hint": …}}.

--output json is the same, yaml writes the same documents, and name writes a
name for each result. --format executes a Go template for each result, with the
fields of the Go package and functions such as json, join and upper.

Environment: CLOCHE_HOST (as --host; https://HOST:PORT for a daemon with TLS),
CLOCHE_TOKEN (the token for a tcp:// or https:// host), CLOCHE_CA_FILE
(certificates to verify an https:// host, in addition to the system's),
CLOCHE_HOME (as --home). "cloche config show" lists the variables of a daemon.`),
		Args: unknownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			if version {
				return daemon.PrintVersion(a, daemon.Versions{Version: a.Env.Version, API: api.APIVersion})
			}
			return c.Help()
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.Flags.Apply(a) },

		SilenceErrors: true,
		SilenceUsage:  true,
		// A slip of two letters still finds the verb that was meant.
		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		e := api.Invalid("flags", "%s: %w", c.CommandPath(), err).WithHint(`"%s --help" lists the flags`, c.CommandPath())
		if hint := foreignFlag(err); hint != "" {
			e.Hint = hint
		}
		return e
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.Host, "host", "", "the daemon, as unix:///PATH or tcp://HOST:PORT (default: the socket in the home)")
	flags.StringVar(&a.Home, "home", "", "the directory where Cloche keeps its state")
	a.Flags.Register(flags)
	root.Flags().BoolVarP(&version, "version", "v", false, "print the version of this program")
	root.AddGroup(&cobra.Group{ID: command.GroupRun, Title: "Run code:"}, &cobra.Group{ID: command.GroupProcess, Title: "Processes that outlive their clients:"},
		&cobra.Group{ID: command.GroupLook, Title: "Look:"}, &cobra.Group{ID: command.GroupHost, Title: "This machine:"})
	root.AddCommand(
		sandbox.RunCommand(a), sandbox.CreateCommand(a), process.ExecCommand(a), process.CodeCommand(a), process.ShellCommand(a), sandbox.CpCommand(a), sandbox.ToolCommand(a),
		job.Command(a), job.ProgramCommand(a), workspace.SnapshotCommand(a, sandbox.WarmCommand(a)), network.RecordingCommand(a), skill.Command(a), workspace.CommitCommand(a), workspace.RollbackCommand(a),
		sandbox.HoldCommand(a), sandbox.PauseCommand(a), sandbox.SuspendCommand(a), sandbox.ForkCommand(a), sandbox.ResumeCommand(a), sandbox.HeartbeatCommand(a), sandbox.ExtendCommand(a),
		sandbox.StopCommand(a), sandbox.KillCommand(a), sandbox.RmCommand(a), sandbox.PruneCommand(a),
		process.StartCommand(a), process.PsCommand(a), process.AttachCommand(a), process.StdinCommand(a), process.SignalCommand(a), process.WaitCommand(a), process.PortForwardCommand(a), network.PortCommand(a), network.EndpointCommand(a),
		sandbox.LsCommand(a), sandbox.StatsCommand(a), sandbox.WatchCommand(a), sandbox.NameCommand(a), sandbox.InspectCommand(a), workspace.DiffCommand(a), process.LogsCommand(a), daemon.EventsCommand(a), daemon.ErrorsCommand(a), daemon.GuidanceCommand(a), network.EgressCommand(a), daemon.AuditCommand(a), image.Command(a), workspace.Command(a),
		daemon.ServeCommand(a), daemon.BoxCommand(a), daemon.ConfigCommand(a), daemon.KeyCommand(a), daemon.E2BCommand(a), daemon.SecretCommand(a), policy.Command(a), sandbox.InfoCommand(a), daemon.StatusCommand(a), daemon.DoctorCommand(a), daemon.VersionCommand(a),
	)
	root.AddCommand(dockerVerbs(a)...)
	root.SetHelpCommandGroupID(command.GroupHost)
	root.SetCompletionCommandGroupID(command.GroupHost)
	return root
}

// unknownCommand is unknownVerb for the root. It knows the commands of Docker too.
func unknownCommand(c *cobra.Command, args []string) error {
	err := command.UnknownVerb(c, args)
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	if hint, ok := dockerWord(args[0]); ok {
		e.Hint = hint
	} else if args[0] == "container" && len(args) > 1 {
		e.Hint = fmt.Sprintf("the verbs for sandboxes stand alone: `cloche %s`", terminal.Clip(args[1]))
	}
	return e
}
