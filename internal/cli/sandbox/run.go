package sandbox

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/image"
	"github.com/cloche-dev/cloche/internal/cli/process"
)

// checkRunArgv accepts no command where an image has one of its own.
func checkRunArgv(image string, args []string) error {
	if len(args) == 0 && image != "" && image != api.DefaultImage {
		return nil
	}
	return command.CheckArgv(args)
}

// RunCommand is "cloche run".
func RunCommand(a *command.CLI) *cobra.Command {
	var f SpecFlags
	var at command.ExecFlags
	var keep, detach, rm bool
	var chars command.CharsFlag
	c := &cobra.Command{
		Use:   "run [flags] [-- COMMAND [ARG...]]",
		Short: "Run a command in a new sandbox",
		Long: `Create a sandbox, run one command in it and remove it. It uses a running daemon;
otherwise it does the same in this process, and needs nothing else.

The command is executed without a shell. With --image and no command, the
image's own command runs: its entrypoint and default arguments. They are never
added to a command that you give. A missing image is pulled first.

Standard input is passed on if it isn't a terminal, or with -i or -t. Signals are
passed on too; a second interrupt within a second kills the command. Changes by
the policy and unenforced limits are printed on standard error.

On a terminal, control characters of the output are printed and have no effect,
except for colours. --raw and -t pass them through; -t also gives a terminal.

With --detach the command is a managed process in a sandbox that stays and whose
name is printed: "cloche logs" and "cloche ps" show it, "cloche rm -f" ends both.
It needs a daemon.

With --json the output is collected and the result written as JSON: the sandbox
and how the command ended. Input is then passed on only with -i.`,
		Example: `  cloche run -- python3 -c 'print(6*7)'
  cloche run --workspace . --timeout 60s -- make test
  cloche run --image python:3.11-slim -- python3 --version
  cloche run --memory 512m --pids 64 --file ./job.py:/workspace/job.py -- python3 job.py
  cloche run -p 8000 --workspace . -- python3 -m http.server 8000
  generate | cloche run -- sort | head`,
		GroupID: command.GroupRun,
		Args:    func(_ *cobra.Command, args []string) error { return checkRunArgv(f.image, args) },
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("rm") {
				if rm && (keep || detach) {
					return api.Invalid("rm", "--rm removes the sandbox with its command, and --keep and --detach leave it").
						WithHint("leave --rm out; `cloche rm -f SANDBOX` removes it, and --idle or --lifetime end it by themselves")
				}
				keep = !rm
			}
			spec, err := f.Spec(c.Flags().Changed, a.Paths(), a.Env.Getenv)
			if err != nil {
				return err
			}
			ports, err := f.docker.ports()
			if err != nil {
				return err
			}
			req := api.RunRequest{Spec: spec, Exec: api.ExecRequest{Argv: args}, Keep: keep}
			if req.Exec.MaxOutputChars, err = chars.Value(c, a.JSON); err != nil {
				return err
			}
			if c.Flags().Changed("timeout") {
				// It is the command's own limit, where 0 can say "unlimited".
				req.Exec.TimeoutMS, req.Spec.Limits.TimeoutMS = &spec.Limits.TimeoutMS, 0
			}
			if detach {
				if err := command.CheckArgv(args); err != nil {
					return err
				}
				ctx, cancel := command.Interruptible(c.Context())
				defer cancel()
				return imageMeant(runDetached(ctx, a, req, at, ports), req)
			}
			return imageMeant(run(c.Context(), a, req, at, ports), req)
		},
	}
	c.Flags().SetInterspersed(false)
	f.registerPorts(c.Flags())
	c.Flags().BoolVar(&keep, "keep", false, "leave the sandbox running afterwards (needs a daemon)")
	c.Flags().BoolVarP(&detach, "detach", "d", false, "start the command and leave it running (needs a daemon)")
	c.Flags().BoolVar(&rm, "rm", true, "remove the sandbox afterwards, which is what happens")
	_ = c.Flags().MarkHidden("rm") // it is there
	chars.Register(c.Flags())
	at.Register(c.Flags())
	return c
}

