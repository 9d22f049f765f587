package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// defaultMaxCopy bounds a directory that is copied out of a sandbox, whose size
// the sandbox decides.
const defaultMaxCopy = 16 << 30

// maxLinks is how many symlinks in a row are followed.
const maxLinks = 40

// CpCommand is "cloche cp".
func CpCommand(a *command.CLI) *cobra.Command {
	var maxSize string
	var o tarFlags
	c := &cobra.Command{
		Use:   "cp SRC DST",
		Short: "Copy files into or out of a sandbox",
		Long: `Copy a file or a directory between this machine and a sandbox. A path in a
sandbox is SANDBOX:PATH. A relative PATH starts at the sandbox's working
directory.

If DST is an existing directory, the copy is created inside it; otherwise DST is
the name of the copy. "DIR/." is the content of a directory without the
directory itself. As SRC or DST, "-" is a tar stream on standard input or
output. Write a local path with a colon with a slash, as in ./a:b.

With --atomic a directory or tar stream is put in place in the sandbox after all
of it was received and validated, or not at all. --clear removes the existing
files of the directory, so that it has only what SRC has.

Files from a sandbox are untrusted: links that lead out of the copy, devices and
set-id bits are omitted and reported.`,
		Example: `  cloche cp ./src build:
  cloche cp build:/workspace/out.csv .
  cloche cp build:/workspace - | tar tf -
  cloche cp --copy-hard-links build:/workspace - > work.tar
  cloche cp --exclude .git --exclude node_modules ./app build:/workspace/app
  cloche cp --atomic --clear ./release/. build:/srv/app`,
		GroupID: command.GroupRun,
		Args:    command.Exactly(2, "SRC and DST"),
		RunE: func(c *cobra.Command, args []string) error {
			limit, err := command.ParseSize("--max-size", "max-size", maxSize)
			if err != nil {
				return err
			}
			src, dst := command.ParseLocation(args[0]), command.ParseLocation(args[1])
			if err := o.check(dst.Sandbox != ""); err != nil {
				return err
			}
			switch {
			case src.Sandbox != "" && dst.Sandbox != "":
				return api.Invalid("dst", "both paths are in a sandbox").WithHint("copy through a pipe: cloche cp %s - | cloche cp - %s", terminal.Clip(args[0]), terminal.Clip(args[1]))
			case src.Sandbox == "" && dst.Sandbox == "":
				return api.Invalid("dst", "neither %q nor %q is in a sandbox", terminal.Clip(args[0]), terminal.Clip(args[1])).WithHint("a path in a sandbox is written SANDBOX:PATH")
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				cp := copier{app: a, conn: conn, maxBytes: limit, tar: o}
				return cp.copy(ctx, src, dst)
			})
		},
	}
	c.Flags().StringVar(&maxSize, "max-size", command.FormatLimit(defaultMaxCopy), "refuse to copy more than this out of a sandbox")
	o.register(c.Flags())
	return c
}

// copier is one copy.
type copier struct {
	app      *command.CLI
	conn     *command.Connection
	maxBytes int64
	tar      tarFlags
}

func (c *copier) copy(ctx context.Context, src, dst command.Location) error {
	remote := src
	if dst.Sandbox != "" {
		remote = dst
	}
	sb, err := c.conn.Get(ctx, remote.Sandbox)
	if err != nil {
		return err
	}
	remote.Sandbox = sb.ID
	inside := remote.Path
	if !path.IsAbs(inside) {
		inside = sb.Cwd + "/" + inside
	}
	p := command.StartProgress(c.app.Stdio.Err, c.app.ShowProgress() && src.Path != "-" && dst.Path != "-", "copying")
	var report api.TarReport
	if dst.Sandbox != "" {
		report, err = c.in(ctx, src.Path, sb.ID, inside)
	} else {
		report, err = c.out(ctx, sb.ID, inside, dst.Path)
	}
	p.Stop()
	if err != nil {
		return err
	}
	if c.app.JSON && dst.Path == "-" {
		return nil // standard output is the archive
	}
	if c.app.JSON {
		return c.app.PrintJSON(report)
	}
	c.app.WarnSkipped(report.Skipped)
	return nil
}

