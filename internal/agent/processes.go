package agent

import (
	"context"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxProcesses bounds what Processes returns.
const maxProcesses = 1 << 16

// Processes lists the processes that run and the last ones that ended, in the
// order of their start.
func (c *Client) Processes(ctx context.Context) ([]api.Process, error) {
	k, err := c.open(ctx, wire.Request{Op: wire.OpProcesses})
	if err != nil {
		return nil, err
	}
	ps, err := reply[[]api.Process](k)
	if err != nil {
		return nil, err
	}
	if len(ps) > maxProcesses {
		return nil, classify(errTooMuch)
	}
	for i := range ps {
		ps[i] = saneProcess(ps[i])
	}
	return ps, nil
}

// maxLastLine bounds Process.LastStderr.
const maxLastLine = 256

// saneProcess keeps of a record what an agent may say, and adds the state where
// an older one does not.
func saneProcess(p api.Process) api.Process {
	out := api.Process{
		ExecID: bounded(p.ExecID), Name: bounded(p.Name), Argv: p.Argv, State: p.State, Managed: p.Managed, PID: max(p.PID, 0), TTY: p.TTY,
		StartedAt: p.StartedAt, ReadyAt: p.ReadyAt, EndedAt: p.EndedAt, Running: p.Running, Signal: saneSignal(p.Signal),
		TimedOut: p.TimedOut, OOM: p.OOM, Reason: bounded(p.Reason), Restarts: max(p.Restarts, 0),
		Position: max(p.Position, 0), StdinOffset: max(p.StdinOffset, 0), StdinOpen: p.StdinOpen,
	}
	if p.ExitCode != nil && *p.ExitCode >= 0 && *p.ExitCode <= 255 {
		out.ExitCode = p.ExitCode
	}
	out.LastStderr = strings.ToValidUTF8(p.LastStderr[:min(len(p.LastStderr), maxLastLine)], "")
	switch p.State {
	case api.ProcessStarting, api.ProcessRunning, api.ProcessReady, api.ProcessBackoff, api.ProcessExited, api.ProcessFailed:
	default:
		out.State = api.ProcessExited
		if p.Running {
			out.State = api.ProcessRunning
		}
	}
	return out
}

// Logs calls fn with what is kept of the output of the chosen processes, oldest
// first. It ends at what there is now. An error of fn ends it and is returned.
func (c *Client) Logs(ctx context.Context, opts api.LogOptions, fn func(api.LogEntry) error) error {
	k, err := c.open(ctx, wire.Request{Op: wire.OpLogs, Logs: &wire.Logs{ExecID: opts.ExecID, Stream: opts.Stream, Tail: opts.Tail}})
	if err != nil {
		return err
	}
	defer k.end()
	for {
		kind, payload, err := k.next()
		if err != nil {
			return err
		}
		switch kind {
		case wire.KindEnd:
			return nil
		case wire.KindLog:
		default:
			return unexpected(kind)
		}
		e, err := wire.Decode[api.LogEntry](payload)
		if err != nil {
			return classify(err)
		}
		if e.Stream != api.Stderr {
			e.Stream = api.Stdout
		}
		e.ExecID, e.Offset, e.Gap, e.Data = bounded(e.ExecID), max(e.Offset, 0), max(e.Gap, 0), nil
		e.Position, e.End = max(e.Position, 0), ""
		if e.Gap == 0 {
			kind, payload, err := k.next()
			if err != nil {
				return err
			}
			if kind != wire.KindData {
				return unexpected(kind)
			}
			e.Data = append(api.Bytes(nil), payload...)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
}

// Signal sends a signal to the whole tree of a process.
func (c *Client) Signal(ctx context.Context, execID string, number int) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpSignal, ExecID: execID, Signal: number})
	return err
}

// Terminate ends the sandbox's work: nothing new is started, every process gets
// TERM, what is left after grace gets KILL, and files are flushed. It returns
// when no process is left.
func (c *Client) Terminate(ctx context.Context, grace time.Duration) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpTerminate, GraceMS: max(grace.Milliseconds(), 0)})
	return err
}
