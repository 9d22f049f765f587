package skill

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// maxInstructions bounds what is read of a file for a skill, one byte over what it
// may be, so that the daemon says so.
const maxInstructions = 1<<20 + 1

const SkillUsage = "one of your skills, `NAME[:ro|rw]`, at .skills/NAME below the workspace; * is all of them (repeatable)"

// Command is "cloche skill".
func Command(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "skill",
		Short: "Manage skills: instructions and files for agents",
		Long: `A skill is a package of files with a SKILL.md that tells an agent how to do
something. Skills belong to you, not to a sandbox; "cloche run --skill NAME"
mounts one at .skills/NAME in the workspace.`,
		Example: "  cloche skill add ./pdf\n  cloche run --skill pdf -- cat .skills/pdf/SKILL.md\n  cloche skill ls",
		GroupID: command.GroupLook,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(skillListCommand(a), skillAddCommand(a), skillShowCommand(a), skillEditCommand(a), skillRemoveCommand(a), skillFilesCommand(a))
	return c
}

func skillListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List skills",
		Long:    "List your skills, last changed first, and packages that can't be read.",
		Example: "  cloche skill ls\n  cloche skill ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Skills(ctx, false)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, sk := range list.Skills {
					rows = append(rows, []string{terminal.Printable(sk.Name), command.FormatAge(time.Since(sk.UpdatedAt)) + " ago", terminal.Printable(firstWords(sk.Description))})
				}
				for _, f := range list.Faults {
					rows = append(rows, []string{terminal.Printable(f.Dir), "-", "cannot be read: " + terminal.Printable(f.Error.Message)})
				}
				return command.WriteTable(a.Stdio.Out, []string{"NAME", "CHANGED", "DESCRIPTION"}, rows)
			})
		},
	}
}

// firstWords is a text for a column of a table.
func firstWords(s string) string {
	const limit = 60
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

func skillAddCommand(a *command.CLI) *cobra.Command {
	var o api.SkillArchive
	var preview bool
	c := &cobra.Command{
		Use:   "add [flags] DIR|ZIP|-",
		Short: "Install skills from a directory or a zip",
		Long: `Install the skill in a directory or a zip archive; - is an archive on standard
input. If there are several, --only selects them. Symlinks are refused, and so
is more than 20 MiB as an archive or 64 MiB unpacked.`,
		Example: "  cloche skill add ./pdf\n  cloche skill add --subdir skills --only pdf --only xlsx repo.zip\n  cloche skill add --preview repo.zip",
		Args:    command.Exactly(1, "DIR, ZIP or -"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.CheckText("skill", append([]string{o.Subdir}, o.Paths...)...); err != nil {
				return err
			}
			in, err := openSkill(a, args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				if preview {
					list, err := conn.PreviewSkills(ctx, in, o)
					if err != nil {
						return err
					}
					return printPreviews(a, list)
				}
				list, err := conn.InstallSkills(ctx, in, o)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(list)
				}
				for _, sk := range list.Skills {
					if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(sk.Name)); err != nil {
						return command.OutputError(err)
					}
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&o.Subdir, "subdir", "", "search skills below this directory of the archive, a `PATH`")
	c.Flags().StringArrayVar(&o.Paths, "only", nil, "install the skill at this `PATH`, as --preview shows it (repeatable)")
	c.Flags().BoolVar(&preview, "preview", false, "only list the skills")
	return c
}

func printPreviews(a *command.CLI, list api.SkillPreviewList) error {
	if a.JSON {
		return a.PrintJSON(list)
	}
	var rows [][]string
	for _, pv := range list.Skills {
		state := "new"
		if pv.Taken {
			state = "there already"
		}
		at := pv.Path
		if at == "" {
			at = "."
		}
		rows = append(rows, []string{terminal.Printable(at), terminal.Printable(pv.Name), state, terminal.Printable(firstWords(pv.Description))})
	}
	return command.WriteTable(a.Stdio.Out, []string{"PATH", "NAME", "STATE", "DESCRIPTION"}, rows)
}

// openSkill opens an archive, or packs a directory as one.
func openSkill(a *command.CLI, name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.Stdio.In), nil
	}
	fi, err := os.Stat(name)
	if err != nil {
		return nil, localdir.Error("read", name, err)
	}
	if !fi.IsDir() {
		f, err := os.Open(name)
		if err != nil {
			return nil, localdir.Error("read", name, err)
		}
		return f, nil
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, localdir.Error("read", name, err)
	}
	return localdir.Zip(abs)
}

func skillShowCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME",
		Short:   "Show a skill and its signature",
		Long:    "Show a skill's description, its signer and its instructions.",
		Example: "  cloche skill show pdf\n  cloche skill show --json pdf",
		Args:    command.Exactly(1, "NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				sk, err := conn.GetSkill(ctx, args[0])
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(sk)
				}
				signed := sk.SignedBy
				if signed == "" {
					signed = "no key that the operator trusts"
				}
				_, err = fmt.Fprintf(a.Stdio.Out, "name:         %s\ndisplay name: %s\ndescription:  %s\ndirectory:    %s\nsigned by:    %s\nchanged:      %s\n\n%s\n",
					terminal.Printable(sk.Name), terminal.Printable(sk.DisplayName), terminal.Printable(strings.Join(strings.Fields(sk.Description), " ")), terminal.Printable(sk.Dir), signed, sk.UpdatedAt.Format(time.RFC3339), printableLines(sk.Instructions))
				if err != nil {
					return command.OutputError(err)
				}
				return nil
			})
		},
	}
}

// printableLines is text of several lines that says nothing to a terminal.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = terminal.Printable(strings.TrimRight(l, "\r"))
	}
	return strings.Join(lines, "\n")
}

func skillEditCommand(a *command.CLI) *cobra.Command {
	var displayName, description, instructions string
	c := &cobra.Command{
		Use:   "edit NAME",
		Short: "Edit a skill",
		Long: `Change the description, display name or instructions of a skill. Other front
matter stays.`,
		Example: "  cloche skill edit --description 'Reads and writes PDF files' pdf\n  cloche skill edit --instructions new.md pdf",
		Args:    command.Exactly(1, "NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			var change api.SkillChange
			if err := command.CheckText("skill", displayName, description); err != nil {
				return err
			}
			if c.Flags().Changed("display-name") {
				change.DisplayName = &displayName
			}
			if c.Flags().Changed("description") {
				change.Description = &description
			}
			if c.Flags().Changed("instructions") {
				text, err := readInstructions(a, instructions)
				if err != nil {
					return err
				}
				change.Instructions = &text
			}
			if change == (api.SkillChange{}) {
				return api.Invalid("skill", "nothing is to be changed").WithHint("give --display-name, --description or --instructions")
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				sk, err := conn.UpdateSkill(ctx, args[0], change)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(sk)
				}
				_, err = fmt.Fprintln(a.Stdio.Out, terminal.Printable(sk.Name))
				return err
			})
		},
	}
	c.Flags().StringVar(&displayName, "display-name", "", "the name for people, a `TEXT`; an empty one removes it")
	c.Flags().StringVar(&description, "description", "", "when to use it, a `TEXT`; an empty one removes it")
	c.Flags().StringVar(&instructions, "instructions", "", "the Markdown below the front matter, a `FILE`; - is the standard input")
	return c
}

func readInstructions(a *command.CLI, name string) (string, error) {
	in := a.Stdio.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", localdir.Error("read", name, err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxInstructions))
	if err != nil {
		return "", localdir.Error("read", name, err)
	}
	text := string(data)
	return text, command.CheckText("instructions", text)
}

func skillRemoveCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Remove skills",
		Long:    "Remove skills. Sandboxes that have one find it empty.",
		Example: "  cloche skill rm pdf",
		Args:    command.AtLeast(1, "skills"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.Each(c.Context(), args, "removing", func(ctx context.Context, conn *command.Connection, name string) (any, error) {
				return command.Removed{Removed: name}, conn.RemoveSkill(ctx, name)
			})
		},
	}
}

func skillFilesCommand(a *command.CLI) *cobra.Command {
	var read, write, remove bool
	var o client.SkillFileOptions
	c := &cobra.Command{
		Use:   "files NAME [PATH]",
		Short: "List, read, write or remove files of a skill",
		Long: `List a directory of a skill. --read writes a file to standard output, --write
replaces it with standard input, --rm removes it. Files that are read and
written are text of at most 1 MiB.`,
		Example: "  cloche skill files pdf\n  cloche skill files --read pdf scripts/run.py\n  cloche skill files --write pdf scripts/run.py < run.py",
		Args:    skillPathArgs,
		RunE: func(c *cobra.Command, args []string) error {
			path := strings.Join(args[1:], "")
			if (read || write || remove) && path == "" {
				return api.Invalid("path", "no file was named").WithHint("cloche skill files NAME lists them")
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				switch {
				case read:
					return catSkill(ctx, a, conn, args[0], path)
				case write:
					return conn.WriteSkillFile(ctx, args[0], path, a.Stdio.In)
				case remove:
					return conn.RemoveSkillFile(ctx, args[0], path)
				}
				o.Path = path
				list, err := conn.SkillFiles(ctx, args[0], o)
				if err != nil {
					return err
				}
				return printSkillFiles(a, list)
			})
		},
	}
	c.Flags().BoolVar(&read, "read", false, "write the file to standard output")
	c.Flags().BoolVar(&write, "write", false, "replace the file with standard input")
	c.Flags().BoolVar(&remove, "rm", false, "remove the file, or the directory with all its files")
	c.Flags().BoolVar(&o.Hidden, "all", false, "also list names with a leading dot")
	c.Flags().IntVar(&o.Limit, "limit", 0, "list at most this `NUMBER`, up to 1000 (default 200)")
	c.MarkFlagsMutuallyExclusive("read", "write", "rm")
	return c
}

func skillPathArgs(_ *cobra.Command, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return api.Invalid("skill", "%d arguments were given", len(args)).WithHint("give the NAME of a skill, and a PATH in it where one is meant")
	}
	return nil
}

func catSkill(ctx context.Context, a *command.CLI, conn *command.Connection, name, path string) error {
	r, err := conn.OpenSkillFile(ctx, name, path)
	if err != nil {
		return err
	}
	defer r.Close()
	return command.CopyOut(a, r)
}

func printSkillFiles(a *command.CLI, list api.SkillFileList) error {
	if a.JSON {
		return a.PrintJSON(list)
	}
	var rows [][]string
	for _, f := range list.Files {
		size := "-"
		if f.Type == api.TypeFile {
			size = command.FormatSize(f.Size)
		}
		rows = append(rows, []string{terminal.Printable(f.Path), string(f.Type), size})
	}
	if list.Truncated {
		rows = append(rows, []string{"…", "more", "-"})
	}
	return command.WriteTable(a.Stdio.Out, []string{"PATH", "TYPE", "SIZE"}, rows)
}

// ParseSkill reads the value of --skill.
func ParseSkill(text string) (api.SkillUse, error) {
	name, access, _ := strings.Cut(text, ":")
	use := api.SkillUse{Name: name, Access: api.PathAccess(access)}
	if name != api.AllSkills && !api.ValidSkillName(name) {
		return use, api.Invalid("skills", "--skill %q names no skill", text).WithHint("write NAME, NAME:rw or *")
	}
	switch use.Access {
	case "", api.AccessRead, api.AccessWrite:
		return use, nil
	}
	return use, api.Invalid("skills", "--skill %q has the access %q", text, access).WithHint("write NAME:ro or NAME:rw")
}
