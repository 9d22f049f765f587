package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/policy"
	"github.com/cloche-dev/cloche/internal/programfile"
)

// maxProgramUpload bounds the files and directories of a program file together: they are
// sent in one request.
const maxProgramUpload = 20 << 20

func programCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "program",
		Short: "Run programs in phases: set up, run and score",
		Long: `A program, as evaluation harnesses need it, is a sandbox and its commands in
phases with a fixed order: files, setup, post_setup, handlers, state, channels,
run and score. Setup can have its own network; after it, the rules of the run
are put into force and confirmed before the next phase.

The daemon executes all of it, and removes the sandbox, also if the client ends.
docs/programs.md describes the file.`,
		Example: "  cloche program run rollout.yaml\n  cloche program run --json rollout.yaml > result.json\n  cloche program ls",
		GroupID: command.GroupRun,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(programRunCommand(a), programListCommand(a), programInspectCommand(a), programWaitCommand(a),
		programCancelCommand(a), programContinueCommand(a))
	return c
}

func programRunCommand(a *command.CLI) *cobra.Command {
	var key, name string
	var env []string
	var detach, quiet bool
	c := &cobra.Command{
		Use:   "run [flags] FILE",
		Short: "Run a program from a YAML file",
		Long: `Run a program from a YAML file, show its phases on standard error, and print the
score, or the output of its last command. An unknown key in the file is an error
with line and column. FILE "-" is standard input. Files and directories in
"from" are on this machine, relative to the file.

An interrupt cancels the program and waits until its sandbox is removed. With
--detach only its id is printed, and it continues. With --json the whole record
is written.

Exit status: 0 the program succeeded; the status of the command that failed; 124
a timeout, 125 another failure, 126 the policy refused.`,
		Example: "  cloche program run rollout.yaml\n  cloche program run --key rollout-17 --env SEED=17 rollout.yaml",
		Args:    command.Exactly(1, "one file"),
		RunE: func(c *cobra.Command, args []string) error {
			spec, err := readProgram(a, args[0])
			if err != nil {
				return err
			}
			if key != "" {
				spec.IdempotencyKey = key
			}
			if name != "" {
				spec.Sandbox, spec.Spec = name, nil
			}
			if spec.Sandbox == "" && spec.Spec == nil {
				spec.Spec = &api.SandboxSpec{}
			}
			more, err := command.ParseEnv(env, a.Env.Getenv)
			if err != nil {
				return err
			}
			for k, v := range more {
				if spec.Env == nil {
					spec.Env = map[string]string{}
				}
				spec.Env[k] = v
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				if detach {
					return startProgram(ctx, a, conn, spec)
				}
				return runProgram(ctx, a, conn, spec, quiet)
			})
		},
	}
	c.Flags().StringVar(&key, "key", "", "an idempotency `KEY`: a run with the same key is the same program")
	c.Flags().StringVar(&name, "sandbox", "", "run in this existing `SANDBOX`, which stays, instead of the one in the file")
	c.Flags().StringArrayVar(&env, "env", nil, "`NAME=VALUE` for all commands, or NAME to use its value from this environment (repeatable)")
	c.Flags().BoolVar(&detach, "detach", false, "print the program's id and do not wait")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show the phases")
	return c
}

// readProgram reads a program file and what it names of this machine.
func readProgram(a *command.CLI, name string) (api.ProgramSpec, error) {
	var data []byte
	var err error
	dir := "."
	if name == "-" {
		data, err = io.ReadAll(io.LimitReader(a.Stdio.In, policy.MaxPolicyFile))
	} else {
		data, err = os.ReadFile(name)
		dir = filepath.Dir(name)
	}
	if err != nil {
		return api.ProgramSpec{}, localdir.Error("read", name, err)
	}
	p, err := programfile.Parse(data)
	if err != nil {
		return api.ProgramSpec{}, err
	}
	left := int64(maxProgramUpload)
	if p.Spec.Files, err = programFiles("files", dir, p.Files, &left); err != nil {
		return p.Spec, err
	}
	if p.Spec.State, err = programFiles("state", dir, p.State, &left); err != nil {
		return p.Spec, err
	}
	for i, d := range p.Dirs {
		if d.From == "" {
			return p.Spec, api.Invalid("dirs", "dirs[%d] names no directory of this machine", i).WithHint("set from")
		}
		archive, err := packProgramDir(beside(dir, d.From), d.Exclude, left)
		if err != nil {
			return p.Spec, err
		}
		left -= int64(len(archive))
		p.Spec.Dirs = append(p.Spec.Dirs, api.ProgramDir{Path: d.Path, Archive: archive})
	}
	return p.Spec, nil
}