// in copies from this machine into a sandbox.
func (c *copier) in(ctx context.Context, src, ref, dst string) (api.TarReport, error) {
	if src == "-" {
		if c.app.Stdio.In == nil {
			return api.TarReport{}, api.Invalid("src", "there is no standard input to read a tar stream from")
		}
		return c.conn.TarIn(ctx, ref, path.Clean(dst), c.tar.in(true), c.app.Stdio.In)
	}
	info, err := os.Stat(src)
	if err != nil {
		return api.TarReport{}, localdir.Error("read", src, err)
	}
	onlyContent := strings.HasSuffix(filepath.ToSlash(src), "/.") || src == "."
	dst, err = c.target(ctx, ref, dst, baseName(src), info.IsDir() && onlyContent)
	if err != nil {
		return api.TarReport{}, err
	}
	if info.IsDir() {
		return c.dirIn(ctx, src, ref, dst)
	}
	if !info.Mode().IsRegular() {
		return api.TarReport{}, api.Invalid("src", "%s is neither a file nor a directory", terminal.Printable(src)).WithHint("pipe it: cat FILE | cloche exec SANDBOX -- tee PATH")
	}
	f, err := os.Open(src)
	if err != nil {
		return api.TarReport{}, localdir.Error("read", src, err)
	}
	defer f.Close()
	mode := uint32(0)
	if runtime.GOOS != "windows" {
		mode = uint32(info.Mode().Perm())
	}
	got, err := c.conn.WriteFileFrom(ctx, ref, dst, f, mode)
	return api.TarReport{Entries: 1, Bytes: got.Size}, err
}

// target is where a copy called base goes when the user wrote dst: inside of a
// directory that exists, else to dst itself.
func (c *copier) target(ctx context.Context, ref, dst, base string, onlyContent bool) (string, error) {
	wantDir := strings.HasSuffix(dst, "/")
	clean := path.Clean(dst)
	info, _, err := c.stat(ctx, ref, clean)
	switch {
	case errors.Is(err, api.ErrNotFound) && wantDir && !onlyContent:
		return "", api.Invalid("dst", "%s is not a directory of the sandbox", terminal.Printable(dst)).WithHint("make it first: cloche exec SANDBOX -- mkdir -p %s", terminal.Printable(dst))
	case errors.Is(err, api.ErrNotFound):
		return clean, nil
	case err != nil:
		return "", err
	case info.Type == api.TypeDir && !onlyContent:
		return path.Join(clean, base), nil
	}
	return clean, nil
}

// baseName returns the name of a copy in a directory. For "." and ".." it is the name of that
// directory.
func baseName(src string) string {
	if abs, err := filepath.Abs(src); err == nil {
		src = abs
	}
	return filepath.Base(src)
}

// dirIn sends a directory as a tar stream while it is read.
func (c *copier) dirIn(ctx context.Context, src, ref, dst string) (api.TarReport, error) {
	var sent api.TarReport
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := localdir.Pack(w, src, c.tar.exclude, &sent)
		w.CloseWithError(err)
		packed <- err
	}()
	got, err := c.conn.TarIn(ctx, ref, dst, c.tar.in(false), r)
	r.CloseWithError(context.Canceled) // ends a packer that is no longer read
	perr := <-packed
	if perr != nil && !errors.Is(perr, context.Canceled) {
		return got, perr
	}
	got.Skipped = append(sent.Skipped, got.Skipped...)
	return got, err
}

// out copies from a sandbox to this machine.
func (c *copier) out(ctx context.Context, ref, src, dst string) (api.TarReport, error) {
	onlyContent := strings.HasSuffix(src, "/.")
	info, src, err := c.stat(ctx, ref, path.Clean(src))
	if err != nil {
		return api.TarReport{}, err
	}
	if dst == "-" {
		if _, tty := command.TerminalOf(c.app.Stdio.Out); tty {
			return api.TarReport{}, api.Invalid("dst", "an archive is no text for a terminal").WithHint("send standard output to a file or a pipe")
		}
		return c.conn.TarOut(ctx, ref, src, c.tar.out(), c.app.Stdio.Out)
	}
	local, lerr := os.Stat(dst)
	isDir := lerr == nil && local.IsDir()
	if lerr != nil && !errors.Is(lerr, fs.ErrNotExist) {
		return api.TarReport{}, localdir.Error("write", dst, lerr)
	}
	if lerr != nil && info.Type != api.TypeDir && os.IsPathSeparator(dst[len(dst)-1]) {
		return api.TarReport{}, api.Invalid("dst", "%s is not a directory", terminal.Printable(dst)).WithHint("make it first, or leave the slash out to give the copy this name")
	}
	if isDir && !onlyContent {
		base, ok := localdir.LocalName(path.Base(src))
		if !ok || base == "." || path.Base(src) == "/" {
			return api.TarReport{}, api.Invalid("src", "the copy of %s has no name here", terminal.Printable(src)).WithHint("give DST a name that does not exist, or write SRC with /. at its end")
		}
		dst = filepath.Join(dst, base)
	}
	switch info.Type {
	case api.TypeDir:
		return c.dirOut(ctx, ref, src, dst)
	case api.TypeFile:
		return c.fileOut(ctx, ref, src, dst, info)
	}
	return api.TarReport{}, api.Invalid("src", "%s is neither a file nor a directory", terminal.Printable(src)).WithHint("pipe it: cloche exec SANDBOX -- cat PATH")
}

