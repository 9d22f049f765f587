package process

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// maxCode limits the code that is read from stdin, in bytes.
const maxCode = 16 << 20

// CodeCommand is "cloche code".
func CodeCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "code",
		Short: "Run code in contexts that keep their variables",
		Long: `Run code in code contexts. A code context is a Jupyter kernel in a sandbox: it
keeps its variables from one run to the next, and has results such as pictures
and tables. The image must have Jupyter: for Python the package ipykernel.`,
		Example: "  cloche code run box 'x = 6'\n  cloche code run box 'x * 7'\n  cloche code ls box",
		GroupID: command.GroupRun,
		Args:    cobra.ArbitraryArgs,
		RunE:    command.UnknownVerb,
	}
	c.AddCommand(codeRunCommand(a), codeCreateCommand(a), codeLsCommand(a), codeRestartCommand(a), codeRmCommand(a))
	return c
}

func codeRunCommand(a *command.CLI) *cobra.Command {
	var r api.CodeRequest
	var timeout time.Duration
	var env []string
	var save, snapshot string
	c := &cobra.Command{
		Use:   "run [flags] SANDBOX [CODE]\n  cloche code run [flags] --snapshot NAME [CODE]",
		Short: "Run code in a context",
		Long: `Run code in a context and print its output, its result and its error. CODE is
read from stdin if it is missing or "-". Without --context the code runs in the
default context of the language, which the first run creates.

With --snapshot the code runs in a new sandbox that starts from a snapshot, and
is removed afterwards. A snapshot of "cloche snapshot warm" has a context that
has imported modules.

--save writes pictures and other results that are no text to files in a
directory. With --json each event is one document. An interrupt here interrupts
the code. The exit status is 1 if the code fails.`,
		Example: `  cloche code run box 'import math; math.pi'
  cloche code run --save plots box < analysis.py
  cloche code run --language r box 'summary(cars)'
  cloche code run --snapshot science 'numpy.pi'`,
		Args: func(c *cobra.Command, args []string) error {
			if snapshot != "" {
				return command.Between(0, 1, "the code alone, because --snapshot creates the sandbox")(c, args)
			}
			return command.Between(1, 2, "a sandbox, and the code")(c, args)
		},
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			code := args
			if snapshot == "" {
				code = args[1:]
			}
			if err := readCode(a, code, &r.Code); err != nil {
				return err
			}
			if c.Flags().Changed("timeout") {
				r.TimeoutMS = new(timeout.Milliseconds())
			}
			var err error
			if r.Env, err = command.ParseEnv(env, a.Env.Getenv); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				if snapshot == "" {
					return RunCode(ctx, a, conn, args[0], r, save)
				}
				held, err := conn.Hold(ctx, api.SandboxSpec{Snapshot: snapshot, Transient: true}, nil)
				if err != nil {
					return err
				}
				defer held.Close()
				return RunCode(ctx, a, conn, held.Sandbox.ID, r, save)
			})
		},
	}
	c.Flags().StringVar(&snapshot, "snapshot", "", "run in a new sandbox that starts from this snapshot, a `NAME` or an id")
	c.Flags().StringVar(&r.Context, "context", "", "run in the context with this `ID`")
	c.Flags().StringVar(&r.Language, "language", "", "run in the default context of this `LANGUAGE` (default python)")
	c.Flags().StringArrayVarP(&env, "env", "e", nil, "set a variable for this run, as `NAME=VALUE` or a NAME that is set here (repeatable)")
	c.Flags().DurationVar(&timeout, "timeout", 0, "interrupt the code after this `duration`; 0 is no limit")
	c.Flags().StringVar(&save, "save", "", "write results that are no text to files in this `DIRECTORY`")
	return c
}

// readCode reads the code from its argument, or from stdin without one and for "-".
func readCode(a *command.CLI, args []string, to *string) error {
	if len(args) == 1 && args[0] != "-" {
		*to = args[0]
		return nil
	}
	code, err := io.ReadAll(io.LimitReader(a.Stdio.In, maxCode+1))
	if err != nil {
		return err
	}
	if len(code) > maxCode {
		return api.Invalid("code", "the code has more than %d bytes", maxCode)
	}
	*to = string(code)
	return nil
}

// RunCode runs code in a sandbox and prints what comes of it. If the code fails, it returns the exit status 1.
func RunCode(ctx context.Context, a *command.CLI, conn *command.Connection, ref string, r api.CodeRequest, save string) error {
	out := codeOutput{a: a, streams: a.Output(false), save: save}
	if err := conn.RunCode(ctx, ref, r, out.event); err != nil {
		return err
	}
	return out.end()
}

// codeOutput prints the events of one run.
type codeOutput struct {
	a       *command.CLI
	streams command.Output
	save    string
	saved   int
	last    api.CodeEvent
}

func (o *codeOutput) event(e api.CodeEvent) error {
	o.last = e
	if o.a.JSON {
		return o.a.PrintJSON(e)
	}
	switch e.Type {
	case api.CodeStdout:
		return o.streams.Write(api.Stdout, []byte(e.Text))
	case api.CodeStderr:
		return o.streams.Write(api.Stderr, []byte(e.Text))
	case api.CodeError:
		text := e.Traceback
		if text == "" {
			text = e.Name + ": " + e.Value
		}
		return o.streams.Write(api.Stderr, []byte(text+"\n"))
	case api.CodeResult:
		return o.result(e)
	}
	return nil
}

