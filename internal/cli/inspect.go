package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche"
)

func (a *app) inspectCommand() *cobra.Command {
	var processes bool
	c := &cobra.Command{
		Use:   "inspect SANDBOX...",
		Short: "Show everything that is on record about sandboxes",
		Long: `Show the record of each sandbox as JSON: what was granted, what was adjusted,
what this machine cannot enforce. With --processes show instead each command
that was started in it, and how it ended. With --json each document is one line.`,
		Example:           "  cloche inspect build\n  cloche inspect --processes build",
		GroupID:           groupLook,
		Args:              names,
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				for _, ref := range args {
					if err := a.inspect(ctx, conn, ref, processes); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&processes, "processes", false, "show the commands that were started in it")
	return c
}

func (a *app) inspect(ctx context.Context, conn *connection, ref string, processes bool) error {
	var v any
	if processes {
		list, err := conn.Processes(ctx, ref)
		if err != nil {
			return err
		}
		v = struct {
			Processes []cloche.Process `json:"processes"`
		}{append([]cloche.Process{}, list...)}
	} else {
		sb, err := conn.Get(ctx, ref)
		if err != nil {
			return err
		}
		v = sb.Sandbox
	}
	if a.json {
		return a.printJSON(v)
	}
	enc := json.NewEncoder(a.stdio.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return outputError(err)
	}
	return nil
}
