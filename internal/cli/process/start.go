package process

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// startFlags are the flags of "start" as they were typed.
type startFlags struct {
	id, name, restart, onFull        string
	restoreSignal                    string
	readyLog, readyHTTP, readyWithin string
	readyPort                        int
	tty, openStdin, waitReady        bool
	env                              []string
	cwd, user, timeout, phase        string
	who                              command.NamingFlags
}

// StartCommand is "cloche start".
func StartCommand(a *command.CLI) *cobra.Command {
	var f startFlags
	c := &cobra.Command{
		Use:   "start [flags] SANDBOX [-- COMMAND [ARG...]]",
		Short: "Start a process in the background, or a sandbox that has ended",
		Long: `Start a sandbox that has ended, or with COMMAND a process in one that runs.

A sandbox that was stopped starts with its id, its name, its workspace and what
was changed in its root. Processes with a restart policy that were running when
it ended are started again. After a kill, or when the sandbox died, the changes
of its root since its last start are lost. The command prints what is lost.
Files in /tmp are never kept.

With COMMAND, start a managed process and print its id. It keeps running without
this program: "cloche logs" reads its output, "cloche attach" connects to it,
"cloche wait" waits for its end, "cloche signal" and "cloche rm" end it.

The command returns when the program has been executed, not when it is ready.
With --wait-ready it waits: its status is 0 when the process is ready, 124 after
a timeout (the process continues), and 125 or the process's own status if the
process ended before.

The same id with the same command returns the existing process, so you can
repeat a start whose answer was lost.

A command that can't be executed is an error, 126 or 127, and leaves nothing.`,
		Example: `  cloche start build
  cloche start --name web --ready-port 8000 build -- python3 -m http.server 8000
  cloche start --id worker --restart on-failure:5 build -- ./worker
  cloche start --id mcp --open-stdin build -- node server.js
  cloche start --tty --name repl build -- python3`,
		GroupID:           command.GroupProcess,
		Args:              command.StartArgs,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				if set := setFlag(c); set != "" {
					return api.Invalid("argv", "--%s is for a process, and no command is given", set).
						WithHint("write it behind --: cloche start [flags] SANDBOX -- COMMAND")
				}
				return startSandbox(c, a, args[0])
			}
			spec, err := f.spec(a, c.Flags().Changed)
			if err != nil {
				return err
			}
			spec.Argv = command.CommandOf(args)
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return start(ctx, a, conn, args[0], spec, f.waitReady)
			})
		},
	}
	c.Flags().SetInterspersed(false)
	f.register(c.Flags())
	return c
}

func (f *startFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.id, "id", "", "the process's `ID` in its sandbox; the daemon chooses one when it is not given")
	flags.StringVar(&f.name, "name", "", "a `NAME` for people; it need not be unique")
	flags.BoolVar(&f.tty, "tty", false, "give the process a terminal")
	flags.BoolVar(&f.openStdin, "open-stdin", false, `keep its input open, for "cloche stdin" and "cloche attach" (always open for a terminal)`)
	flags.StringVar(&f.restart, "restart", "", "when to restart it: `never|on-failure[:N]|always`, N times in a row at most (default never)")
	flags.IntVar(&f.readyPort, "ready-port", 0, "ready when this `PORT` inside accepts connections")
	flags.StringVar(&f.readyLog, "ready-log", "", "ready when a line of its output matches this `REGEXP`")
	flags.StringVar(&f.readyHTTP, "ready-http", "", "ready when this `PORT[/PATH]` inside answers a GET with a status below 400")
	flags.StringVar(&f.readyWithin, "ready-timeout", "", "report it as not ready after this `duration`; it continues (default 5m)")
	flags.BoolVar(&f.waitReady, "wait-ready", false, "wait until it is ready")
	flags.StringVar(&f.onFull, "on-full", "", "what to do with output that isn't read: `drop|block` (default drop: the oldest is lost)")
	flags.StringVar(&f.restoreSignal, "restore-signal", "", "send it this `SIGNAL`, such as USR1, when it continues from saved memory (resume, fork, snapshot)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "`NAME=VALUE` for the process, or NAME to use its value from this environment (repeatable)")
	flags.StringVarP(&f.cwd, "cwd", "w", "", "the working directory inside (default the sandbox's)")
	flags.StringVar(&f.phase, "phase", "", command.PhaseUsage)
	flags.StringVarP(&f.user, "user", "u", "", "the user inside, `NAME|UID[:GID]` (default the sandbox's)")
	f.who.Register(flags)
	flags.StringVar(&f.timeout, "timeout", "", "kill it after this `duration`, such as 2h (default never)")
	command.Workdir(flags)
}