// beside is a path that a file names, from where the file is.
func beside(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func programFiles(field, dir string, list []programfile.File, left *int64) ([]api.File, error) {
	var out []api.File
	for i, f := range list {
		if f.From != "" && f.Content != nil {
			return nil, api.Invalid(field, "%s[%d] has from and content", field, i).WithHint("set one of them")
		}
		if f.From != "" {
			in, err := os.Open(beside(dir, f.From))
			if err != nil {
				return nil, localdir.Error("read", f.From, err)
			}
			f.Content, err = io.ReadAll(io.LimitReader(in, *left+1))
			if err = errors.Join(err, in.Close()); err != nil {
				return nil, localdir.Error("read", f.From, err)
			}
		}
		if *left -= int64(len(f.Content)); *left < 0 {
			return nil, tooMuch()
		}
		out = append(out, f.File)
	}
	return out, nil
}

func tooMuch() error {
	return api.Errorf(api.CodeTooLarge, "the files and directories of the program have more than %s", command.FormatSize(maxProgramUpload)).
		WithHint("make the sandbox with cloche create, copy them with cloche cp, and run the program in it: --sandbox")
}

// full is a writer that takes so many bytes.
type full struct {
	bytes.Buffer
	left int64
}

func (f *full) Write(p []byte) (int, error) {
	if f.left -= int64(len(p)); f.left < 0 {
		return 0, tooMuch()
	}
	return f.Buffer.Write(p)
}

func packProgramDir(dir string, exclude []string, left int64) ([]byte, error) {
	out := &full{left: left}
	z := gzip.NewWriter(out)
	for i, e := range exclude {
		exclude[i] = filepath.ToSlash(filepath.Clean(e))
	}
	if err := localdir.Pack(z, dir, exclude, &api.TarReport{}); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func startProgram(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.ProgramSpec) error {
	p, err := conn.StartProgram(ctx, spec)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(p)
	}
	_, err = fmt.Fprintln(a.Stdio.Out, p.ID)
	return err
}

// runProgram begins a program and waits for it. Its own call begins it, so that an
// interrupt knows what to cancel; one that is to end with its caller is one call.
func runProgram(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.ProgramSpec, quiet bool) error {
	if spec.CancelWithCaller {
		p, err := conn.RunProgram(ctx, spec, showSteps(a, quiet))
		if err != nil {
			return err
		}
		return programEnded(a, p)
	}
	p, err := conn.StartProgram(ctx, spec)
	if err != nil {
		return err
	}
	id := p.ID
	if p, err = conn.WaitProgram(ctx, id, showSteps(a, quiet)); err != nil && ctx.Err() != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), command.TeardownTimeout)
		defer cancel()
		a.Note("cancelling program %s", id)
		if _, cerr := conn.CancelProgram(after, id); cerr != nil {
			a.Warn("program %s could not be cancelled: %v", id, cerr)
		}
	}
	if err != nil {
		return err
	}
	return programEnded(a, p)
}

// showSteps tells of the phases as they begin and end.
func showSteps(a *command.CLI, quiet bool) func(api.ProgramStep) {
	return func(st api.ProgramStep) {
		switch {
		case quiet || a.JSON:
		case st.Command != nil:
			a.Note("%s: %s", st.Phase, command.Clip(st.Text))
		case st.State == "waiting":
			a.Note("%s: waiting for handler %s, in sandbox %s", st.Phase, st.Text, st.Sandbox)
		case st.State == "failed":
			a.Note("%s failed: %s", st.Phase, st.Text)
		}
	}
}

// programEnded prints the result and ends with its status.
func programEnded(a *command.CLI, p *api.Program) error {
	if a.JSON {
		if err := a.PrintJSON(p); err != nil {
			return err
		}
		return programStatus(p)
	}
	out := lastOutput(p)
	if _, err := a.Stdio.Out.Write(out); err != nil {
		return command.OutputError(err)
	}
	if p.Cleanup != nil {
		a.Warn("the sandbox could not be removed, which is being retried: %s", p.Cleanup.Message)
	}
	if f := p.Failure; f != nil {
		a.Note("program %s: %s in %s (%s): %s", p.State, f.Kind, f.Phase, f.Class, f.Message)
		if f.Hint != "" {
			a.Note("hint: %s", f.Hint)
		}
	}
	return programStatus(p)
}

// lastOutput is what scored the program, or what its last command wrote.
func lastOutput(p *api.Program) []byte {
	if p.Score != nil {
		if p.Score.File != nil && p.Score.File.Error == nil {
			return p.Score.File.Content
		}
		return p.Score.Output
	}
	for i := len(p.Phases) - 1; i >= 0; i-- {
		cs := p.Phases[i].Commands
		if len(cs) > 0 && cs[len(cs)-1].Result != nil {
			return []byte(cs[len(cs)-1].Result.Output())
		}
	}
	return nil
}

