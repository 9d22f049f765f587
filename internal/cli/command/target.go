package command

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// target is what an argument of a verb names: a sandbox, or one process of it.
type target struct {
	// ref is the argument as it was given.
	ref string
	// process is empty where the whole sandbox is named.
	Process ProcessRef
}

// Targets finds what the arguments name, so that a verb does nothing when one of them is
// wrong. SANDBOX/PROCESS is a process. So is the second of two arguments that is no sandbox
// and is a process of the first: the other verbs of processes take them so.
func (c *Connection) Targets(ctx context.Context, args []string) ([]target, error) {
	if len(args) == 1 && ProcessArg(args).Process == "" {
		return []target{{ref: args[0]}}, nil // the verb itself says whether it exists
	}
	var found []target
	for i, arg := range args {
		if r := ProcessArg([]string{arg}); r.Process != "" {
			p, err := c.Find(ctx, r)
			if err != nil {
				return nil, err
			}
			r.Process = p.ExecID
			found = append(found, target{arg, r})
			continue
		}
		_, err := c.Get(ctx, arg)
		if i == 1 && len(args) == 2 && found[0].Process.Process == "" && errors.Is(err, api.ErrNotFound) {
			if p, perr := c.Find(ctx, ProcessRef{args[0], arg}); perr == nil {
				return []target{{arg, ProcessRef{args[0], p.ExecID}}}, nil
			}
		}
		if err != nil {
			return nil, err
		}
		found = append(found, target{ref: arg})
	}
	return found, nil
}

// EachSandbox does one thing to every sandbox that was named, once all of them are known to
// exist.
func (a *CLI) EachSandbox(ctx context.Context, args []string, doing string, do func(context.Context, *Connection, string) (any, error)) error {
	return a.EachTarget(ctx, args, doing, do, func(_ context.Context, _ *Connection, r ProcessRef) (any, error) {
		return nil, api.Invalid("sandbox", "%s is a process of sandbox %s, and this verb is for whole sandboxes", terminal.Printable(r.Process), terminal.Printable(r.Sandbox)).
			WithHint(`"cloche signal %s STOP" stops a process until CONT`, terminal.Printable(r.String()))
	})
}

// EachTarget is eachSandbox for a verb that is for processes too.
func (a *CLI) EachTarget(
	ctx context.Context, args []string, doing string,
	sandbox func(context.Context, *Connection, string) (any, error), process func(context.Context, *Connection, ProcessRef) (any, error),
) error {
	ctx, cancel := Interruptible(ctx)
	defer cancel()
	conn, err := a.Daemon()
	if err != nil {
		return err
	}
	defer conn.Close()
	found, err := conn.Targets(ctx, args)
	if err != nil {
		return err
	}
	refs := make([]string, len(found))
	for i, t := range found {
		refs[i] = t.ref
	}
	return a.eachOf(ctx, conn, refs, doing, func(ctx context.Context, conn *Connection, i int) (any, error) {
		if t := found[i]; t.Process.Process != "" {
			return process(ctx, conn, t.Process)
		}
		return sandbox(ctx, conn, refs[i])
	})
}

// KillProcess kills a process and what it started, and returns its record when it has ended.
func KillProcess(ctx context.Context, conn *Connection, r ProcessRef) (any, error) {
	return endProcess(ctx, conn, r, "KILL", 0)
}

// DefaultGrace is how long a process may take to end, as a sandbox that is stopped.
const DefaultGrace = 10 * time.Second

// StopProcess asks a process and what it started to end, and kills what is left after grace.
func StopProcess(ctx context.Context, conn *Connection, r ProcessRef, grace time.Duration) (any, error) {
	p, err := endProcess(ctx, conn, r, "TERM", max(grace, time.Millisecond))
	if err != nil || p.State.Ended() {
		return p, err
	}
	return endProcess(ctx, conn, r, "KILL", 0)
}

// endProcess sends a signal and waits for the end for the given time; 0 waits without a limit. A
// process that has already ended is not an error.
func endProcess(ctx context.Context, conn *Connection, r ProcessRef, signal string, wait time.Duration) (api.Process, error) {
	err := conn.SignalProcess(ctx, r.Sandbox, r.Process, api.SignalRequest{Signal: signal})
	if errors.Is(err, &api.Error{Code: api.CodeState}) {
		if p, perr := conn.Process(ctx, r.Sandbox, r.Process); perr == nil && p.State.Ended() {
			return p, nil
		}
	}
	if err != nil {
		return api.Process{}, err
	}
	return conn.WaitProcess(ctx, r.Sandbox, r.Process, api.WaitRequest{TimeoutMS: wait.Milliseconds()})
}