// spec returns the request without the command.
func (f *startFlags) spec(a *command.CLI, set func(string) bool) (api.ProcessSpec, error) {
	spec := api.ProcessSpec{
		ExecRequest: api.ExecRequest{ExecID: f.id, Cwd: f.cwd, User: f.user, Phase: f.phase},
		Name:        f.name, OpenStdin: f.openStdin, OnFull: api.OnFull(f.onFull), RestoreSignal: strings.TrimPrefix(strings.ToUpper(f.restoreSignal), "SIG"),
	}
	err := command.CheckText("spec", f.id, f.name, f.cwd, f.user, f.phase, f.restoreSignal)
	if err != nil {
		return spec, err
	}
	if spec.Env, err = command.ParseEnv(f.env, a.Env.Getenv); err != nil {
		return spec, err
	}
	if spec.Naming, err = f.who.Naming(); err != nil {
		return spec, err
	}
	if f.tty {
		command.GiveTerminal(a, &spec.ExecRequest)
	}
	if set("timeout") {
		ms, err := command.ParseTimeout("--timeout", "timeout_ms", f.timeout)
		if err != nil {
			return spec, err
		}
		spec.TimeoutMS = &ms
	}
	if spec.OnFull != "" && spec.OnFull != api.OnFullDrop && spec.OnFull != api.OnFullBlock {
		return spec, api.Invalid("on_full", "--on-full %q is neither drop nor block", terminal.Clip(f.onFull)).
			WithHint("drop loses the oldest output, block holds the process up")
	}
	if set("restart") {
		if spec.Restart, err = parseRestart(f.restart); err != nil {
			return spec, err
		}
	}
	spec.Ready, err = f.readiness(set)
	return spec, err
}

// parseRestart reads never, always, on-failure or on-failure:N.
func parseRestart(s string) (*api.Restart, error) {
	policy, count, bounded := strings.Cut(s, ":")
	r := &api.Restart{Policy: api.RestartPolicy(policy)}
	bad := func(why string) (*api.Restart, error) {
		return nil, api.Invalid("restart", "--restart %q %s", terminal.Clip(s), why).
			WithHint("write never, on-failure, on-failure:5 (at most five times in a row) or always")
	}
	switch r.Policy {
	case api.RestartNever, api.RestartAlways:
		if bounded {
			return bad("has a number, which only on-failure takes")
		}
	case api.RestartOnFailure:
		if bounded {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 {
				return bad("has an invalid number, or one less than 1")
			}
			r.MaxRestarts = n
		}
	default:
		return bad("is not a restart policy")
	}
	return r, nil
}

