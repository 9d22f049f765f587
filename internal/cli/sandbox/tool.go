package sandbox

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// toolFlags are those of every file tool.
type toolFlags struct {
	root string
	who  command.NamingFlags
}

// place is what a tool is about.
func (f *toolFlags) place(path string) (api.ToolPlace, error) {
	at := api.ToolPlace{Root: f.root, Path: path}
	if err := command.CheckText("path", f.root, path); err != nil {
		return at, err
	}
	var err error
	at.Naming, err = f.who.Naming()
	return at, err
}

// ToolCommand is "cloche tool".
func ToolCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "tool",
		Short: "Read, edit and search files in a sandbox",
		Long: `Read, write, edit and search text files of a sandbox, with limits for a model.
The tools stay in the sandbox's workspace, or in --root: a path or a symlink
that leads outside is refused. They need no program of the image.`,
		Example: "  cloche tool read box main.py\n  cloche tool grep box 'func [A-Z]' --include '*.go'",
		GroupID: command.GroupRun,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(toolReadCommand(a), toolWriteCommand(a), toolEditCommand(a), toolGlobCommand(a), toolGrepCommand(a))
	return c
}

// toolVerb finishes a verb: it runs do with what the tool is about, which is the
// argument at that index.
func toolVerb(a *command.CLI, c *cobra.Command, path int, do func(ctx context.Context, conn *command.Connection, args []string, at api.ToolPlace) (any, string, error)) *cobra.Command {
	f := &toolFlags{}
	c.ValidArgsFunction = a.CompleteSandboxes
	c.Flags().StringVar(&f.root, "root", "", "the `directory` inside to which the tool is limited (default the workspace)")
	f.who.Register(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := command.CheckText("arguments", args...); err != nil {
			return err
		}
		name := ""
		if path < len(args) {
			name = args[path]
		}
		at, err := f.place(name)
		if err != nil {
			return err
		}
		return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
			v, text, err := do(ctx, conn, args, at)
			switch {
			case err != nil:
				return err
			case a.JSON:
				return a.PrintJSON(v)
			}
			return command.PrintLines(a, text)
		})
	}
	return c
}

// fromTo wants so many arguments.
func fromTo(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return api.Invalid("arguments", "%s: %s, want %s", c.CommandPath(), command.Counted(len(args), "argument"), what).WithHint(`"%s --help" shows how`, c.CommandPath())
		}
		return nil
	}
}

func toolReadCommand(a *command.CLI) *cobra.Command {
	var r api.ToolRead
	c := &cobra.Command{
		Use:     "read SANDBOX PATH",
		Short:   "Print lines of a text file",
		Long:    "Print lines of a text file, at most 50 KiB. A file that isn't text is refused.",
		Example: "  cloche tool read box main.py\n  cloche tool read --first 200 --lines 50 box log.txt",
		Args:    fromTo(2, 2, "a sandbox and a path"),
	}
	c.Flags().IntVar(&r.FirstLine, "first", 1, "start at this line")
	c.Flags().IntVar(&r.Lines, "lines", api.DefaultToolLines, "the number of lines")
	return toolVerb(a, c, 1, func(ctx context.Context, conn *command.Connection, args []string, at api.ToolPlace) (any, string, error) {
		r.ToolPlace = at
		t, err := conn.ReadText(ctx, args[0], r)
		switch {
		case err == nil && t.Binary:
			a.Warn("%s is no text and has %s", t.Path, command.FormatSize(t.Size))
		case err == nil && t.More:
			a.Warn("there is more from line %d on", t.FirstLine+t.Lines)
		}
		return t, t.Content, err
	})
}

func toolWriteCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:     "write SANDBOX PATH",
		Short:   "Write a text file from standard input",
		Long:    "Write standard input to a file, atomically. Missing directories are created.",
		Example: "  cloche tool write box notes/today.md < today.md",
		Args:    fromTo(2, 2, "a sandbox and a path"),
	}
	return toolVerb(a, c, 1, func(ctx context.Context, conn *command.Connection, args []string, at api.ToolPlace) (any, string, error) {
		data, err := io.ReadAll(io.LimitReader(a.Stdio.In, api.MaxToolWrite+1))
		if err != nil {
			return nil, "", fmt.Errorf("read standard input: %w", err)
		}
		if len(data) > api.MaxToolWrite {
			return nil, "", api.Errorf(api.CodeTooLarge, "standard input has over %d bytes", api.MaxToolWrite).WithHint("cloche cp takes files of any size")
		}
		if err := command.CheckText("content", string(data)); err != nil {
			return nil, "", err
		}
		w, err := conn.WriteText(ctx, args[0], api.ToolWrite{ToolPlace: at, Content: string(data)})
		return w, w.Path, err
	})
}

