package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/terminal"
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
	// Box runs the daemon with an API server for LangBot until ctx ends; nil where no daemon
	// can run.
	Box func(ctx context.Context, opts BoxOptions) error
	// InProcess starts the core in this process for the home and returns a
	// client to it and what ends it again; nil where no core can run. With sandbox,
	// one is going to be asked for.
	InProcess func(ctx context.Context, home string, sandbox bool) (*client.Client, func(context.Context) error, error)
	// Config finds what a daemon that is started with these flags is configured with;
	// nil where no daemon can run.
	Config func(opts ServeOptions) (ConfigView, error)
	// CheckPolicy finds what is wrong with a policy file, and ExplainPolicy asks one;
	// nil where no rules are known.
	CheckPolicy   func(data []byte) []api.PolicyProblem
	ExplainPolicy func(data []byte, q api.PolicyQuestion) (api.PolicyAnswer, error)
}

// ServeOptions are the flags of "cloche serve".
type ServeOptions struct {
	// Listen are addresses such as "unix:///run/cloche.sock" and
	// "tcp://127.0.0.1:7070", beside the socket in the home.
	Listen []string
	// E2B is the address at which clients of E2B are served, at most one.
	E2B []string
	// HostNames are names by which callers over TCP may call the daemon, and Origins
	// the browser origins whose pages may.
	HostNames, Origins []string
	// TLSCert and TLSKey are the files of a certificate and its key. Empty is no TLS.
	TLSCert, TLSKey string
	// Home is the daemon's home directory. Empty is the one in the environment, or the default.
	Home string
	// Config is the path of the operator's rules. Empty is no file.
	Config string
	// Settings is the path of the settings file. Empty is no file.
	Settings string
	// JSON asks for a log of JSON lines.
	JSON bool
}

// BoxOptions are the flags of "cloche box".
type BoxOptions struct {
	ServeOptions
	// Address is where connections come in; empty leaves it to the daemon.
	Address string
	Port    int
	// In and Out are the control connection if it uses stdio, and nil otherwise.
	In  io.Reader
	Out io.Writer
}

// ConfigView is a configuration as it is shown.
type ConfigView struct {
	Settings []ConfigSetting `json:"settings"`
	// Warnings are of variables of the environment that name no setting.
	Warnings []string `json:"warnings,omitempty"`
}

// ConfigSetting is one key with its value, and where that comes from.
type ConfigSetting struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Source string `json:"source"`
}

// CLI is what the verbs of one command line share.
type CLI struct {
	Stdio Streams
	Env   Env

	// The global flags.
	Host  string
	Home  string
	Flags viewFlags
	// json has a result written as one document, by view where there is one.
	JSON bool
	View view

	// raw is whether the terminal is raw at present.
	raw atomic.Bool
}

// The groups of verbs in the help.
const (
	GroupRun     = "run"
	GroupProcess = "process"
	GroupLook    = "look"
	GroupHost    = "host"
)

// UnknownVerb refuses an argument of a command that has only subcommands, and suggests one.
func UnknownVerb(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := api.Invalid("verb", "%q is not a verb of %s", terminal.Clip(args[0]), c.CommandPath()).WithHint(`"%s --help" lists them`, c.CommandPath())
	near := c.SuggestionsFor(args[0])
	for _, verb := range c.Commands() {
		if slices.Contains(verb.SuggestFor, args[0]) { // what other programs call it goes before what looks alike
			near = []string{verb.Name()}
		}
	}
	if len(near) > 0 {
		e.Hint = `did you mean "` + c.CommandPath() + " " + near[0] + `"?`
	}
	return e
}

// Names is the argument rule of verbs that work on one or more sandboxes.
func Names(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return api.Invalid("sandbox", "%s: no sandbox was named", c.CommandPath()).WithHint(`"cloche ls" lists them`)
	}
	return nil
}

// Exactly is the argument rule of verbs with a fixed number of arguments.
func Exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return api.Invalid("arguments", "%s: %s, want %s", c.CommandPath(), Counted(len(args), "argument"), what).WithHint(`"%s --help" shows how`, c.CommandPath())
		}
		return nil
	}
}

// Counted is how many there are of something.
func Counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// getenv is an environment variable, or "".
func (a *CLI) getenv(name string) string {
	v, _ := a.Env.Getenv(name)
	return v
}

// Interruptible is ctx until the user or the system asks this process to end.
func Interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
