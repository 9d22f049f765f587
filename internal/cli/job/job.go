package job

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
	"github.com/cloche-dev/cloche/internal/jobfile"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// maxJobUpload bounds the files and directories of a job file together: they are
// sent in one request.
const maxJobUpload = 20 << 20

// Command is "cloche job".
func Command(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "job",
		Short: "Run jobs in phases: set up, run and score",
		Long: `A job, as evaluation harnesses need it, is a sandbox and its commands in
phases with a fixed order: files, setup, post_setup, handlers, state, channels,
run and score. Setup can have its own network; after it, the rules of the run
are put into force and confirmed before the next phase.

The daemon executes all of it, and removes the sandbox, also if the client ends.
docs/jobs.md describes the file.`,
		Example: "  cloche job run rollout.yaml\n  cloche job run --json rollout.yaml > result.json\n  cloche job ls",
		GroupID: command.GroupRun,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(jobRunCommand(a), jobListCommand(a), jobInspectCommand(a), jobWaitCommand(a),
		jobCancelCommand(a), jobContinueCommand(a))
	return c
}

// ProgramCommand is the deprecated name of Command. Help does not show it.
func ProgramCommand(a *command.CLI) *cobra.Command {
	c := Command(a)
	c.Use, c.Hidden, c.GroupID = "program", true, ""
	return c
}

func jobRunCommand(a *command.CLI) *cobra.Command {
	var key, name string
	var env []string
	var detach, quiet bool
	c := &cobra.Command{
		Use:   "run [flags] FILE",
		Short: "Run a job from a YAML file",
		Long: `Run a job from a YAML file, show its phases on standard error, and print the
score, or the output of its last command. An unknown key in the file is an error
with line and column. FILE "-" is standard input. Files and directories in
"from" are on this machine, relative to the file.

An interrupt cancels the job and waits until its sandbox is removed. With
--detach only its id is printed, and it continues. With --json the whole record
is written.

Exit status: 0 the job succeeded; the status of the command that failed; 124
a timeout, 125 another failure, 126 the policy refused.`,
		Example: "  cloche job run rollout.yaml\n  cloche job run --key rollout-17 --env SEED=17 rollout.yaml",
		Args:    command.Exactly(1, "one file"),
		RunE: func(c *cobra.Command, args []string) error {
			spec, err := readJob(a, args[0])
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
					return startJob(ctx, a, conn, spec)
				}
				return runJob(ctx, a, conn, spec, quiet)
			})
		},
	}
	c.Flags().StringVar(&key, "key", "", "an idempotency `KEY`: a run with the same key is the same job")
	c.Flags().StringVar(&name, "sandbox", "", "run in this existing `SANDBOX`, which stays, instead of the one in the file")
	c.Flags().StringArrayVar(&env, "env", nil, "`NAME=VALUE` for all commands, or NAME to use its value from this environment (repeatable)")
	c.Flags().BoolVar(&detach, "detach", false, "print the job's id and do not wait")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show the phases")
	return c
}

// readJob reads a job file and what it names of this machine.
func readJob(a *command.CLI, name string) (api.JobSpec, error) {
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
		return api.JobSpec{}, localdir.Error("read", name, err)
	}
	p, err := jobfile.Parse(data)
	if err != nil {
		return api.JobSpec{}, err
	}
	left := int64(maxJobUpload)
	if p.Spec.Files, err = jobFiles("files", dir, p.Files, &left); err != nil {
		return p.Spec, err
	}
	if p.Spec.State, err = jobFiles("state", dir, p.State, &left); err != nil {
		return p.Spec, err
	}
	for i, d := range p.Dirs {
		if d.From == "" {
			return p.Spec, api.Invalid("dirs", "dirs[%d] names no directory of this machine", i).WithHint("set from")
		}
		archive, err := packJobDir(beside(dir, d.From), d.Exclude, left)
		if err != nil {
			return p.Spec, err
		}
		left -= int64(len(archive))
		p.Spec.Dirs = append(p.Spec.Dirs, api.JobDir{Path: d.Path, Archive: archive})
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

func jobFiles(field, dir string, list []jobfile.File, left *int64) ([]api.File, error) {
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
	return api.Errorf(api.CodeTooLarge, "the files and directories of the job have more than %s", command.FormatSize(maxJobUpload)).
		WithHint("make the sandbox with cloche create, copy them with cloche cp, and run the job in it: --sandbox")
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

func packJobDir(dir string, exclude []string, left int64) ([]byte, error) {
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

func startJob(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.JobSpec) error {
	p, err := conn.StartJob(ctx, spec)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(p)
	}
	_, err = fmt.Fprintln(a.Stdio.Out, p.ID)
	return err
}

// runJob begins a job and waits for it. Its own call begins it, so that an
// interrupt knows what to cancel; one that is to end with its caller is one call.
func runJob(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.JobSpec, quiet bool) error {
	if spec.CancelWithCaller {
		p, err := conn.RunJob(ctx, spec, showSteps(a, quiet))
		if err != nil {
			return err
		}
		return jobEnded(a, p)
	}
	p, err := conn.StartJob(ctx, spec)
	if err != nil {
		return err
	}
	id := p.ID
	if p, err = conn.WaitJob(ctx, id, showSteps(a, quiet)); err != nil && ctx.Err() != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), command.TeardownTimeout)
		defer cancel()
		a.Note("cancelling job %s", id)
		if _, cerr := conn.CancelJob(after, id); cerr != nil {
			a.Warn("job %s could not be cancelled: %v", id, cerr)
		}
	}
	if err != nil {
		return err
	}
	return jobEnded(a, p)
}

