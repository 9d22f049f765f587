package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// completionTimeout keeps a shell's prompt responsive.
const completionTimeout = 2 * time.Second

// Live is true for states in which something may run.
func Live(s api.State) bool {
	return s == api.StateCreating || s == api.StateRunning || s.Held() || s == api.StateStopping || s == api.StateDeleting
}

// Each does one thing to everything that was named. A failure does not keep
// it from the others; the first one is the verb's result.
func (a *CLI) Each(ctx context.Context, refs []string, doing string, do func(context.Context, *Connection, string) (any, error)) error {
	ctx, cancel := Interruptible(ctx)
	defer cancel()
	conn, err := a.Daemon()
	if err != nil {
		return err
	}
	defer conn.Close()
	return a.eachOf(ctx, conn, refs, doing, func(ctx context.Context, conn *Connection, i int) (any, error) { return do(ctx, conn, refs[i]) })
}

// eachOf is each over a connection that is there, with the index of the one in turn.
func (a *CLI) eachOf(ctx context.Context, conn *Connection, refs []string, doing string, do func(context.Context, *Connection, int) (any, error)) error {
	var first error
	for i, ref := range refs {
		p := StartProgress(a.Stdio.Err, a.ShowProgress(), doing+" "+ref)
		v, err := do(ctx, conn, i)
		p.Stop()
		switch {
		case err != nil && first == nil:
			first = err
		case err != nil:
			PrintError(a.Stdio.Err, err, a.JSON)
		case a.JSON:
			if err := a.PrintJSON(v); err != nil {
				return err
			}
		default:
			fmt.Fprintln(a.Stdio.Out, terminal.Printable(ref))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

// CompleteSandboxes completes names of sandboxes in a shell.
func (a *CLI) CompleteSandboxes(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(c, func(ctx context.Context, conn *Connection) ([]string, error) {
		list, err := conn.List(ctx, api.ListOptions{})
		var refs []string
		for _, sb := range list.Sandboxes {
			refs = append(refs, sb.Name)
		}
		return refs, err
	})
}

// complete asks the daemon for what may stand in a place. A shell that waits for
// its prompt hears of no errors.
func (a *CLI) complete(c *cobra.Command, ask func(context.Context, *Connection) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	conn, err := a.Daemon()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.Close()
	words, err := ask(ctx, conn)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// WithDaemon does one thing with the daemon until the user interrupts it.
func (a *CLI) WithDaemon(c *cobra.Command, do func(context.Context, *Connection) error) error {
	ctx, cancel := Interruptible(c.Context())
	defer cancel()
	conn, err := a.Daemon()
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(ctx, conn)
}
