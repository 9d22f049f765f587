package endpoint

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
)

// Opener opens streams to a client that is attached; each is a connection that the
// client serves. A stream has CloseWrite.
type Opener interface {
	Open(ctx context.Context) (net.Conn, error)
	// Close ends all of them.
	Close() error
}

// attachment is one client.
type attachment struct {
	opener Opener
	once   sync.Once
}

func (a *attachment) end() { a.once.Do(func() { a.opener.Close() }) }

// Attach has a client serve connections, until detach is called, which ends those
// that are open. Several clients take turns.
func (e *Endpoint) Attach(o Opener) (detach func(), err error) {
	if t := e.upstream.Load().spec.Target; t != api.TargetClient && t != api.TargetClientTCP {
		return nil, api.Errorf(api.CodeState, "endpoint %s leads to a target of its own", e.o.Spec.Name).
			WithHint("make it with the target %q to serve it from a client", api.TargetClient)
	}
	a := &attachment{opener: o}
	e.mu.Lock()
	if len(e.clients) >= maxClients {
		e.mu.Unlock()
		return nil, api.Errorf(api.CodeNoCapacity, "%d clients are attached to endpoint %s, which is the most", maxClients, e.o.Spec.Name)
	}
	over := e.state == api.EndpointDraining || e.state == api.EndpointClosed
	if !over {
		e.clients = append(e.clients, a)
	}
	e.mu.Unlock()
	if over {
		return nil, api.Errorf(api.CodeState, "endpoint %s is being taken away", e.o.Spec.Name)
	}
	e.worked()
	return func() {
		e.mu.Lock()
		e.clients = slices.DeleteFunc(e.clients, func(c *attachment) bool { return c == a })
		left := len(e.clients)
		e.mu.Unlock()
		a.end()
		e.upstream.Load().retire()
		if left == 0 && !e.draining() {
			e.Enter(api.EndpointDegraded, "no client is attached to serve it")
		}
	}, nil
}

// maxClients bounds those who are attached to one endpoint.
const maxClients = 16

var errUnattached = &codedError{codeUnattached, errors.New("no client is attached")}

// reverse opens a stream to the client whose turn it is.
func (e *Endpoint) reverse(ctx context.Context) (net.Conn, error) {
	e.mu.Lock()
	clients := slices.Clone(e.clients)
	first := e.next
	e.next++
	e.mu.Unlock()
	for i := range clients {
		if conn, err := clients[(first+i)%len(clients)].opener.Open(ctx); err == nil {
			return conn, nil
		}
	}
	return nil, errUnattached
}
