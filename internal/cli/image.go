package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche"
)

func (a *app) imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "image",
		Short:   "Root filesystems that a sandbox can have",
		Long:    "Root filesystems that a sandbox can have.",
		Example: "  cloche image ls",
		GroupID: groupLook,
		Args:    a.unknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:     "ls",
		Short:   "List images",
		Long:    "List the images that a create can name.",
		Example: "  cloche image ls\n  cloche image ls --json",
		Args:    exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				list, err := conn.Images(ctx)
				if err != nil {
					return err
				}
				if a.json {
					list.Images = append([]cloche.Image{}, list.Images...)
					return a.printJSON(list)
				}
				var rows [][]string
				for _, im := range list.Images {
					rows = append(rows, []string{im.Name, formatSize(im.SizeBytes), im.Description})
				}
				return writeTable(a.stdio.Out, []string{"NAME", "SIZE", "DESCRIPTION"}, rows)
			})
		},
	})
	return c
}
