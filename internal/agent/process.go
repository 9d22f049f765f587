package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxStdin bounds the input that comes with a start: the agent holds it until
// the process has read it.
const maxStdin = 16 << 20

// noCapacityRetry is when a start that found the sandbox full may be tried again.
const noCapacityRetry = time.Second

// Process is a managed process to start. Of Spec counts what concerns its life:
// Name, OpenStdin, Restart, Ready and OnFull; the rest is in Start, whose Timeout
// is of each run.
type Process struct {
	Start
	Spec api.ProcessSpec
}

// StartProcess starts a managed process. It returns when the program has been
// executed; after an error it has not been, and nothing of it is left. A start
// with the id of one on record returns that one's record if the two are the same
// in everything, and api.CodeExists if they are not, so a start whose answer
// was lost can be repeated. The first run gets Start.Stdin; a later one begins
// where the input of the one before ended.
func (c *Client) StartProcess(ctx context.Context, p Process) (api.Process, error) {
	if len(p.Stdin) > maxStdin {
		e := api.Errorf(api.CodeTooLarge, "stdin of %d bytes is over the limit of %d for what comes with a start", len(p.Stdin), maxStdin).
			WithHint("keep it open and write the rest afterwards")
		e.Field = "stdin"
		return api.Process{}, e
	}
	x := p.Start.wire()
	x.Input = len(p.Stdin) > 0
	req := wire.Request{Op: wire.OpStart, Exec: x, Managed: &wire.Managed{
		Name: p.Spec.Name, OpenStdin: p.Spec.OpenStdin, Restart: p.Spec.Restart, Ready: p.Spec.Ready, OnFull: p.Spec.OnFull,
		RestoreSignal: api.SignalNumber(p.Spec.RestoreSignal),
	}}
	var err error
	if x.Key, err = key(req, p.Stdin); err != nil {
		return api.Process{}, err
	}
	k, err := c.open(ctx, req)
	if err != nil {
		return api.Process{}, err
	}
	defer k.end()
	if x.Input {
		// The agent reads all of it before it does anything.
		err := k.Bytes(wire.KindInput, p.Stdin)
		if err == nil {
			err = k.End()
		}
		if err != nil {
			// It may have said why it does not want the input.
			if _, _, ferr := k.next(); api.CodeOf(ferr) != api.CodeUnavailable {
				return api.Process{}, ferr
			}
			return api.Process{}, k.fail(fmt.Errorf("send input: %w", err))
		}
	}
	r, err := reply[api.Process](k)
	if err != nil {
		return api.Process{}, err
	}
	return saneProcess(r), nil
}

// key names a request by what is in it.
func key(req wire.Request, stdin []byte) (string, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return "", fmt.Errorf("encode request: %w", err)
	}
	h := sha256.New()
	h.Write(data)
	h.Write([]byte{0})
	h.Write(stdin)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// WatchProcesses calls fn with every managed process on record, and then with
// each whose record changes: at once for its state, pid, restarts, readiness and
// the end of its input, and at most every 250 ms for its last line and position.
// It returns when ctx ends, fn fails or the connection is lost.
func (c *Client) WatchProcesses(ctx context.Context, fn func(api.Process) error) error {
	k, err := c.openIdle(ctx, wire.Request{Op: wire.OpWatch})
	if err != nil {
		return err
	}
	defer k.end()
	for {
		kind, payload, err := k.next()
		if err != nil {
			return err
		}
		if kind != wire.KindProcess {
			return unexpected(kind)
		}
		p, err := wire.Decode[api.Process](payload)
		if err != nil {
			return classify(err)
		}
		if err := fn(saneProcess(p)); err != nil {
			return err
		}
	}
}

// Resize changes the size of a process's terminal. A later run gets it too.
func (c *Client) Resize(ctx context.Context, execID string, rows, cols uint16) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpResize, ExecID: execID, Size: &api.Size{Rows: rows, Cols: cols}})
	return err
}

// SignalProcess sends a signal. TERM, KILL, INT, QUIT and HUP end the restart
// policy first. A process that has ended is api.CodeState. A KILL for an id that no
// process has is remembered for api.KilledMemory: an exec of that id is refused with
// api.CodeState meanwhile, and with forestall a managed process too.
func (c *Client) SignalProcess(ctx context.Context, execID string, number int, scope api.SignalScope, forestall bool) error {
	if scope == "" {
		scope = api.ScopeTree
	}
	if c.version < 2 && scope == api.ScopeTree {
		return c.Signal(ctx, execID, number) // nothing else is new in this
	}
	k, err := c.openSince(ctx, 2, wire.Request{Op: wire.OpSignal, ExecID: execID, Signal: number, Scope: scope, Forestall: forestall})
	if err != nil {
		return err
	}
	_, err = reply[wire.Empty](k)
	return err
}

// RemoveProcess kills the tree of a process and forgets its record and log.
func (c *Client) RemoveProcess(ctx context.Context, execID string) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpForget, ExecID: execID})
	return err
}

// ForgetProcess forgets the record and the log of a process that has ended. What
// it left running lives on.
func (c *Client) ForgetProcess(ctx context.Context, execID string) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpForget, ExecID: execID, Ended: true})
	return err
}

// HoldTimers pauses timeouts, restart back-offs and readiness timeouts, or resumes
// them: they end later by as long as they were held. It
// lasts until it is taken back, whatever becomes of the connection.
func (c *Client) HoldTimers(ctx context.Context, hold bool) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpHold, Hold: hold})
	return err
}

// hangUpTimeout bounds how long an agent may take to close its connections after it has said that it does.
const hangUpTimeout = 10 * time.Second

// Suspend has the agent close every connection of the host, so that none is a part of the memory that is
// saved. It returns when this one is closed, which is of no use any more. Calls on it fail with [ErrSaving]. Programs continue.
// Calls that wait for no program get a second to end before. With reattach, streamed execs wait for [Stream.Reattach] for ten seconds in which timers are not held.
func (c *Client) Suspend(ctx context.Context, reattach bool) (err error) {
	c.short.settle(ctx)
	c.saving.Store(true)
	defer func() {
		if err != nil {
			c.saving.Store(false) // what ends from now on does not end because of the save
		}
	}()
	req := wire.Request{Op: wire.OpSuspend}
	if reattach {
		req.Reattach = &wire.Reattach{}
	}
	if _, err := ask[wire.Empty](ctx, c, req); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, hangUpTimeout)
	defer cancel()
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		return api.Errorf(api.CodeTimeout, "the agent has not closed its connections in time").WithCause(ctx.Err())
	}
}

// Renew gives the agent of a sandbox that continues from saved memory another token and, unless it is empty, its
// sandbox another host name. The agent closes every other connection, and a connection needs the new token from then on.
// An agent that is too old for that answers with [api.ErrUnsupported].
func (c *Client) Renew(ctx context.Context, token []byte, hostname string) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpRenew, Renew: &wire.Renew{Token: token, Hostname: hostname}})
	return err
}