// readiness reads the flags that say when a process is ready; nil is never.
func (f *startFlags) readiness(set func(string) bool) (*api.Readiness, error) {
	given := 0
	for _, flag := range []string{"ready-port", "ready-log", "ready-http"} {
		if set(flag) {
			given++
		}
	}
	const hint = "give one of --ready-port PORT, --ready-log REGEXP and --ready-http PORT/PATH"
	switch {
	case given == 0 && set("ready-timeout"):
		return nil, api.Invalid("ready", "--ready-timeout is given, but not how to see that the process is ready").WithHint(hint)
	case given == 0 && f.waitReady:
		return nil, api.Invalid("ready", "--wait-ready is given, but not how to see that the process is ready").WithHint(hint)
	case given == 0:
		return nil, nil
	case given > 1:
		return nil, api.Invalid("ready", "more than one of --ready-port, --ready-log and --ready-http is given").WithHint(hint)
	}
	r := &api.Readiness{}
	switch {
	case set("ready-port"):
		if f.readyPort < 1 || f.readyPort > 65535 {
			return nil, api.Invalid("ready.port", "--ready-port %d is not a port", f.readyPort).WithHint("give a number from 1 to 65535")
		}
		r.Port = f.readyPort
	case set("ready-log"):
		if _, err := regexp.Compile(f.readyLog); err != nil || f.readyLog == "" {
			return nil, api.Invalid("ready.log", "--ready-log %q is not a regular expression: %w", terminal.Clip(f.readyLog), orEmpty(err)).
				WithHint("write it as RE2, for example 'listening on .*:8080'")
		}
		r.Log = f.readyLog
	default:
		probe, err := parseProbe(f.readyHTTP)
		if err != nil {
			return nil, err
		}
		r.HTTP = probe
	}
	if set("ready-timeout") {
		ms, err := command.ParseTimeout("--ready-timeout", "ready.timeout_ms", f.readyWithin)
		if err != nil {
			return nil, err
		}
		if ms == 0 {
			return nil, api.Invalid("ready.timeout_ms", "--ready-timeout is 0, and readiness is not waited for without end").WithHint("give a duration such as 30s, or leave it out for 5m")
		}
		r.TimeoutMS = ms
	}
	return r, command.CheckText("ready", f.readyLog, f.readyHTTP)
}

// parseProbe reads PORT or PORT/PATH.
func parseProbe(s string) (*api.HTTPProbe, error) {
	port, path, has := strings.Cut(s, "/")
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		return nil, api.Invalid("ready.http", "--ready-http %q does not begin with a port", terminal.Clip(s)).WithHint("write PORT/PATH, for example 8080/health")
	}
	if strings.ContainsAny(path, " \r\n\t") {
		return nil, api.Invalid("ready.http", "--ready-http %q has a path with a space or a line break", terminal.Clip(s)).WithHint("write such characters as %%20")
	}
	p := &api.HTTPProbe{Port: n}
	if has {
		p.Path = "/" + path
	}
	return p, nil
}

// setFlag returns a flag of the command's own that was given, or an empty name.
func setFlag(c *cobra.Command) (name string) {
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			name = f.Name
		}
	})
	return name
}

// startSandbox starts a sandbox that has ended, and says what of it is lost.
func startSandbox(c *cobra.Command, a *command.CLI, ref string) error {
	return a.EachSandbox(c.Context(), []string{ref}, "starting", func(ctx context.Context, conn *command.Connection, ref string) (any, error) {
		sb, err := conn.StartSandbox(ctx, ref)
		if err != nil {
			return nil, err
		}
		a.WarnGranted(sb.Adjusted, sb.Unenforced)
		for _, l := range sb.Lost {
			what := map[api.LossKind]string{
				api.LossRoot: "the changes of its root are", api.LossFile: "the file " + l.Name + " is",
				api.LossProcess: "process " + l.Name + " is",
			}[l.Kind]
			a.Warn("%s lost: %s", terminal.Printable(what), terminal.Printable(l.Reason))
		}
		return sb, nil
	})
}

// start starts the process and says which it is before anything is waited for.
func start(ctx context.Context, a *command.CLI, conn *command.Connection, sandbox string, spec api.ProcessSpec, waitReady bool) error {
	sandbox, err := conn.Named(ctx, sandbox, spec.Naming)
	if err != nil {
		return err
	}
	spec.NameTemplate = "" // has named it
	p, err := conn.StartProcess(ctx, sandbox, spec)
	if err != nil {
		return err
	}
	if !a.JSON {
		fmt.Fprintln(a.Stdio.Out, terminal.Printable(p.ExecID))
	}
	var end error
	if waitReady {
		ref := command.ProcessRef{Sandbox: sandbox, Process: p.ExecID}
		if p, err = conn.WaitProcess(ctx, sandbox, p.ExecID, api.WaitRequest{Ready: true}); err != nil {
			return err
		}
		end = awaited(a, ref, p, true)
	}
	if a.JSON {
		if err := a.PrintJSON(p); err != nil {
			return err
		}
	}
	return end
}