func toolEditCommand(a *command.CLI) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "edit SANDBOX PATH OLD NEW",
		Short: "Replace text in a file",
		Long: `Replace OLD, which must occur once in the file, with NEW; with --all every
occurrence. A file that another process changes meanwhile is left unchanged.`,
		Example: "  cloche tool edit box main.py 'retries = 3' 'retries = 5'",
		Args:    fromTo(4, 4, "a sandbox, a path, the old text and the new"),
	}
	c.Flags().BoolVar(&all, "all", false, "every occurrence")
	return toolVerb(a, c, 1, func(ctx context.Context, conn *command.Connection, args []string, at api.ToolPlace) (any, string, error) {
		w, err := conn.EditText(ctx, args[0], api.ToolEdit{ToolPlace: at, Old: args[2], New: args[3], All: all})
		return w, fmt.Sprintf("%s:%d: replaced %d", w.Path, w.Line, w.Replaced), err
	})
}

func toolGlobCommand(a *command.CLI) *cobra.Command {
	var g api.ToolGlob
	c := &cobra.Command{
		Use:   "glob SANDBOX PATTERN [PATH]",
		Short: "Find files by name",
		Long: `Find files below PATH, or the workspace, by name: "*" and "?" match characters
of a name, "[a-z]" one of these, "{a,b}" either, and "**" any number of
directories. The last changed file comes first. No symlink is followed.`,
		Example: "  cloche tool glob box '**/*.{go,mod}'\n  cloche tool glob box --limit 5 '*' src",
		Args:    fromTo(2, 3, "a sandbox, a pattern and perhaps a path"),
	}
	c.Flags().IntVar(&g.Limit, "limit", api.MaxToolGlob, "the maximum number of files")
	return toolVerb(a, c, 2, func(ctx context.Context, conn *command.Connection, args []string, at api.ToolPlace) (any, string, error) {
		g.ToolPlace, g.Pattern = at, args[1]
		l, err := conn.Glob(ctx, args[0], g)
		var b strings.Builder
		for _, f := range l.Files {
			b.WriteString(f.Path + "\n")
		}
		warnPartial(a, l.Partial)
		return l, b.String(), err
	})
}

func toolGrepCommand(a *command.CLI) *cobra.Command {
	var g api.ToolGrep
	c := &cobra.Command{
		Use:   "grep SANDBOX PATTERN [PATH]",
		Short: "Find lines in text files",
		Long: `Find lines of the file PATH, or of the text files below it or the workspace,
that match PATTERN, a regular expression in RE2 syntax. No symlink is followed
except for PATH itself. Files that aren't text are named.`,
		Example: "  cloche tool grep box 'TODO|FIXME' --include '*.py'\n  cloche tool grep -F box 'a[0]' main.c",
		Args:    fromTo(2, 3, "a sandbox, a pattern and perhaps a path"),
	}
	c.Flags().BoolVarP(&g.Fixed, "fixed", "F", false, "PATTERN is plain text")
	c.Flags().BoolVarP(&g.IgnoreCase, "ignore-case", "i", false, "ignore case")
	c.Flags().StringVar(&g.Include, "include", "", "search only files that match this `pattern`, as for glob")
	c.Flags().IntVar(&g.Limit, "limit", api.MaxToolGrep, "the maximum number of lines")
	return toolVerb(a, c, 2, func(ctx context.Context, conn *command.Connection, args []string, at api.ToolPlace) (any, string, error) {
		g.ToolPlace, g.Pattern = at, args[1]
		l, err := conn.Grep(ctx, args[0], g)
		var b strings.Builder
		for _, m := range l.Matches {
			fmt.Fprintf(&b, "%s:%d:%s\n", m.Path, m.Line, m.Text)
		}
		for _, name := range l.Binary {
			a.Warn("%s is no text", name)
		}
		for _, name := range l.Unread {
			a.Warn("%s was not looked into", name)
		}
		warnPartial(a, l.Partial)
		return l, b.String(), err
	})
}

// warnPartial says why there may be more.
func warnPartial(a *command.CLI, p api.ToolPartial) {
	if p != "" {
		a.Warn("there may be more: the search ended at its bound of %s", p)
	}
}
