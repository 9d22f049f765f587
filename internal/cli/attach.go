package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// joinFlags say how a process is joined.
type joinFlags struct {
	exclusive, readOnly, closeStdin, raw bool
	// since is nil for the present, after what the screen of a terminal shows.
	since *int64
	keys  []byte
}

func attachCommand(a *app) *cobra.Command {
	var f joinFlags
	var since int64
	var keys string
	c := &cobra.Command{
		Use:   "attach [flags] SANDBOX PROCESS",
		Short: "Attach to a running process",
		Long: `Attach to a process: print its output as it is written, and send it what is
typed or piped in here, if its input is open and no other client has it. Any
number of clients can read, one can write. The process keeps running when this
program ends.

A process with a terminal first shows its recent screen. The detach keys leave
it running; so does an interrupt if the process has no terminal. --since starts
at that position of the output instead; a negative one counts from the end.

The end of the input here doesn't close the process's input, unless
--close-stdin is given. --exclusive keeps other writers out: it is for programs
that speak a protocol over their standard input and output.

A process with a terminal uses this one. For other processes, control characters
are printed and have no effect on a terminal, except for colours, unless --raw
is given.

A broken connection is reconnected, with nothing lost or repeated. The exit
status is the process's; 0 after the detach keys, 128+n after signal n.`,
		Example: `  cloche attach build repl
  cloche attach --read-only --since 0 build worker
  cloche attach --exclusive build mcp`,
		GroupID:           groupProcess,
		Args:              oneProcess(0, "SANDBOX PROCESS"),
		ValidArgsFunction: a.completeProcess,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if f.keys, err = parseDetachKeys(keys); err != nil {
				return err
			}
			if f.exclusive && f.readOnly {
				return api.Invalid("exclusive", "--exclusive and --read-only do not go together").WithHint("leave one of them out")
			}
			if c.Flags().Changed("since") {
				f.since = &since
			}
			return attach(c.Context(), a, processArg(args), f)
		},
	}
	c.Flags().BoolVar(&f.exclusive, "exclusive", false, "keep other writers out")
	c.Flags().BoolVar(&f.readOnly, "read-only", false, "read the output only")
	c.Flags().BoolVar(&f.closeStdin, "close-stdin", false, "close the process's input when this input ends")
	c.Flags().BoolVar(&f.raw, "raw", false, rawUsage)
	c.Flags().Int64Var(&since, "since", 0, "start at this `POSITION` of the output (default now)")
	c.Flags().StringVar(&keys, "detach-keys", defaultDetachKeys, "keys that detach from a terminal; '' for no keys")
	return c
}

// attach joins a process that is on record.
func attach(ctx context.Context, a *app, ref processRef, f joinFlags) error {
	return joined(ctx, a, func(ctx context.Context, j *join) error {
		p, err := j.conn.find(ctx, ref)
		if err != nil {
			return err
		}
		j.ref = processRef{ref.sandbox, p.ExecID}
		j.tidy = ownShell(p)
		if p.State.Ended() && f.since == nil {
			a.warn(`process %s has ended; "cloche logs %s" shows its output`, p.ExecID, j.ref)
		}
		return j.open(ctx, p, f)
	})
}

// joined connects, lets open make the place at a process, and keeps it until the
// process ends or is left.
func joined(ctx context.Context, a *app, open func(context.Context, *join) error) error {
	signals, giveUp := catchSignals()
	defer giveUp()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	starting := cancelOnSignal(signals, cancel)
	defer starting()
	conn, err := a.daemon()
	if err != nil {
		return err
	}
	defer conn.close()
	j := &join{app: a, conn: conn, signals: signals}
	defer j.restore()
	if err := open(ctx, j); err != nil {
		return err
	}
	defer j.remote.Close()
	starting()
	return j.run(ctx)
}

// open attaches to a process. On a terminal it first draws the recent screen.
func (j *join) open(ctx context.Context, p api.Process, f joinFlags) error {
	a := j.app
	if err := j.takeTerminal(p); err != nil {
		return err
	}
	j.keys, j.closeStdin = f.keys, f.closeStdin
	j.out = a.output(f.raw || j.tty != nil)
	j.write = !f.readOnly && !p.State.Ended() && (p.StdinOpen || f.exclusive) && a.stdio.In != nil
	req := api.AttachRequest{Since: f.since, Write: j.write, Exclusive: f.exclusive && !p.State.Ended()}
	if j.tty != nil && j.write {
		req.Rows, req.Cols = j.tty.rows, j.tty.cols
	}
	var recent history
	if j.tty != nil && f.since == nil && !p.State.Ended() {
		if at, ok := recent.read(ctx, j.conn, j.ref); ok {
			req.Since = &at
		}
	}
	remote, err := j.conn.Attach(ctx, j.ref.sandbox, j.ref.process, req)
	if err != nil {
		return j.explainConflict(err, f)
	}
	j.remote = remote
	if err := j.raw(); err != nil {
		_ = remote.Close()
		return err
	}
	if len(recent.output) == 0 {
		return nil
	}
	screen := terminal.RecentScreen(recent.output, recent.cut, int(j.tty.rows), int(j.tty.cols), &j.modes, terminal.DrawTimeout)
	if _, err := a.stdio.Out.Write([]byte(screen)); err != nil {
		_ = remote.Close()
		return outputError(err)
	}
	if j.write && (recent.cut || j.modes.Alternate()) {
		j.redraw()
	}
	return nil
}

// takeTerminal finds out whether process and caller both have a terminal.
func (j *join) takeTerminal(p api.Process) error {
	_, in := terminalOf(j.app.stdio.In)
	_, out := terminalOf(j.app.stdio.Out)
	if !p.TTY || !in || !out {
		return nil
	}
	tty, err := j.app.wantTerminal(true)
	j.tty = tty
	return err
}

// redraw makes a full-screen program draw itself: it does so when its terminal
// has another size than it had.
func (j *join) redraw() {
	rows, cols := j.tty.rows, j.tty.cols
	if rows > 1 {
		_ = j.remote.Resize(rows-1, cols)
	}
	_ = j.remote.Resize(rows, cols)
}

// explainConflict adds a hint to the error for an input that another client holds.
func (j *join) explainConflict(err error, f joinFlags) error {
	e, ok := errors.AsType[*api.Error](err)
	if ok && e.Code == api.CodeConflict && !f.exclusive {
		e.Hint = "join it with --read-only, or wait until the other leaves"
	}
	return err
}

// history is the recent output of a process.
type history struct {
	output []byte
	cut    bool // there was more before
}

// read fetches it and returns the position behind it.
func (h *history) read(ctx context.Context, conn *connection, ref processRef) (int64, bool) {
	since := int64(-terminal.MaxHistory)
	at, any := int64(0), false
	err := conn.Logs(ctx, ref.sandbox, api.LogOptions{ExecID: ref.process, Since: &since}, func(e api.LogEntry) error {
		if e.Gap > 0 || !any && e.Position > 0 {
			h.cut = true
		}
		h.output = append(h.output, e.Data...)
		if over := len(h.output) - terminal.MaxHistory; over > 0 {
			h.output, h.cut = append(h.output[:0], h.output[over:]...), true
		}
		at, any = e.Position+int64(len(e.Data)), true
		return nil
	})
	if err != nil {
		h.output = nil // then there is no picture, and the attach says what is wrong
		return 0, false
	}
	return at, any
}
