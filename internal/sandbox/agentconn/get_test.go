//go:build linux

package agentconn

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/fake"
)

// dialedInstance counts what is dialled, and calls before with each dial.
type dialedInstance struct {
	engine.Instance
	dials  int
	before func()
}

func (i *dialedInstance) Dial(ctx context.Context) (net.Conn, error) {
	i.dials++
	if i.before != nil {
		i.before()
	}
	return i.Instance.Dial(ctx)
}

// dialed is a connection to the agent of the imaginary machine, and its instance.
func dialed(t *testing.T) (*Conn, *dialedInstance) {
	t.Helper()
	m := fake.NewMachine("")
	t.Cleanup(func() { _ = m.Close(context.WithoutCancel(t.Context())) })
	token := agent.NewToken()
	config, err := agent.Config{Token: token, Port: agent.Port}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.Engine().Create(t.Context(), engine.Plan{
		ID: api.NewID("sb-"), Owner: "owner", Dir: t.TempDir(),
		Agent: engine.Agent{Argv: []string{"/agent"}, Config: config, Port: agent.Port},
	})
	if err != nil {
		t.Fatal(err)
	}
	i := &dialedInstance{Instance: inst}
	c := New(Options{Dialer: i, Token: token})
	t.Cleanup(c.Close)
	return c, i
}

// A call of a connected sandbox, or of one that has ended, waits for no dial.
func TestGetWaitsForNoDial(t *testing.T) {
	c, i := dialed(t)
	client, err := c.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.dialing.Lock(t.Context()); err != nil { // another call dials
		t.Fatal(err)
	}
	defer c.dialing.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := c.Get(ctx); got != client || err != nil {
		t.Errorf("of one that is connected: %p, %v, want %p", got, err, client)
	}
	c.Close()
	if _, err := c.Get(ctx); api.CodeOf(err) != api.CodeState {
		t.Errorf("of one that has ended: %v, want %s", err, api.CodeState)
	}
	if i.dials != 1 {
		t.Errorf("%d dials, want 1", i.dials)
	}
}

// A call that waited for the dial of another takes the client of that one, and does not
// dial.
func TestGetTakesTheClientOfAnotherDial(t *testing.T) {
	c, i := dialed(t)
	client, err := c.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.client = nil
	c.mu.Unlock()
	if err := c.dialing.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, notes := await.With(t.Context())
	type answer struct {
		client *agent.Client
		err    error
	}
	got := make(chan answer, 1)
	go func() {
		client, err := c.Get(ctx)
		got <- answer{client, err}
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for part, _ := notes.Last(); part == ""; part, _ = notes.Last() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the call does not wait")
		}
	}
	c.mu.Lock()
	c.client = client
	c.mu.Unlock()
	c.dialing.Unlock()
	if a := <-got; a.client != client || a.err != nil || i.dials != 1 {
		t.Errorf("%p, %v, %d dials; want %p, which was dialled once", a.client, a.err, i.dials, client)
	}
}

// A sandbox that ends while its agent is dialled has no client: the call says so.
func TestGetOfAnEndDuringTheDial(t *testing.T) {
	c, i := dialed(t)
	i.before = c.Close
	if client, err := c.Get(t.Context()); client != nil || api.CodeOf(err) != api.CodeState {
		t.Errorf("%p, %v, want %s", client, err, api.CodeState)
	}
}
