package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Chunk is a run of output bytes of one stream, or a gap.
type Chunk struct {
	// Stream is empty for a gap.
	Stream api.Stream
	// Position and Offset are of the first byte: in all output of the process, in
	// the order in which the agent read it, and in its stream.
	Position, Offset int64
	// Time is when the agent read the first byte, by the sandbox's clock.
	Time time.Time
	// Data is valid during the call.
	Data []byte
	// Gap is set, with no Data and no Offset, where so many bytes before Position
	// are no longer kept.
	Gap int64
}

// FollowOptions choose what Follow reads.
type FollowOptions struct {
	// Since is the position to begin at. What is no longer kept comes as a gap
	// first; a position that was not reached yet is the end.
	Since int64
	// Follow goes on with what is written next, until the process has ended for
	// good; otherwise Follow returns at what there is.
	Follow bool
	// Primary marks the reader for which OnFullBlock waits: what fn has returned
	// from may be overwritten.
	Primary bool
}

// An ack is sent when so much or for so long was not acknowledged.
const (
	ackBytes = 256 << 10
	ackTime  = 50 * time.Millisecond
)

// Follow calls fn with a process's output. It returns nil when the process has
// ended for good and all its output was delivered, or at the present end. Chunks
// follow each other without a hole, except for gaps; an error of fn ends it and is
// returned.
func (c *Client) Follow(ctx context.Context, execID string, o FollowOptions, fn func(Chunk) error) error {
	k, err := c.openIdle(ctx, wire.Request{Op: wire.OpFollow, ExecID: execID, Follow: &wire.Follow{Since: o.Since, Follow: o.Follow, Primary: o.Primary}})
	if err != nil {
		return err
	}
	var acks *acker
	if o.Primary {
		acks = newAcker(k, o.Since)
		defer acks.wg.Wait()
	}
	defer k.end() // before the wait: wakes a write
	next := int64(-1)
	if o.Primary {
		next = o.Since
	}
	for {
		kind, payload, err := k.next()
		if err != nil {
			return acks.stop(err)
		}
		if kind == wire.KindEnd {
			return acks.stop(nil)
		}
		if kind != wire.KindChunk {
			return acks.stop(unexpected(kind))
		}
		w, data, err := wire.CutChunk(payload)
		if err != nil {
			return acks.stop(classify(err))
		}
		if next >= 0 && w.Position-w.Gap != next {
			return acks.stop(classify(fmt.Errorf("%w: output at position %d after %d", wire.ErrFrame, w.Position-w.Gap, next)))
		}
		next = w.Position + int64(len(data))
		if err := fn(Chunk{Stream: w.Stream, Position: w.Position, Offset: w.Offset, Time: w.Time, Data: data, Gap: w.Gap}); err != nil {
			return acks.stop(err)
		}
		acks.taken(next)
	}
}

// acker tells the agent what was taken over, rarely.
type acker struct {
	k    *call
	wg   sync.WaitGroup
	more chan struct{}
	quit chan struct{}

	mu   sync.Mutex
	have int64
	sent int64
}

func newAcker(k *call, since int64) *acker {
	a := &acker{k: k, more: make(chan struct{}, 1), quit: make(chan struct{}), have: since, sent: since}
	a.wg.Go(a.run)
	return a
}

// taken is for a nil acker too.
func (a *acker) taken(position int64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	first := a.have == a.sent
	a.have = position
	much := a.have-a.sent >= ackBytes
	a.mu.Unlock()
	if first || much {
		select {
		case a.more <- struct{}{}:
		default:
		}
	}
}

// stop ends the acker and returns err; it is for a nil acker too.
func (a *acker) stop(err error) error {
	if a != nil {
		close(a.quit)
	}
	return err
}

func (a *acker) run() {
	t := time.NewTimer(ackTime)
	defer t.Stop()
	for {
		select {
		case <-a.more:
			t.Reset(ackTime)
		case <-a.quit:
			return
		}
		for waiting := true; waiting; {
			a.mu.Lock()
			much := a.have-a.sent >= ackBytes
			a.mu.Unlock()
			if much {
				break
			}
			select {
			case <-a.more:
			case <-t.C:
				waiting = false
			case <-a.quit:
				return
			}
		}
		a.mu.Lock()
		a.sent = a.have
		position := a.sent
		a.mu.Unlock()
		if a.k.JSON(wire.KindAck, wire.Ack{Position: position}) != nil {
			return // the reader sees why
		}
	}
}
