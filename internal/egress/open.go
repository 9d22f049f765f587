package egress

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"

	"github.com/cloche-dev/cloche/internal/egress/inspect"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// opens says whether the flow is one whose requests must be seen. Then it is never
// opaque, whatever the rule that grants it: an opaque flow would be a way around.
func (f *flow) opens(i *intercept.Interceptor) bool {
	return f.named && i != nil && i.Opens(f.rec.Name, f.to.Port())
}

// open carries a TLS connection with its requests in the clear between the two
// ends. The hello was read from r already.
func (f *flow) open(i *intercept.Interceptor, client Conn, hello []byte, r io.Reader, server net.Conn) error {
	f.opened(HTTPS)
	up := &upstreams{f: f, first: server}
	defer up.close()
	// A cancel of the flow resets the first two; these are the others.
	defer context.AfterFunc(f.ctx, up.close)()
	return i.Serve(f.ctx, intercept.Flow{
		ID: f.rec.ID, Name: f.rec.Name, Port: f.to.Port(),
		Client: &metered{client, io.MultiReader(bytes.NewReader(hello), r), f.inward(client)},
		Dial:   up.dial,
		Refused: func(method, target string, ref *rule.Refusal) {
			f.gate.refused(Refused{
				Refusal: *ref, Stage: StageRequest, Name: string(f.rec.Name), Addr: f.to.Addr(), Port: f.to.Port(), Method: method, Target: target,
			})
		},
		First: f.gate.limits.First, Idle: f.gate.limits.Idle,
	})
}

// metered is a connection of which what is written is counted.
type metered struct {
	net.Conn
	r io.Reader
	w *meter
}

// Read implements net.Conn.
func (c *metered) Read(b []byte) (int, error) { return c.r.Read(b) }

// Write implements net.Conn.
func (c *metered) Write(b []byte) (int, error) { return c.w.Write(b) }

// upstreams are the connections to the host that serve one flow: the first, and
// more to the same address where the host carries one request at a time.
type upstreams struct {
	f *flow

	mu    sync.Mutex
	first net.Conn // not yet taken
	more  []net.Conn
	over  bool
}

func (u *upstreams) dial(ctx context.Context) (net.Conn, error) {
	u.mu.Lock()
	first := u.first
	u.first = nil
	u.mu.Unlock()
	if first != nil {
		return &metered{first, first, u.f.outward(first)}, nil
	}
	// The address was judged when the flow was settled, and is judged again with it.
	c, err := u.f.gate.upstream.Load().Again(ctx, u.f.rec.Name, u.f.to.Port(), u.f.rec.Addr)
	if err != nil {
		return nil, u.f.cause(err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		c.Close()
		return nil, errClosed
	}
	u.more = append(u.more, c)
	return &metered{c, c, u.f.outward(c)}, nil
}

func (u *upstreams) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	for _, c := range u.more {
		abort(c)
	}
	u.more = nil
}

// plain judges a request in the clear by what opened ones are judged by.
func (f *flow) plain(q *inspect.Request) *rule.Refusal {
	i := f.gate.intercept.Load()
	if i == nil || !f.named {
		return nil
	}
	return i.Plain(f.rec.Name, f.to.Port(), q)
}