// imageMeant tells who wrote a reference where the command stands, as other
// programs have it, how an image is given.
func imageMeant(err error, req api.RunRequest) error {
	if err == nil || req.Spec.Image != "" || len(req.Exec.Argv) == 0 {
		return err
	}
	word := req.Exec.Argv[0]
	if !officialImage(word) && (!strings.Contains(word, ":") && !strings.Contains(word, "/") || strings.HasPrefix(word, "/") || strings.HasPrefix(word, ".")) {
		return err
	}
	ref, perr := api.ParseImageRef(word)
	e := command.AsError(err)
	if perr != nil || e.Code != api.CodeNotFound && e.Code != api.CodeCommandNotFound {
		return err
	}
	argv := "COMMAND"
	if len(req.Exec.Argv) > 1 {
		argv = command.ShellWords(req.Exec.Argv[1:])
	}
	said := *e
	return said.WithHint("an image is given with --image: `cloche run --image %s -- %s`", ref.Familiar(), argv)
}

func run(ctx context.Context, a *command.CLI, req api.RunRequest, f command.ExecFlags, ports []int) (err error) {
	ctx, t, err := a.Prepare(ctx, f, &req.Exec)
	if err != nil {
		return err
	}
	defer t.Release()
	keeps := ""
	switch {
	case req.Keep:
		keeps = "--keep"
	case len(ports) > 0:
		keeps = "-p"
	}
	if a.JSON && len(ports) > 0 {
		return api.Invalid("publish", "-p and --json: the result is written after the command").WithHint("use --detach, or `cloche create -p` and `cloche exec`")
	}
	conn, err := runtimeFor(ctx, a, keeps)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := conn.Close(); cerr != nil && err == nil {
			err = cerr
		} else if cerr != nil && !f.Quiet {
			a.Warn("%v", command.AsError(cerr).Message) // the first error, or the command's own status, is the result
		}
	}()
	if a.JSON {
		return runCollected(ctx, a, conn, req, f)
	}
	v := image.WatchCreate(a, "starting", f.Quiet)
	stream, err := conn.RunStream(client.WithPullProgress(ctx, v.Pulling), req, v.Step)
	v.Stop()
	if err != nil {
		return err
	}
	defer stream.Close()
	if sb := stream.Sandbox(); sb != nil && len(ports) > 0 {
		opened, err := openPorts(ctx, conn, sb.ID, ports)
		if err != nil {
			return err
		}
		announcePorts(a, opened)
	}
	t.Starting()
	if sb := stream.Sandbox(); sb != nil && !f.Quiet {
		a.WarnGranted(sb.Adjusted, sb.Unenforced)
		if req.Keep {
			a.Warn("the sandbox is kept as %s", sb.Name)
		}
	}
	t.Stream, t.Stdin, t.Again = stream, a.WantStdin(f), "--allow"
	if sb := stream.Sandbox(); sb != nil && req.Keep {
		t.Again = "cloche egress allow " + command.ShellWord(sb.Name)
	}
	return process.RunResult(a, t, f.Quiet)
}

// runtimeFor returns where a run executes. A kept sandbox requires a daemon. keeps is the flag that
// requires one, or empty.
func runtimeFor(ctx context.Context, a *command.CLI, keeps string) (*command.Connection, error) {
	if keeps == "" {
		return a.DaemonOrInProcess(ctx, true)
	}
	conn, err := a.Daemon()
	if e := command.AsErrorOrNil(err); e != nil && e.Code == api.CodeUnavailable {
		return nil, api.Errorf(api.CodeUnavailable, "%s: %s, and it is needed here", keeps, e.Message).WithHint("%s", e.Hint)
	}
	return conn, err
}

// runCollected is the run of --json: one call, one document.
func runCollected(ctx context.Context, a *command.CLI, conn *command.Connection, req api.RunRequest, f command.ExecFlags) error {
	var err error
	if req.Exec.Stdin, err = process.CollectStdin(a, f); err != nil {
		return err
	}
	res, err := conn.Run(ctx, req)
	if err != nil {
		return err
	}
	if err := a.PrintJSON(res); err != nil {
		return err
	}
	return command.Finish(&res.Result)
}
