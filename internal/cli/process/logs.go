package process

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// logFlags are the flags of "logs" as they were typed.
type logFlags struct {
	follow, raw        bool
	exec, stream, from string
	until              string
	times              bool
	tail               int
}

// LogsCommand is "cloche logs".
func LogsCommand(a *command.CLI) *cobra.Command {
	var f logFlags
	c := &cobra.Command{
		Use:   "logs [flags] SANDBOX [PROCESS]",
		Short: "Show the output of a sandbox's processes",
		Long: `Show the kept output of the processes of a sandbox, or of one of them: standard
output on standard output, and standard error on standard error. A line on
standard error reports missing output.

--since takes a byte offset, a time, or a duration before now. The offset counts
both streams together in order, or the one of --stream; a negative one counts
from the end. It needs a PROCESS.

--follow continues with new output until the process, or the sandbox, ends. A
broken connection is reconnected, with nothing lost or repeated.

On a terminal, control characters of the output are printed and have no effect,
except for colours; --raw passes them through. Pipes and files get the original
bytes.

With --json each run of bytes is one document with its offset and time.`,
		Example: `  cloche logs build
  cloche logs -f --tail 20 build web
  cloche logs --since 4096 build worker
  cloche logs --since 10m --stream stderr build`,
		GroupID:           command.GroupLook,
		Args:              logArgs,
		ValidArgsFunction: a.CompleteProcess,
		RunE: func(c *cobra.Command, args []string) error {
			ref := command.ProcessArg(args)
			if ref.Process == "" {
				ref.Process = f.exec
			}
			o, err := f.options(ref, time.Now())
			if err != nil {
				return err
			}
			shown := logView{raw: f.raw, times: f.times}
			if shown.until, err = parseUntil(f.until, time.Now()); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return command.UntilInterrupted(ctx, o.Follow, logs(ctx, a, conn, ref, o, shown))
			})
		},
	}
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "continue with new output")
	c.Flags().StringVar(&f.from, "since", "", "start at this `OFFSET|TIME|DURATION`")
	c.Flags().StringVar(&f.until, "until", "", "omit output after this `TIME|DURATION`")
	c.Flags().BoolVarP(&f.times, "timestamps", "t", false, "prefix each line with its time")
	c.Flags().StringVar(&f.stream, "stream", "", "only `stdout|stderr`")
	c.Flags().IntVarP(&f.tail, "tail", "n", 0, "only the last `N` lines (default all that is kept)")
	c.Flags().BoolVar(&f.raw, "raw", false, command.RawUsage)
	c.Flags().StringVar(&f.exec, "exec", "", "only the process with this id")
	_ = c.Flags().MarkHidden("exec") // its place is the second argument
	return c
}

// logArgs wants SANDBOX, SANDBOX PROCESS or SANDBOX/PROCESS.
func logArgs(c *cobra.Command, args []string) error {
	if len(args) == 1 && command.ProcessArg(args).Sandbox != "" || len(args) == 2 && args[0] != "" && args[1] != "" {
		return nil
	}
	return api.Invalid("arguments", "%s: %s, want SANDBOX [PROCESS]", c.CommandPath(), command.Counted(len(args), "argument")).
		WithHint(`"cloche ps SANDBOX" lists the processes; "%s --help" shows how`, c.CommandPath())
}

func (f *logFlags) options(ref command.ProcessRef, now time.Time) (api.LogOptions, error) {
	o := api.LogOptions{ExecID: ref.Process, Stream: api.Stream(f.stream), Tail: f.tail, Follow: f.follow}
	switch {
	case o.Stream != "" && o.Stream != api.Stdout && o.Stream != api.Stderr:
		return o, api.Invalid("stream", "--stream %q is not a stream", terminal.Clip(f.stream)).WithHint("give stdout or stderr, or leave it out for both")
	case o.Tail < 0:
		return o, api.Invalid("tail", "--tail %d is negative", o.Tail).WithHint("give a number of lines; 0 is all that is kept")
	case f.from == "":
		return o, nil
	}
	at, err := command.ParseSince(f.from, now)
	if err != nil {
		return o, err
	}
	if at.Number != nil && o.ExecID == "" {
		return o, api.Invalid("since", "--since %d is an offset in the output of one process, and none is named", *at.Number).
			WithHint("name the process behind the sandbox, or give a time or a duration such as 10m")
	}
	o.Since, o.SinceTime = at.Number, at.Time
	return o, nil
}

// logView is how a log is shown.
type logView struct {
	raw, times bool
	// until leaves out what was written later; zero is no bound.
	until time.Time
	// open are the streams of processes whose last line has no end yet.
	open map[logStream]bool
}

// logStream is one stream of one process.
type logStream struct {
	execID string
	stream api.Stream
}

// lines puts the time before each line that begins in an entry.
func (v *logView) lines(e api.LogEntry) []byte {
	if !v.times {
		return e.Data
	}
	if v.open == nil {
		v.open = map[logStream]bool{}
	}
	key, stamp := logStream{e.ExecID, e.Stream}, e.Time.UTC().Format(time.RFC3339Nano)+" "
	var out []byte
	for line := range bytes.Lines(e.Data) {
		if !v.open[key] {
			out = append(out, stamp...)
		}
		out = append(out, line...)
		v.open[key] = !bytes.HasSuffix(line, []byte("\n"))
	}
	return out
}

// parseUntil reads a time, or a duration before now; empty is no bound.
func parseUntil(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	at, err := command.ParseSince(s, now)
	if err != nil || at.Number != nil {
		return time.Time{}, api.Invalid("until", "--until %q is neither a time nor a duration", terminal.Clip(s)).
			WithHint("write a time such as 2026-11-21T09:30:00Z, or a duration before now such as 10m")
	}
	return at.Time, nil
}

func logs(ctx context.Context, a *command.CLI, conn *command.Connection, ref command.ProcessRef, o api.LogOptions, shown logView) error {
	if o.ExecID != "" {
		p, err := conn.Find(ctx, ref)
		if err != nil {
			return err
		}
		o.ExecID = p.ExecID
	}
	out := a.Output(shown.raw)
	err := conn.Logs(ctx, ref.Sandbox, o, func(e api.LogEntry) error { return logEntry(a, out, &shown, e) })
	return errors.Join(err, out.Flush())
}

func logEntry(a *command.CLI, out command.Output, shown *logView, e api.LogEntry) error {
	if len(e.Data) > 0 && !shown.until.IsZero() && e.Time.After(shown.until) {
		return nil
	}
	if a.JSON {
		return a.PrintJSON(e)
	}
	if e.Gap > 0 || e.End != "" {
		if err := out.Flush(); err != nil {
			return err
		}
	}
	if e.Gap > 0 {
		a.Note("%d bytes are no longer kept", e.Gap)
	}
	if e.End != "" && e.End != "exited" {
		a.Note("the log ends here: %s", e.End)
	}
	return out.Write(e.Stream, shown.lines(e))
}
