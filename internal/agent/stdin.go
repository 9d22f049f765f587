package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// cancelTime is how long an abandoned write waits to hear how far it came.
	cancelTime = 2 * time.Second
	// inlineStdin is how much input goes with its request; more goes in frames of
	// stdinFrame, of which stdinAhead are on their way at a time, so that a
	// cancel never waits behind bytes that the agent does not take.
	inlineStdin = 4 << 10
	stdinFrame  = 96 << 10
	stdinAhead  = 2
)

// WriteStdin gives a process input. It returns the offset after it once the
// bytes have been written to the process. offset is of p's first byte since the
// process began, or -1 for wherever the input ends. What was given already is
// left out, so a write whose answer was lost can be repeated; where it is among
// the last InputKept bytes and not what p says, another has written, which is
// api.CodeConflict. An offset past the end is api.CodeInvalid, and an ended process or a closed input
// api.CodeState. The end of ctx abandons the rest; the offset
// returned with an error is how far the input is known to have come, 0 where
// nothing is known.
func (c *Client) WriteStdin(ctx context.Context, execID string, offset int64, p []byte) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, classify(err)
	}
	if offset < -1 {
		return 0, api.Invalid("offset", "offset %d of input", offset).WithHint("0 or more, or -1 to append")
	}
	// The stream outlives ctx for as long as it takes to hear of the offset.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	req := wire.Request{Op: wire.OpStdin, ExecID: execID, Offset: offset}
	if len(p) > 0 && len(p) <= inlineStdin {
		req.Input, p = p, nil
	}
	k, err := c.open(inner, req)
	if err != nil {
		return 0, err
	}
	defer k.end()
	canceled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(canceled)
		k.stream.SetReadDeadline(time.Now().Add(cancelTime))
		_ = k.JSON(wire.KindCancel, wire.Empty{})
	})
	at, err := feed(k, p, len(req.Input) > 0)
	if !stop() {
		<-canceled
		if code := api.CodeOf(err); code == api.CodeCanceled || code == api.CodeUnavailable {
			err = classify(ctx.Err())
		}
	}
	return at, err
}

// feed sends p and waits for what became of it.
func feed(k *call, p []byte, inline bool) (at int64, err error) {
	ahead, ended := 0, inline
	for {
		for ; ahead < stdinAhead && len(p) > 0; ahead++ {
			n := min(len(p), stdinFrame)
			if err := k.Bytes(wire.KindInput, p[:n]); err != nil {
				return at, k.fail(fmt.Errorf("send input: %w", err))
			}
			p = p[n:]
		}
		if len(p) == 0 && !ended {
			ended = true
			if err := k.End(); err != nil {
				return at, k.fail(fmt.Errorf("end input: %w", err))
			}
		}
		kind, payload, err := k.next()
		if err != nil {
			return at, err
		}
		switch kind {
		case wire.KindAck:
			a, err := wire.Decode[wire.Ack](payload)
			if err != nil || a.Position < at {
				return at, classify(fmt.Errorf("%w: acknowledgement of input", wire.ErrFrame))
			}
			at = a.Position
			ahead = max(ahead-1, 0)
		case wire.KindReply:
			r, err := wire.Decode[wire.StdinReply](payload)
			if err != nil || r.Offset < at {
				return at, classify(fmt.Errorf("%w: answer to input", wire.ErrFrame))
			}
			if r.Fail != nil {
				return r.Offset, saneError(*r.Fail)
			}
			return r.Offset, nil
		default:
			return at, unexpected(kind)
		}
	}
}

// CloseStdin ends a process's input; a terminal gets an end-of-file character.
// One that is closed already is fine.
func (c *Client) CloseStdin(ctx context.Context, execID string) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpCloseStdin, ExecID: execID})
	return err
}
