package image

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Command is "cloche image".
func Command(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Manage images",
		Long: `Images are root filesystems of sandboxes: "host", with this machine's own tools,
and images from registries, archives, directories and programs of this machine.
Without a daemon, these commands use the home directly.`,
		Example: "  cloche image ls\n  cloche image pull python:3.11-slim",
		GroupID: command.GroupLook,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		ListCommand(a), PullCommand(a), imageImportCommand(a), imageBuildCommand(a), imageCommitCommand(a), imageExportCommand(a), imagePackCommand(a),
		imageInspectCommand(a), RemoveCommand(a), imagePruneCommand(a),
	)
	return c
}

// ListCommand is "cloche image ls".
func ListCommand(a *command.CLI) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use:        "ls [flags]",
		Aliases:    []string{"list"},
		SuggestFor: []string{"images"},
		Short:      "List images",
		Long:       "List the local images that a create can use.",
		Example:    "  cloche image ls\n  cloche image ls --json",
		Args:       command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Images(ctx)
				if err != nil {
					return err
				}
				if a.JSON {
					list.Images = append([]api.Image{}, list.Images...)
					return a.PrintJSON(list)
				}
				if quiet {
					for _, im := range list.Images {
						if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(im.Name)); err != nil {
							return err
						}
					}
					return nil
				}
				var rows [][]string
				for _, im := range list.Images {
					rows = append(rows, []string{im.Name, shortDigest(im.Digest), command.FormatSize(im.SizeBytes), im.Source, usedAgo(im)})
				}
				return command.WriteTable(a.Stdio.Out, []string{"NAME", "DIGEST", "SIZE", "SOURCE", "USED"}, rows)
			})
		},
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	return c
}

// shownDigest says whether s is what a list shows of a digest, or more of it.
func shownDigest(s string) bool {
	s = strings.TrimPrefix(s, "sha256:")
	return len(s) >= 12 && len(s) <= 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// imageRef is what a user means by the name of an image that is here: also the
// beginning of one digest, as the list shows it, where no image has it as a name.
func imageRef(ctx context.Context, conn *command.Connection, ref string) (string, error) {
	if !shownDigest(ref) || api.ValidDigest(ref) {
		return ref, nil
	}
	list, err := conn.Images(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, im := range list.Images {
		if im.Name == ref || im.Name == ref+":latest" {
			return ref, nil
		}
		if strings.HasPrefix(strings.TrimPrefix(im.Digest, "sha256:"), strings.TrimPrefix(ref, "sha256:")) {
			found = append(found, im.Digest)
		}
	}
	switch found = slices.Compact(slices.Sorted(slices.Values(found))); len(found) {
	case 0:
		return ref, nil
	case 1:
		return found[0], nil
	}
	return "", api.Invalid("image", "the digests of %d images begin with %q", len(found), terminal.Clip(ref)).WithHint("write more of it, or a name")
}

// usedAgo returns when an image was last used, for display.
func usedAgo(im api.Image) string {
	if im.UsedAt == nil {
		return "-"
	}
	return command.FormatAge(time.Since(*im.UsedAt))
}

// PullCommand is "cloche image pull".
func PullCommand(a *command.CLI) *cobra.Command {
	var req api.PullRequest
	var quiet bool
	c := &cobra.Command{
		Use:   "pull [flags] IMAGE",
		Short: "Pull an image from its registry",
		Long: `Pull an image from its registry, also if a local one has that name. Progress is
printed on standard error. Logins come from the Docker configuration of the
daemon's user. An interrupted pull is continued by the next one.`,
		Example: "  cloche image pull python:3.11-slim\n  cloche image pull --platform linux/arm64 registry.example/team/tool@sha256:…",
		Args:    command.Exactly(1, "one image"),
		RunE: func(c *cobra.Command, args []string) error {
			req.Image = args[0]
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				return makeImage(ctx, a, quiet, "asking the registry", func(ctx context.Context) (api.Image, error) { return conn.Pull(ctx, req) })
			})
		},
	}
	c.Flags().StringVar(&req.Platform, "platform", "", "the `OS/ARCH` of the image (default the daemon's)")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print no progress")
	return c
}