// showSteps tells of the phases as they begin and end.
func showSteps(a *command.CLI, quiet bool) func(api.JobStep) {
	return func(st api.JobStep) {
		switch {
		case quiet || a.JSON:
		case st.Command != nil:
			a.Note("%s: %s", st.Phase, terminal.Clip(st.Text))
		case st.State == "waiting":
			a.Note("%s: waiting for handler %s, in sandbox %s", st.Phase, st.Text, st.Sandbox)
		case st.State == "failed":
			a.Note("%s failed: %s", st.Phase, st.Text)
		}
	}
}

// jobEnded prints the result and ends with its status.
func jobEnded(a *command.CLI, p *api.Job) error {
	if a.JSON {
		if err := a.PrintJSON(p); err != nil {
			return err
		}
		return jobStatus(p)
	}
	out := lastOutput(p)
	if _, err := a.Stdio.Out.Write(out); err != nil {
		return command.OutputError(err)
	}
	if p.Cleanup != nil {
		a.Warn("the sandbox could not be removed, which is being retried: %s", p.Cleanup.Message)
	}
	if f := p.Failure; f != nil {
		a.Note("job %s: %s in %s (%s): %s", p.State, f.Kind, f.Phase, f.Class, f.Message)
		if f.Hint != "" {
			a.Note("hint: %s", f.Hint)
		}
	}
	return jobStatus(p)
}

// lastOutput is what scored the job, or what its last command wrote.
func lastOutput(p *api.Job) []byte {
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

// jobStatus is the exit status of a job.
func jobStatus(p *api.Job) error {
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

func jobListCommand(a *command.CLI) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List jobs",
		Long:    "List the newest jobs, running or not.",
		Example: "  cloche job ls\n  cloche job ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				l, err := conn.Jobs(ctx, limit)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(l)
				}
				var rows [][]string
				for _, p := range l.Jobs {
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
	c.Flags().IntVarP(&limit, "limit", "n", 0, "only the newest `JOBS` (default 100)")
	return c
}

// oneJobCommand makes a verb about one job.
func oneJobCommand(a *command.CLI, c *cobra.Command, do func(context.Context, *command.Connection, string) error) *cobra.Command {
	c.Args = command.Exactly(1, "the id of a job")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return do(ctx, conn, args[0]) })
	}
	return c
}

func jobInspectCommand(a *command.CLI) *cobra.Command {
	return oneJobCommand(a, &cobra.Command{
		Use:   "inspect JOB",
		Short: "Show the record of a job",
		Long: `Show the record of a job as JSON: the request, each phase with its commands
and their output, and the result.`,
		Example: "  cloche job inspect pg-0123456789abcdef",
	}, func(ctx context.Context, conn *command.Connection, id string) error {
		p, err := conn.Job(ctx, id)
		if err != nil {
			return err
		}
		return a.PrintJSON(p)
	})
}

func jobWaitCommand(a *command.CLI) *cobra.Command {
	return oneJobCommand(a, &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait for the end of a job",
		Long: `Wait for the end of a job, print its result and exit as "cloche job run"
does. An interrupt leaves the job running.`,
		Example: "  cloche job wait pg-0123456789abcdef",
	}, func(ctx context.Context, conn *command.Connection, id string) error {
		p, err := conn.WaitJob(ctx, id, showSteps(a, false))
		if err != nil {
			return err
		}
		return jobEnded(a, p)
	})
}

func jobCancelCommand(a *command.CLI) *cobra.Command {
	return oneJobCommand(a, &cobra.Command{
		Use:     "cancel JOB",
		Short:   "Cancel a job",
		Long:    "Cancel a job, and return when its sandbox is removed. Its record stays.",
		Example: "  cloche job cancel pg-0123456789abcdef",
	}, func(ctx context.Context, conn *command.Connection, id string) error {
		p, err := conn.CancelJob(ctx, id)
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

func jobContinueCommand(a *command.CLI) *cobra.Command {
	var failed string
	c := &cobra.Command{
		Use:   "continue [flags] JOB HANDLER",
		Short: "Continue a job that waits for a handler",
		Long: `Continue a job that waits for a handler of the caller, or, with --failed,
end it with that reason.`,
		Example: "  cloche job continue pg-0123456789abcdef seed",
		Args:    command.Exactly(2, "the id of a job and the name of a handler"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				p, err := conn.ContinueJob(ctx, args[0], api.JobContinue{Handler: args[1], Failed: failed})
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
