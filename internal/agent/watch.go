package agent

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// watchPings is how many pings are sent in the time after which an agent that answers
// none is given up.
const watchPings = 4

// ErrSaving is the cause of an error of a connection that [Client.Suspend] has closed.
var ErrSaving = errors.New("the memory of the sandbox is being saved")

// ErrSilent is the cause of an error of a connection whose agent did not answer. Nothing
// is known to have ended.
var ErrSilent = errors.New("the agent is silent")

// watch ends a connection whose agent does not answer while a call waits for it. The
// zero value watches nothing.
type watch struct {
	silence time.Duration
	// still says that the agent cannot answer and is not to be given up: its sandbox is
	// paused.
	still func() bool
	// name is how errors name the agent; nil is as usual.
	name func() string

	mu      sync.Mutex
	waiting int
	running bool
	heard   atomic.Int64           // pings that were answered
	silent  atomic.Pointer[string] // the name of an agent that was given up
}

// Watch has the connection ended when calls wait on it and the agent has answered no ping
// for silence; 0 is never. While still is true that time does not pass. name is how errors
// name the agent at the moment. It is called once, before the first call.
func (c *Client) Watch(silence time.Duration, still func() bool, name func() string) {
	c.watch.silence, c.watch.still, c.watch.name = silence, still, name
}

// named is how errors name the agent.
func (c *Client) named() string {
	if c.watch.name == nil {
		return "the sandbox's agent"
	}
	return c.watch.name()
}

// Attend watches the agent as if a call waited, until done is called.
func (c *Client) Attend() (done func()) {
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting++
	if !w.running && w.silence > 0 {
		w.running = true
		go c.heed() // it ends when nothing waits any more, or with the session
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting--
	})
}

// Silent is the error of a connection that was ended because the agent did not answer;
// nil is one that was not.
func (c *Client) Silent() error {
	name := c.watch.silent.Load()
	if name == nil {
		return nil
	}
	return silent(*name, c.watch.silence)
}

func silent(name string, silence time.Duration) error {
	e := api.Errorf(api.CodeUnavailable, "%s has not answered for %s", name, silence).
		WithHint("the sandbox may be overloaded or stopped from outside; what was asked may be done yet, so look before you ask again")
	e.Retryable = true
	return e.WithCause(ErrSilent)
}

// broken is the error of a call whose connection has ended or does not work.
func (c *Client) broken(err error) error {
	if silent := c.Silent(); silent != nil {
		return silent
	}
	if c.saving.Load() {
		e := api.Errorf(api.CodeUnavailable, "the connection to the agent was closed, because the memory of the sandbox is being saved").
			WithHint("a program that was started continues when the sandbox does")
		e.Retryable = true
		return e.WithCause(ErrSaving)
	}
	return classify(err)
}

// expect cancels a call whose agent, which may answer pings, does not answer it within the silence that
// [Client.Watch] allows, unless done is called before. The call is not cancelled while its sandbox is paused.
func (c *Client) expect(cancel context.CancelCauseFunc) (done func()) {
	w := &c.watch
	if w.silence <= 0 {
		return func() {}
	}
	over := make(chan struct{})
	go func() { // it ends with done or the cancellation
		for {
			select {
			case <-over:
				return
			case <-time.After(w.silence):
			}
			if !w.still() {
				cancel(silent(c.named(), w.silence))
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(over) })
}

// late is the error of a call that [Client.expect] cancelled; nil is one that it did not.
func late(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, ErrSilent) {
		return err
	}
	return nil
}

// heed pings while something waits.
func (c *Client) heed() {
	w := &c.watch
	every := max(w.silence/watchPings, time.Millisecond)
	t := time.NewTimer(every)
	defer t.Stop()
	var asked atomic.Bool
	since, heard := time.Now(), w.heard.Load()
	for ; ; t.Reset(max(min(every, w.silence-time.Since(since)), time.Millisecond)) {
		select {
		case <-c.Done():
			return
		case <-t.C:
		}
		w.mu.Lock()
		if w.waiting == 0 {
			w.running = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if now := w.heard.Load(); now != heard || w.still() {
			since, heard = time.Now(), now
		}
		if time.Since(since) >= w.silence {
			w.silent.Store(new(c.named()))
			_ = c.session.Close() // it was open
			return
		}
		if asked.CompareAndSwap(false, true) {
			go func() { // it ends with the answer or the session
				if _, err := c.session.Ping(); err == nil {
					w.heard.Add(1)
				}
				asked.Store(false)
			}()
		}
	}
}
