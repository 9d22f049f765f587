package ports

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Sandbox is what a [Table] needs of its sandbox. Its methods are safe for concurrent use.
type Sandbox interface {
	// Info describes the sandbox.
	Info() api.Sandbox
	// Use counts as use of the sandbox until release is called.
	Use() (release func())
	// Wake resumes a suspended sandbox that is to be resumed by its use.
	Wake(ctx context.Context) error
	// Explain says of an error of the agent what became of the sandbox.
	Explain(err error) error
	// PortConn returns a new connection to the agent.
	PortConn() Conn
	// SavePorts puts the open ports on record.
	SavePorts() error
}

// Conn is a connection to an agent. It is dialed when first needed and again after it broke.
type Conn interface {
	Get(ctx context.Context) (*agent.Client, error)
	Close()
}

// Table holds the open ports of a sandbox. The zero value has none; [Table.Init] comes before any is
// opened. It is safe for concurrent use.
type Table struct {
	// ctx ends when no daemon of this process serves ports.
	ctx     context.Context //nolint:containedctx // the table lives as long
	sandbox Sandbox

	// ops serialises changes. It is taken before the sandbox's own lock.
	ops sync.Mutex

	mu   sync.Mutex // guards what follows; nothing is called with it
	open map[int]*port
	// conn is the connection to the agent, or nil.
	conn Conn
	// over: the sandbox has ended, and nothing is opened any more.
	over bool
}

// port is one open port.
type port struct {
	grant policy.PortGrant
	// live ends when the port is closed, replaced or expires.
	live context.Context //nolint:containedctx // it is the life of the port
	end  context.CancelFunc
}

func (t *Table) newPort(g policy.PortGrant) *port {
	p := &port{grant: g}
	if g.ExpiresAt.IsZero() {
		p.live, p.end = context.WithCancel(t.ctx)
	} else {
		p.live, p.end = context.WithDeadline(t.ctx, g.ExpiresAt)
	}
	return p
}

// Init gives the table its sandbox. Ports are served until ctx ends. It is called before the table is
// used.
func (t *Table) Init(ctx context.Context, sandbox Sandbox) {
	t.ctx, t.sandbox, t.open = ctx, sandbox, map[int]*port{}
}

// Adopt takes over what is on record, without the ports whose time is over.
func (t *Table) Adopt(grants []policy.PortGrant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range grants {
		if !g.Expired(time.Now()) {
			t.open[g.Port] = t.newPort(g)
		}
	}
}

// Grants are the open ports, sorted by number. They go on record.
func (t *Table) Grants() []policy.PortGrant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.grants()
}

// grants is Grants for a caller that holds t.mu. It forgets the ports whose time is over.
func (t *Table) grants() []policy.PortGrant {
	var out []policy.PortGrant
	for _, n := range slices.Sorted(maps.Keys(t.open)) {
		// Not by their contexts, which end with this daemon: the next one has the ports too.
		if p := t.open[n]; !p.grant.Expired(time.Now()) {
			out = append(out, p.grant)
			continue
		}
		delete(t.open, n)
	}
	return out
}

// put opens a port, or puts back what was open before when it is nil. It returns what was open.
func (t *Table) put(n int, p *port) *port {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.open[n]
	if p == nil {
		delete(t.open, n)
	} else {
		t.open[n] = p
	}
	return was
}

// find returns an open port, or nil.
func (t *Table) find(n int) *port {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.open[n]; p != nil && p.live.Err() == nil {
		return p
	}
	return nil
}

// client returns a client of the sandbox's agent on the connection of the ports.
func (t *Table) client(ctx context.Context) (*agent.Client, error) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return nil, api.Errorf(api.CodeState, "the sandbox has ended")
	}
	if t.conn == nil {
		t.mu.Unlock()
		made := t.sandbox.PortConn() // takes the sandbox's lock
		t.mu.Lock()
		if t.conn == nil && !t.over {
			t.conn, made = made, nil
		}
		if made != nil {
			defer made.Close()
		}
	}
	conn := t.conn
	t.mu.Unlock()
	if conn == nil {
		return nil, api.Errorf(api.CodeState, "the sandbox has ended")
	}
	return conn.Get(ctx)
}

// Close ends the connections to open ports. With over the sandbox has ended, and its ports are
// closed; otherwise another daemon continues.
func (t *Table) Close(over bool) {
	t.mu.Lock()
	conn := t.conn
	t.conn, t.over = nil, true
	for _, p := range t.open {
		p.end()
	}
	if over {
		clear(t.open)
	}
	t.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}
