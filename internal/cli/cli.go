// Package cli is the command line: verbs, flags and output. It reaches a
// sandbox only through the client, whether that speaks to a daemon or to the
// same core started in this process by its caller.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/client"
)

// Streams are the process's own. Terminal features are used only where a
// stream is an *os.File that is a terminal.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Env is what the program around the command line provides.
type Env struct {
	// Version is what "cloche version" prints.
	Version string
	// Getenv looks up an environment variable. It is os.LookupEnv but in tests.
	Getenv func(name string) (string, bool)
	// Serve runs the daemon until ctx ends; nil where no daemon can run.
	Serve func(ctx context.Context, opts ServeOptions) error
	// InProcess starts the core in this process for the home and returns a
	// client to it and what ends it again; nil where no core can run.
	InProcess func(ctx context.Context, home string) (*client.Client, func(context.Context) error, error)
}

// ServeOptions are the flags of "cloche serve".
type ServeOptions struct {
	// Listen are addresses such as "unix:///run/cloche.sock" and
	// "tcp://127.0.0.1:7070"; none means the default socket.
	Listen []string
	// Home is the daemon's directory; empty is the default.
	Home string
	// Config is the path of the operator's rules; empty is none.
	Config string
	// JSON asks for a log of JSON lines.
	JSON bool
}

// Main runs one command line, without the program's name, and returns the exit
// status. It handles signals itself. The end of ctx ends every verb but "run",
// "exec" and "shell", which pass signals on to the command and end with it.
func Main(ctx context.Context, args []string, stdio Streams, env Env) int {
	a := &app{stdio: stdio, env: env}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	err := root.ExecuteContext(ctx)
	printError(stdio.Err, err, a.json)
	return exitStatus(err)
}

// app is what the verbs of one command line share.
type app struct {
	stdio Streams
	env   Env

	// The global flags.
	host string
	home string
	json bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "cloche",
		Short: "Run code that you do not trust, on a machine you care about",
		Long: strings.TrimSpace(`
Cloche runs code that you do not trust in a sandbox of its own.

"cloche run -- COMMAND" needs nothing else: it makes a sandbox, runs the command
in it and removes it. The other verbs work on the sandboxes of a daemon, which
"cloche serve" starts.

Exit status: that of the command; 124 it ran into its timeout, 125 Cloche itself
failed, 126 policy refused or the command is not executable, 127 the command was
not found, 128+n signal n ended the command.

With --json a verb writes its result to standard output as JSON, one document for
each sandbox that it was given, and an error to standard error as
{"error": {"code": …, "message": …, "hint": …}}.

Environment: CLOCHE_HOST (as --host), CLOCHE_TOKEN (the token that a tcp:// host
asks for), CLOCHE_HOME (as --home).`),
		Args:          a.unknownVerb,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
		// A slip of two letters still finds the verb that was meant.
		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return cloche.Invalid("flags", "%s: %w", c.CommandPath(), err).WithHint(`"%s --help" lists the flags`, c.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.host, "host", "", "the daemon, as unix:///PATH or tcp://HOST:PORT (default: the socket in the home)")
	flags.StringVar(&a.home, "home", "", "the directory where Cloche keeps its state")
	flags.BoolVar(&a.json, "json", false, "write the result as JSON")
	root.AddGroup(&cobra.Group{ID: groupRun, Title: "Run code:"}, &cobra.Group{ID: groupLook, Title: "Look:"}, &cobra.Group{ID: groupHost, Title: "This machine:"})
	root.AddCommand(
		a.runCommand(), a.createCommand(), a.execCommand(), a.shellCommand(), a.cpCommand(),
		a.stopCommand(), a.killCommand(), a.rmCommand(),
		a.lsCommand(), a.inspectCommand(), a.logsCommand(), a.imageCommand(),
		a.serveCommand(), a.doctorCommand(), a.versionCommand(),
	)
	root.SetHelpCommandGroupID(groupHost)
	root.SetCompletionCommandGroupID(groupHost)
	return root
}

// The groups of verbs in the help.
const (
	groupRun  = "run"
	groupLook = "look"
	groupHost = "host"
)

func (a *app) unknownVerb(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := cloche.Invalid("verb", "%q is not a verb of %s", clip(args[0]), c.CommandPath()).WithHint(`"%s --help" lists them`, c.CommandPath())
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		e.Hint = `did you mean "` + c.CommandPath() + " " + near[0] + `"?`
	}
	return e
}

// names is the argument rule of verbs that work on one or more sandboxes.
func names(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cloche.Invalid("sandbox", "%s: no sandbox was named", c.CommandPath()).WithHint(`"cloche ls" lists them`)
	}
	return nil
}

// exactly is the argument rule of verbs with a fixed number of arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return cloche.Invalid("arguments", "%s: %d arguments, want %s", c.CommandPath(), len(args), what).WithHint(`"%s --help" shows how`, c.CommandPath())
		}
		return nil
	}
}

// getenv is an environment variable, or "".
func (a *app) getenv(name string) string {
	v, _ := a.env.Getenv(name)
	return v
}

// interruptible is ctx until the user or the system asks this process to end.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