// stat describes what a path leads to, following links as the sandbox itself
// would, and returns the path that it ended at.
func (c *copier) stat(ctx context.Context, ref, p string) (api.FileInfo, string, error) {
	for range maxLinks {
		info, err := c.conn.StatFile(ctx, ref, p)
		if err != nil || info.Type != api.TypeSymlink || info.LinkTarget == "" {
			return info, p, err
		}
		if path.IsAbs(info.LinkTarget) {
			p = path.Clean(info.LinkTarget)
		} else {
			p = path.Join(path.Dir(p), info.LinkTarget)
		}
	}
	return api.FileInfo{}, p, api.Invalid("path", "%s is a link that goes in circles", terminal.Printable(p))
}

// dirOut unpacks a directory of a sandbox here.
func (c *copier) dirOut(ctx context.Context, ref, src, dst string) (api.TarReport, error) {
	if err := os.Mkdir(dst, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return api.TarReport{}, localdir.Error("make directory", dst, err)
	}
	root, err := os.OpenRoot(dst)
	if err != nil {
		return api.TarReport{}, localdir.Error("open directory", dst, err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	type sent struct {
		report api.TarReport
		err    error
	}
	received := make(chan sent, 1)
	go func() {
		report, err := c.conn.TarOut(ctx, ref, src, c.tar.out(), w)
		w.CloseWithError(err)
		received <- sent{report, err}
	}()
	u := localdir.Unpacker{Root: root, MaxBytes: c.maxBytes}
	uerr := u.Unpack(r)
	if uerr == nil {
		_, uerr = io.Copy(io.Discard, r) // what stands behind the archive's end
	}
	if uerr != nil {
		cancel()
		r.CloseWithError(context.Canceled)
	}
	s := <-received
	u.Report.Skipped = append(s.report.Skipped, u.Report.Skipped...)
	if uerr != nil {
		if e, ok := errors.AsType[*api.Error](uerr); ok {
			return u.Report, e
		}
		return u.Report, api.Errorf(api.CodeInternal, "%w", uerr)
	}
	return u.Report, s.err
}

// fileOut copies one file. One that exists is replaced when all of the copy has
// arrived; a device or a pipe is written to.
func (c *copier) fileOut(ctx context.Context, ref, src, dst string, info api.FileInfo) (api.TarReport, error) {
	r, opened, err := c.conn.OpenFile(ctx, ref, src, 0, -1)
	if err != nil {
		return api.TarReport{}, err
	}
	defer r.Close()
	if opened.Type != "" {
		info = opened
	}
	mode := fs.FileMode(info.Mode & 0o777)
	f, finish, err := c.createLocal(dst, mode)
	if err != nil {
		return api.TarReport{}, localdir.Error("write", dst, err)
	}
	n, err := io.Copy(f, r)
	if err != nil {
		_ = finish(false)
		if e, ok := errors.AsType[*api.Error](err); ok {
			return api.TarReport{}, e
		}
		return api.TarReport{}, localdir.Error("write", dst, err)
	}
	if err := finish(true); err != nil {
		return api.TarReport{}, localdir.Error("write", dst, err)
	}
	return api.TarReport{Entries: 1, Bytes: n}, nil
}

// createLocal opens dst for a copy. finish(true) puts it in place, finish(false)
// leaves what was there as it was.
func (c *copier) createLocal(dst string, mode fs.FileMode) (*os.File, func(ok bool) error, error) {
	if info, err := os.Stat(dst); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(dst, os.O_WRONLY, 0)
		if err != nil {
			return nil, nil, err
		}
		return f, func(bool) error { return f.Close() }, nil
	}
	// A link is followed, as any program that writes to it would.
	if real, err := filepath.EvalSymlinks(dst); err == nil {
		dst = real
	}
	f, err := os.CreateTemp(filepath.Dir(dst), ".cloche-cp-*")
	if err != nil {
		return nil, nil, err
	}
	return f, func(ok bool) error {
		err := f.Chmod(mode)
		if runtime.GOOS == "windows" {
			err = nil // it knows no such bits
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if ok && err == nil {
			if err = os.Rename(f.Name(), dst); err == nil {
				return nil
			}
		}
		if rerr := os.Remove(f.Name()); rerr != nil && err == nil {
			return fmt.Errorf("remove the partial copy: %w", rerr)
		}
		return err
	}, nil
}
