package policy

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/sandbox"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// MaxPolicyFile is more than any policy file may have.
const MaxPolicyFile = 2 << 20

// Command is "cloche policy".
func Command(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Check and explain the policy",
		Long: `Check the policy file, and explain its decisions. A daemon reloads a changed
policy file by itself, or at once on a HUP signal. It doesn't use a file with
errors, and keeps the current policy.`,
		Example: "  cloche policy check policy.yaml\n  cloche policy explain --tenant acme --image debian:12",
		GroupID: command.GroupHost,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(policyCheckCommand(a), policyExplainCommand(a))
	return c
}

func policyCheckCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a policy file",
		Long: `Report all errors of a policy file with line and column, and warn about rules
that have no effect because another one takes precedence. FILE "-" is standard
input. It needs no daemon.

Exit status: 0 the file is valid, 1 it isn't.`,
		Example: "  cloche policy check policy.yaml\n  cloche policy check --json - < policy.yaml",
		Args:    command.Exactly(1, "one file"),
		RunE:    func(_ *cobra.Command, args []string) error { return checkPolicy(a, args[0]) },
	}
}

func checkPolicy(a *command.CLI, file string) error {
	if a.Env.CheckPolicy == nil {
		return noPolicyHere()
	}
	data, err := readPolicy(a, file)
	if err != nil {
		return err
	}
	problems, wrong := a.Env.CheckPolicy(data), 0
	for _, p := range problems {
		if !p.Warning {
			wrong++
		}
	}
	if a.JSON {
		err = a.PrintJSON(struct {
			Problems []api.PolicyProblem `json:"problems"`
		}{append([]api.PolicyProblem{}, problems...)})
	} else {
		err = printProblems(a, file, problems)
	}
	if err == nil && wrong > 0 {
		return command.StatusError(1)
	}
	return err
}

// printProblems writes them as compilers do, so that editors find the places.
func printProblems(a *command.CLI, file string, problems []api.PolicyProblem) error {
	for _, p := range problems {
		kind, hint := "error", ""
		if p.Warning {
			kind = "warning"
		}
		if p.Hint != "" {
			hint = " (" + p.Hint + ")"
		}
		if _, err := fmt.Fprintf(a.Stdio.Out, "%s:%d:%d: %s: %s\n", terminal.Printable(file), p.Line, p.Column, kind, terminal.Printable(p.Message+hint)); err != nil {
			return command.OutputError(err)
		}
	}
	return nil
}

func readPolicy(a *command.CLI, file string) ([]byte, error) {
	in := a.Stdio.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, api.Invalid("file", "the policy file cannot be read: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, MaxPolicyFile))
	if err != nil {
		return nil, api.Invalid("file", "the policy file cannot be read: %w", err)
	}
	return data, nil
}

func noPolicyHere() error {
	return api.Errorf(api.CodeUnsupported, "this program knows no rules of its own").WithHint("ask a daemon: cloche policy explain")
}

// explainFlags are the flags of "policy explain".
type explainFlags struct {
	spec                             sandbox.SpecFlags
	verb, tenant, key, sandbox, file string
}

func policyExplainCommand(a *command.CLI) *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:   "explain [flags] [-- COMMAND...]",
		Short: "Explain the decision about a request",
		Long: `Say whether a request would be granted, by which rules, with which changes, or
which rule would refuse it. The decision is the request's own; nothing is
executed. The flags are those of "cloche create". The tenant's rate isn't
checked.

It asks the running daemon. With --file it uses a policy file; checks that need
the machine are assumed to pass, and reported.

Exit status: 0 the request would be granted, 126 it would be refused.`,
		Example: "  cloche policy explain --tenant acme --mount /srv/data:/data:ro\n  cloche policy explain --file policy.yaml --profile strict --memory 8GiB\n  cloche policy explain --key key-4k2mwd7e3x9qv0ha --verb exec --sandbox box -- ls\n  cloche policy explain --tenant acme --verb add_endpoint --sandbox box --endpoint model=http://127.0.0.1:8080",
		RunE: func(c *cobra.Command, args []string) error {
			q, err := f.question(c.Flags().Changed, a, args)
			if err != nil {
				return err
			}
			if f.file != "" {
				return explainFile(a, f.file, q)
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				answer, err := conn.ExplainPolicy(ctx, q)
				if err != nil {
					return err
				}
				return printAnswer(a, answer)
			})
		},
	}
	c.Flags().SetInterspersed(false)
	var all pflag.FlagSet
	f.spec.Register(&all)
	all.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "file" { // what is copied in is not judged
			c.Flags().AddFlag(flag)
		}
	})
	c.Flags().StringVar(&f.file, "file", "", "use this policy `FILE` instead of a daemon")
	c.Flags().StringVar(&f.verb, "verb", "", "the operation, a `VERB` as in \"cloche events\" (default create, or run with a command)")
	c.Flags().StringVar(&f.tenant, "tenant", "", "the tenant, a `NAME` (default your own)")
	c.Flags().StringVar(&f.key, "key", "", "as a caller with this API key, by its `ID`")
	c.Flags().StringVar(&f.sandbox, "sandbox", "", "the sandbox, for operations on an existing one")
	return c
}

