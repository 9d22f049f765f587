package sandbox

import (
	"context"
	_ "embed" // for the code in Python
	"errors"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/image"
	"github.com/cloche-dev/cloche/internal/cli/process"
	"github.com/cloche-dev/cloche/internal/cli/workspace"
)

// warmLifetime ends the sandbox that a snapshot is made of, if this program cannot remove it.
const warmLifetime = time.Hour

// seedCode has the random generators seeded again in each sandbox.
//
//go:embed warm.py
var seedCode string

// moduleName is the name of a module of Python.
var moduleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// WarmCommand is "cloche snapshot warm".
func WarmCommand(a *command.CLI) *cobra.Command {
	var f SpecFlags
	var imports []string
	var setup string
	c := &cobra.Command{
		Use:   "warm [flags] SNAPSHOT",
		Short: "Create a snapshot of a Python that has imported modules",
		Long: `Create a sandbox, start a Python code context in it, have that import modules and
run setup code, create a snapshot with memory, and remove the sandbox. Print the
snapshot's name. "cloche code run --snapshot" runs code in a new sandbox that
continues there, without the time that the imports take.

The image must have ipykernel. The random generators of the modules random,
numpy.random and torch are seeded again in each sandbox; code must seed others
itself.`,
		Example: `  cloche snapshot warm --image python --import numpy,pandas science
  cloche code run --snapshot science 'numpy.arange(3)'
  cloche snapshot warm --image python --setup load_model.py model`,
		Args: command.Exactly(1, "the snapshot's name"),
		RunE: func(c *cobra.Command, args []string) error {
			code, err := warmCode(imports, setup)
			if err != nil {
				return err
			}
			return withSpec(a, c, &f, func(ctx context.Context, conn *command.Connection, spec api.SandboxSpec) error {
				return warm(ctx, a, conn, spec, args[0], code)
			})
		},
	}
	f.Register(c.Flags())
	c.Flags().StringSliceVar(&imports, "import", nil, "import these `MODULES`, as a,b.c (repeatable)")
	c.Flags().StringVar(&setup, "setup", "", "run the Python code of this `FILE` after the imports")
	return c
}

// warmCode is the code that prepares an interpreter.
func warmCode(imports []string, setup string) (string, error) {
	var code strings.Builder
	for _, name := range imports {
		if !moduleName.MatchString(name) {
			return "", api.Invalid("import", "--import %q is not the name of a module", name).WithHint("as in --import numpy,matplotlib.pyplot")
		}
		code.WriteString("import " + name + "\n")
	}
	if setup != "" {
		data, err := os.ReadFile(setup)
		if err != nil {
			return "", err
		}
		code.Write(data)
	}
	if code.Len() == 0 {
		return "", api.Invalid("import", "there is nothing to prepare").WithHint("give --import or --setup")
	}
	return code.String() + "\n" + seedCode, nil
}

func warm(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.SandboxSpec, name, code string) (err error) {
	if taken, err := conn.GetSnapshot(ctx, name); err == nil {
		return api.Errorf(api.CodeExists, "a snapshot named %q exists: %s", taken.Name, taken.ID).WithHint("remove it with: cloche snapshot rm %s", taken.ID)
	}
	if spec.Limits.LifetimeMS == 0 {
		spec.Limits.LifetimeMS = warmLifetime.Milliseconds()
	}
	v := image.WatchCreate(a, "creating", false)
	sb, err := conn.CreateProgress(client.WithPullProgress(ctx, v.Pulling), spec, v.Step)
	v.Stop()
	if err != nil {
		return err
	}
	defer func() {
		if _, rerr := conn.Delete(context.WithoutCancel(ctx), sb.ID); rerr != nil && !errors.Is(rerr, api.ErrNotFound) {
			err = errors.Join(err, rerr)
		}
	}()
	a.WarnGranted(sb.Adjusted, sb.Unenforced)
	if err := process.RunCode(ctx, a, conn, sb.ID, api.CodeRequest{Code: code}, ""); err != nil {
		return err
	}
	return workspace.CreateSnapshot(ctx, a, conn, sb.ID, api.SnapshotRequest{Name: name, Scope: api.SnapshotMemory, Labels: spec.Labels})
}
