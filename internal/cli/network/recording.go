package network

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// RecordingCommand is "cloche recording".
func RecordingCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "recording",
		Short: "Manage recordings of endpoints",
		Long: `A recording has the exchanges of an endpoint with record=NAME. An endpoint with
the target replay:NAME answers from it: an agent runs again as before, without
the model. A recording is a file of JSON lines that you can keep beside tests.`,
		Example: "  cloche run --endpoint model=http://127.0.0.1:8080,openai,record=first -- python3 agent.py\n  cloche run --endpoint model=replay:first,openai -- python3 agent.py",
		GroupID: command.GroupProcess,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(recordingListCommand(a), recordingGetCommand(a), recordingPutCommand(a), recordingRemoveCommand(a))
	return c
}

func recordingListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List recordings",
		Long: `List your recordings, by name. OMITTED counts exchanges without a recorded
answer.`,
		Example: "  cloche recording ls\n  cloche recording ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Recordings(ctx)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, r := range list.Recordings {
					state := "whole"
					if r.Active {
						state = "recording"
					}
					rows = append(rows, []string{r.Name, state, strconv.Itoa(r.Exchanges), strconv.Itoa(r.Omitted), command.FormatSize(r.Bytes), command.FormatAge(time.Since(r.CreatedAt))})
				}
				return command.WriteTable(a.Stdio.Out, []string{"NAME", "STATE", "EXCHANGES", "OMITTED", "SIZE", "AGE"}, rows)
			})
		},
	}
}

func recordingGetCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "get NAME",
		Short:   "Download a recording",
		Long:    "Write a recording to standard output as JSON lines, as far as it exists.",
		Example: "  cloche recording get first > first.jsonl",
		Args:    command.Exactly(1, "NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				r, err := conn.OpenRecording(ctx, args[0])
				if err != nil {
					return err
				}
				defer r.Close()
				return command.CopyOut(a, r)
			})
		},
	}
}

func recordingPutCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "put NAME FILE",
		Short:   "Upload a recording",
		Long:    `Store a recording from "cloche recording get". A FILE of - is standard input.`,
		Example: "  cloche recording put first testdata/first.jsonl",
		Args:    command.Exactly(2, "NAME and FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			in := a.Stdio.In
			if args[1] != "-" {
				f, err := os.Open(args[1])
				if err != nil {
					return api.Errorf(api.CodeNotFound, "the recording cannot be read: %w", err)
				}
				defer f.Close()
				in = f
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				info, err := conn.PutRecording(ctx, args[0], in)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(info)
				}
				_, err = fmt.Fprintln(a.Stdio.Out, terminal.Printable(info.Name))
				return err
			})
		},
	}
}

func recordingRemoveCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Remove recordings",
		Long:    "Remove recordings. Endpoints that replay one continue.",
		Example: "  cloche recording rm first",
		Args:    command.AtLeast(1, "recordings"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				for _, name := range args {
					if err := conn.RemoveRecording(ctx, name); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