// makeImage does what brings an image here, tells how far it is and prints its
// name and digest.
func makeImage(ctx context.Context, a *command.CLI, quiet bool, what string, do func(context.Context) (api.Image, error)) error {
	v := WatchCreate(a, what, quiet)
	img, err := do(client.WithPullProgress(ctx, v.Pulling))
	v.Stop()
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(img)
	}
	if !quiet {
		for _, note := range img.Notes {
			a.Warn("%s: %s", img.Name, note)
		}
	}
	_, err = fmt.Fprintf(a.Stdio.Out, "%s %s\n", terminal.Printable(img.Name), terminal.Printable(img.Digest))
	return err
}

func imageInspectCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:        "inspect IMAGE...",
		SuggestFor: []string{"show"},
		Short:      "Show details of images",
		Long: `Show each local image as JSON: digests, configuration, layers, and what was
omitted.`,
		Example: "  cloche image inspect python:3.11-slim",
		Args:    command.AtLeast(1, "images"),
		RunE: func(c *cobra.Command, args []string) error {
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				for _, arg := range args {
					ref, err := imageRef(ctx, conn, arg)
					if err != nil {
						return err
					}
					img, err := conn.InspectImage(ctx, ref)
					if err != nil {
						return err
					}
					if a.JSON {
						err = a.PrintJSON(img)
					} else {
						err = a.EncodeJSON(img, "  ")
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// RemoveCommand is "cloche image rm".
func RemoveCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:        "rm IMAGE...",
		Aliases:    []string{"remove", "delete"},
		SuggestFor: []string{"rmi", "del"},
		Short:      "Remove images",
		Long: `Remove images. A name removes that name, and the image with its last name; a
digest removes the image with all its names. An image that a sandbox or a
snapshot uses is kept, also for a stopped sandbox.`,
		Example: "  cloche image rm python:3.11-slim",
		Args:    command.AtLeast(1, "images"),
		RunE: func(c *cobra.Command, args []string) error {
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				for _, ref := range args {
					is, err := imageRef(ctx, conn, ref)
					if err != nil {
						return err
					}
					if err := conn.RemoveImage(ctx, is); err != nil {
						return err
					}
					if a.JSON {
						if err := a.PrintJSON(command.Removed{Removed: ref}); err != nil {
							return err
						}
					}
				}
				return nil
			})
		},
	}
}

func imagePruneCommand(a *command.CLI) *cobra.Command {
	var most string
	var dryRun, all bool
	c := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove unused images",
		Long: `Remove images until they use at most --max, or the limit of the policy file.
Layers that are kept for later pulls are removed first, then unused images, the
least recently used first.`,
		Example: "  cloche image prune --max 10GiB\n  cloche image prune --max 0 --dry-run",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			req := api.ImagePruneRequest{DryRun: dryRun}
			if all && most != "" {
				return api.Invalid("arguments", "--all and --max ask for different things").WithHint("--all is --max 0: give one of them")
			}
			if all {
				req.MaxBytes = new(int64)
			} else if c.Flags().Changed("max") {
				n := int64(0)
				if most != "0" {
					var err error
					if n, err = command.ParseSize("--max", "max_bytes", most); err != nil {
						return err
					}
				}
				req.MaxBytes = &n
			}
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error { return prune(ctx, a, conn, req) })
		},
	}
	c.Flags().StringVar(&most, "max", "", "the maximum disk use of images, a `SIZE` such as 10GiB; 0 keeps only images in use")
	c.Flags().BoolVarP(&all, "all", "a", false, "keep only images in use: --max 0")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	return c
}

func prune(ctx context.Context, a *command.CLI, conn *command.Connection, req api.ImagePruneRequest) error {
	out, err := conn.PruneImages(ctx, req)
	if err != nil {
		return err
	}
	if a.JSON {
		out.Removed = append([]api.Image{}, out.Removed...)
		return a.PrintJSON(out)
	}
	for _, im := range out.Removed {
		fmt.Fprintf(a.Stdio.Out, "%s %s\n", terminal.Printable(im.Name), terminal.Printable(im.Digest))
	}
	verb := "freed"
	if req.DryRun {
		verb = "would free"
	}
	_, err = fmt.Fprintf(a.Stdio.Out, "%s %s; images occupy %s\n", verb, command.FormatSize(out.FreedBytes), command.FormatSize(out.UsedBytes))
	return err
}