// programStatus is the exit status of a program.
func programStatus(p *api.Program) error {
	f := p.Failure
	switch {
	case f == nil:
		return nil
	case f.Kind == api.FailureTimeout:
		return command.StatusError(command.ExitTimedOut)
	case f.Kind == api.FailurePolicy:
		return command.StatusError(command.ExitRefused)
	case f.Kind != api.FailureExit:
		return command.StatusError(command.ExitFailed)
	}
	for i := len(p.Phases) - 1; i >= 0; i-- {
		if ph := p.Phases[i]; ph.Phase == f.Phase && len(ph.Commands) > 0 && ph.Commands[len(ph.Commands)-1].Result != nil {
			return command.StatusError(ph.Commands[len(ph.Commands)-1].Result.ExitStatus())
		}
	}
	return command.StatusError(command.ExitFailed)
}

func programListCommand(a *command.CLI) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List programs",
		Long:    "List the newest programs, running or not.",
		Example: "  cloche program ls\n  cloche program ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				l, err := conn.Programs(ctx, limit)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(l)
				}
				var rows [][]string
				for _, p := range l.Programs {
					name, why := "-", "-"
					if p.Sandbox != nil {
						name = p.Sandbox.Name
					}
					if p.Failure != nil {
						why = string(p.Failure.Kind)
					}
					rows = append(rows, []string{p.ID, command.OrDash(p.Name), string(p.State), command.OrDash(p.Phase), why, name, p.CreatedAt.Local().Format(time.DateTime)})
				}
				return command.WriteTable(a.Stdio.Out, []string{"ID", "NAME", "STATE", "PHASE", "FAILURE", "SANDBOX", "BEGAN"}, rows)
			})
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 0, "only the newest `PROGRAMS` (default 100)")
	return c
}

// oneProgramCommand makes a verb about one program.
func oneProgramCommand(a *command.CLI, c *cobra.Command, do func(context.Context, *command.Connection, string) error) *cobra.Command {
	c.Args = command.Exactly(1, "the id of a program")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return do(ctx, conn, args[0]) })
	}
	return c
}

func programInspectCommand(a *command.CLI) *cobra.Command {
	return oneProgramCommand(a, &cobra.Command{
		Use:   "inspect PROGRAM",
		Short: "Show the record of a program",
		Long: `Show the record of a program as JSON: the request, each phase with its commands
and their output, and the result.`,
		Example: "  cloche program inspect pg-0123456789abcdef",
	}, func(ctx context.Context, conn *command.Connection, id string) error {
		p, err := conn.Program(ctx, id)
		if err != nil {
			return err
		}
		return a.PrintJSON(p)
	})
}

func programWaitCommand(a *command.CLI) *cobra.Command {
	return oneProgramCommand(a, &cobra.Command{
		Use:   "wait PROGRAM",
		Short: "Wait for the end of a program",
		Long: `Wait for the end of a program, print its result and exit as "cloche program run"
does. An interrupt leaves the program running.`,
		Example: "  cloche program wait pg-0123456789abcdef",
	}, func(ctx context.Context, conn *command.Connection, id string) error {
		p, err := conn.WaitProgram(ctx, id, showSteps(a, false))
		if err != nil {
			return err
		}
		return programEnded(a, p)
	})
}

func programCancelCommand(a *command.CLI) *cobra.Command {
	return oneProgramCommand(a, &cobra.Command{
		Use:     "cancel PROGRAM",
		Short:   "Cancel a program",
		Long:    "Cancel a program, and return when its sandbox is removed. Its record stays.",
		Example: "  cloche program cancel pg-0123456789abcdef",
	}, func(ctx context.Context, conn *command.Connection, id string) error {
		p, err := conn.CancelProgram(ctx, id)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(p)
		}
		_, err = fmt.Fprintln(a.Stdio.Out, p.State)
		return err
	})
}

func programContinueCommand(a *command.CLI) *cobra.Command {
	var failed string
	c := &cobra.Command{
		Use:   "continue [flags] PROGRAM HANDLER",
		Short: "Continue a program that waits for a handler",
		Long: `Continue a program that waits for a handler of the caller, or, with --failed,
end it with that reason.`,
		Example: "  cloche program continue pg-0123456789abcdef seed",
		Args:    command.Exactly(2, "the id of a program and the name of a handler"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				p, err := conn.ContinueProgram(ctx, args[0], api.ProgramContinue{Handler: args[1], Failed: failed})
				if err != nil || !a.JSON {
					return err
				}
				return a.PrintJSON(p)
			})
		},
	}
	c.Flags().StringVar(&failed, "failed", "", "the `REASON` of the failure")
	return c
}