// fileTypes are the results that --save writes, and the ends of their names.
var fileTypes = map[string]string{
	"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "application/pdf": "pdf", "text/html": "html",
	api.MIMEChart: "chart.json", api.MIMETable: "table.json",
}

func (o *codeOutput) result(e api.CodeEvent) error {
	var text string
	if json.Unmarshal(e.Data["text/plain"], &text) == nil {
		if err := o.streams.Write(api.Stdout, []byte(text+"\n")); err != nil {
			return err
		}
	}
	if o.save == "" {
		return nil
	}
	if err := os.MkdirAll(o.save, 0o755); err != nil {
		return err
	}
	dir, err := os.OpenRoot(o.save)
	if err != nil {
		return err
	}
	defer dir.Close()
	o.saved++
	for kind, end := range fileTypes {
		value, ok := e.Data[kind]
		if !ok || string(value) == "null" {
			continue
		}
		content, err := fileContent(kind, value)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("result-%d.%s", o.saved, end)
		if err := dir.WriteFile(name, content, 0o600); err != nil {
			return err
		}
		o.a.Note("wrote %s", filepath.Join(o.save, name))
	}
	return nil
}

// fileContent decodes a value: pictures are base64, unless they are text.
func fileContent(kind string, value json.RawMessage) ([]byte, error) {
	if strings.HasSuffix(kind, "+json") {
		return value, nil
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return nil, api.Errorf(api.CodeUnavailable, "a result of the type %s cannot be read", kind)
	}
	if kind == "image/svg+xml" || kind == "text/html" {
		return []byte(text), nil
	}
	content, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		return nil, api.Errorf(api.CodeUnavailable, "a result of the type %s cannot be read", kind)
	}
	return content, nil
}

func (o *codeOutput) end() error {
	if err := o.streams.Flush(); err != nil {
		return err
	}
	if o.last.Truncated {
		o.a.Warn("the run had more output than is kept, and a part of it was dropped")
	}
	if o.last.Status != "ok" {
		return command.StatusError(1)
	}
	return nil
}

func codeCreateCommand(a *command.CLI) *cobra.Command {
	var spec api.CodeContextSpec
	var env []string
	c := &cobra.Command{
		Use:               "create [flags] SANDBOX",
		Short:             "Create a code context",
		Long:              "Create a code context, and print its ID when its kernel is ready.",
		Example:           "  cloche code create --id analysis --cwd /workspace box",
		Args:              command.Exactly(1, "one sandbox"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if spec.Env, err = command.ParseEnv(env, a.Env.Getenv); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				made, err := conn.CreateContext(ctx, args[0], spec)
				switch {
				case err != nil:
					return err
				case a.JSON:
					return a.PrintJSON(made)
				}
				_, err = fmt.Fprintln(a.Stdio.Out, made.ID)
				return err
			})
		},
	}
	c.Flags().StringVar(&spec.ID, "id", "", "its `ID` (default: the daemon chooses)")
	c.Flags().StringVar(&spec.Language, "language", "", "a `LANGUAGE` or the name of a kernel (default python)")
	c.Flags().StringVar(&spec.Cwd, "cwd", "", "its working `DIRECTORY` (default: the sandbox's)")
	c.Flags().StringVar(&spec.User, "user", "", "run it as this `USER` of the sandbox")
	c.Flags().StringArrayVarP(&env, "env", "e", nil, "set a variable, as `NAME=VALUE` or a NAME that is set here (repeatable)")
	return c
}

func codeLsCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:               "ls SANDBOX",
		Short:             "List the code contexts of a sandbox",
		Long:              "List the code contexts of a sandbox in the order of their start.",
		Example:           "  cloche code ls box\n  cloche code ls --json box",
		Args:              command.Exactly(1, "one sandbox"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Contexts(ctx, args[0])
				switch {
				case err != nil:
					return err
				case a.JSON:
					return a.PrintJSON(api.CodeContextList{Contexts: append([]api.CodeContext{}, list...)})
				}
				rows := [][]string{}
				for _, x := range list {
					rows = append(rows, []string{x.ID, terminal.Printable(x.Language), string(x.State), terminal.Printable(x.Cwd)})
				}
				return command.WriteTable(a.Stdio.Out, []string{"ID", "LANGUAGE", "STATE", "DIRECTORY"}, rows)
			})
		},
	}
}

func codeRestartCommand(a *command.CLI) *cobra.Command {
	return codeVerb(a, "restart SANDBOX CONTEXT", "Restart the kernel of a code context",
		"Restart the kernel of a code context. The context keeps its ID and loses its\nvariables; code that runs in it ends with an error.", "  cloche code restart box python",
		func(ctx context.Context, conn *command.Connection, ref, id string) error {
			return conn.RestartContext(ctx, ref, id)
		})
}

func codeRmCommand(a *command.CLI) *cobra.Command {
	return codeVerb(a, "rm SANDBOX CONTEXT", "Remove a code context", "Remove a code context: end its kernel, and remove its process and log.", "  cloche code rm box python",
		func(ctx context.Context, conn *command.Connection, ref, id string) error {
			return conn.RemoveContext(ctx, ref, id)
		})
}

func codeVerb(a *command.CLI, use, short, long, example string, do func(context.Context, *command.Connection, string, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args:              command.Exactly(2, "a sandbox and a context"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return do(ctx, conn, args[0], args[1]) })
		},
	}
}