func (f *explainFlags) question(set func(string) bool, a *command.CLI, args []string) (api.PolicyQuestion, error) {
	q := api.PolicyQuestion{Verb: f.verb, Sandbox: f.sandbox, Tenant: f.tenant, Key: f.key}
	if err := command.CheckText("question", q.Verb, q.Sandbox, q.Tenant, q.Key); err != nil {
		return q, err
	}
	var err error
	if q.Spec, err = f.spec.Spec(set, a.Paths(), a.Env.Getenv); err != nil {
		return q, err
	}
	if q.Verb == "add_endpoint" {
		if len(q.Spec.Endpoints) != 1 {
			return q, api.Invalid("endpoint", "there are %d endpoints to ask about", len(q.Spec.Endpoints)).WithHint("name one: --endpoint NAME=TARGET")
		}
		q.Endpoint, q.Spec.Endpoints = &q.Spec.Endpoints[0], nil
	}
	if len(args) > 0 {
		q.Exec = &api.ExecRequest{Argv: args}
		if q.Verb == "" {
			q.Verb = "run"
		}
		if q.Verb != "run" { // in an existing sandbox: the user names it
			q.Exec.Naming, q.Spec.Naming = q.Spec.Naming, api.Naming{}
		}
	}
	return q, nil
}

func explainFile(a *command.CLI, file string, q api.PolicyQuestion) error {
	if a.Env.ExplainPolicy == nil {
		return noPolicyHere()
	}
	data, err := readPolicy(a, file)
	if err != nil {
		return err
	}
	answer, err := a.Env.ExplainPolicy(data, q)
	if err != nil {
		return err
	}
	return printAnswer(a, answer)
}

// printAnswer writes the verdict first, and then why.
func printAnswer(a *command.CLI, p api.PolicyAnswer) error {
	var err error
	if a.JSON {
		err = a.PrintJSON(p)
	} else if _, err = io.WriteString(a.Stdio.Out, answerText(p)); err != nil {
		err = command.OutputError(err)
	}
	if err == nil && !p.Allowed {
		return command.StatusError(command.ExitRefused)
	}
	return err
}

func answerText(p api.PolicyAnswer) string {
	var b strings.Builder
	line := func(format string, args ...any) {
		b.WriteString(terminal.Printable(fmt.Sprintf(format, args...)) + "\n")
	}
	who := "tenant " + p.Tenant
	if p.Operator {
		who = "the operator"
	}
	if p.Allowed {
		line("allowed: %s for %s", p.Verb, who)
	} else {
		line("refused: %s for %s", p.Verb, who)
	}
	if e := p.Refusal; e != nil {
		line("  why: %s", e.Message)
		if e.Rule != "" {
			line("  rule: %s", e.Rule)
		}
		if e.Hint != "" {
			line("  hint: %s", e.Hint)
		}
	}
	for _, g := range p.Grants {
		line("  %s: by %s", g.Field, g.Rule)
	}
	for _, d := range p.Adjusted {
		line("  %s: asked for %s, using %s, by %s", d.Field, d.Asked, d.Used, d.Rule)
	}
	for _, u := range p.Unenforced {
		line("  %s: not enforced: %s", u.Field, u.Reason)
	}
	var passed []string
	for _, s := range p.Steps {
		if !s.Refused {
			passed = append(passed, s.Name)
		} else {
			line("  refused by the check %q", s.Name)
		}
	}
	if len(passed) > 0 {
		line("  passed: %s", strings.Join(passed, ", "))
	}
	for _, s := range p.Assumed {
		line("  assumed: %s", s)
	}
	return b.String()
}
