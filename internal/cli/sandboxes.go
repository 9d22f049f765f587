package cli

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

// live is true for states in which something may run.
func live(s api.State) bool {
	return s == api.StateCreating || s == api.StateRunning || s == api.StatePaused || s == api.StateStopping || s == api.StateDeleting
}

// each does one thing to everything that was named. A failure does not keep
// it from the others; the first one is the verb's result.
func (a *app) each(ctx context.Context, refs []string, doing string, do func(context.Context, *connection, string) (any, error)) error {
	ctx, cancel := interruptible(ctx)
	defer cancel()
	conn, err := a.daemon()
	if err != nil {
		return err
	}
	defer conn.close()
	return a.eachOf(ctx, conn, refs, doing, func(ctx context.Context, conn *connection, i int) (any, error) { return do(ctx, conn, refs[i]) })
}

// eachOf is each over a connection that is there, with the index of the one in turn.
func (a *app) eachOf(ctx context.Context, conn *connection, refs []string, doing string, do func(context.Context, *connection, int) (any, error)) error {
	var first error
	for i, ref := range refs {
		p := startProgress(a.stdio.Err, a.showProgress(), doing+" "+ref)
		v, err := do(ctx, conn, i)
		p.stop()
		switch {
		case err != nil && first == nil:
			first = err
		case err != nil:
			printError(a.stdio.Err, err, a.json)
		case a.json:
			if err := a.printJSON(v); err != nil {
				return err
			}
		default:
			fmt.Fprintln(a.stdio.Out, terminal.Printable(ref))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

// completeSandboxes completes names of sandboxes in a shell.
func (a *app) completeSandboxes(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(c, func(ctx context.Context, conn *connection) ([]string, error) {
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
func (a *app) complete(c *cobra.Command, ask func(context.Context, *connection) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	conn, err := a.daemon()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.close()
	words, err := ask(ctx, conn)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// withDaemon does one thing with the daemon until the user interrupts it.
func (a *app) withDaemon(c *cobra.Command, do func(context.Context, *connection) error) error {
	ctx, cancel := interruptible(c.Context())
	defer cancel()
	conn, err := a.daemon()
	if err != nil {
		return err
	}
	defer conn.close()
	return do(ctx, conn)
}
