package image

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

func imageImportCommand(a *command.CLI) *cobra.Command {
	var o api.ImportOptions
	var format string
	var quiet bool
	c := &cobra.Command{
		Use:   "import [flags] FILE|DIR|-",
		Short: "Import an image from an archive or a directory",
		Long: `Import an image from an archive: a tar of an OCI layout, the output of "docker
save", or a tar of a root filesystem, compressed or not; or from a directory: an
OCI layout or a root filesystem. The form is detected. - is standard input. The
data is streamed to the daemon, also to a remote one.`,
		Example: `  docker save my/tool | cloche image import -
  cloche image import --name base:1 ./rootfs
  cloche image import --name tool --format oci-archive tool.tar.gz`,
		Args: command.Exactly(1, "one file or directory, or -"),
		RunE: func(c *cobra.Command, args []string) error {
			o.Format = api.ImageFormat(format)
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				return makeImage(ctx, a, quiet, "importing", func(ctx context.Context) (api.Image, error) {
					return importFrom(ctx, a, conn, args[0], o)
				})
			})
		},
	}
	c.Flags().StringVar(&o.Name, "name", "", "the name of the image (default: its name in the archive)")
	c.Flags().StringVar(&format, "format", "", "the required form: oci-archive, docker-archive or tar")
	c.Flags().StringVar(&o.Ref, "ref", "", "which of several images, by its `NAME` in the archive")
	c.Flags().StringVar(&o.Platform, "platform", "", "the `OS/ARCH` of the image (default the daemon's)")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print no progress")
	return c
}

// importFrom streams a file, a directory or standard input.
func importFrom(ctx context.Context, a *command.CLI, conn *command.Connection, from string, o api.ImportOptions) (api.Image, error) {
	if from == "-" {
		return conn.ImportImage(ctx, a.Stdio.In, o)
	}
	info, err := os.Stat(from)
	if err != nil {
		return api.Image{}, localdir.Error("import", from, err)
	}
	if !info.IsDir() {
		f, err := os.Open(from)
		if err != nil {
			return api.Image{}, localdir.Error("import", from, err)
		}
		defer f.Close()
		return conn.ImportImage(ctx, f, o)
	}
	var report api.TarReport
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := localdir.PackRoot(w, from, &report)
		w.CloseWithError(err)
		packed <- err
	}()
	img, err := conn.ImportImage(ctx, r, o)
	r.CloseWithError(io.ErrClosedPipe) // a daemon that refused reads no further
	perr := <-packed
	if e := command.AsErrorOrNil(perr); e != nil && e.Code == api.CodeInvalid {
		return api.Image{}, e // why it broke off
	}
	if err == nil {
		a.WarnSkipped(report.Skipped)
	}
	return img, err
}

func imagePackCommand(a *command.CLI) *cobra.Command {
	var argv, env []string
	var user, dir string
	var quiet bool
	c := &cobra.Command{
		Use:   "pack [flags] NAME PATH...",
		Short: "Pack programs of this machine into an image",
		Long: `Pack programs of the daemon's machine into an image, each with its libraries
and interpreter, and from whole directories. Name files that programs load by
other means too, such as plugins.`,
		Example: `  cloche image pack base /bin/sh /usr/bin/env /usr/bin/git
  cloche image pack --cmd python3 py /usr/bin/python3 /usr/lib/python3 /usr/lib/python3.11`,
		Args: command.AtLeast(2, "a name and paths"),
		RunE: func(c *cobra.Command, args []string) error {
			req := api.ImagePackRequest{Name: args[0], Paths: args[1:]}
			if len(argv)+len(env) > 0 || user != "" || dir != "" {
				req.Config = &api.ImageConfig{Cmd: argv, Env: env, User: user, WorkingDir: dir}
			}
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				return makeImage(ctx, a, quiet, "packing", func(ctx context.Context) (api.Image, error) { return conn.PackImage(ctx, req) })
			})
		},
	}
	registerConfig(c.Flags(), &argv, &env, &user, &dir)
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print no progress")
	return c
}
