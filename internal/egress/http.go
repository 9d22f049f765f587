package egress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/inspect"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

const (
	// linger is how long a sandbox may take to read an answer of the gate before its
	// connection is closed.
	linger = time.Second
	// maxDrain is how much of what it goes on sending is thrown away meanwhile.
	maxDrain = 256 << 10
	// maxPolite is how many connections at once are accepted only to be told why
	// not; more are reset.
	maxPolite = 32
)

// http carries a plain HTTP connection, request by request.
func (f *flow) http(client Conn, r *bufio.Reader, server net.Conn) error {
	f.opened(HTTP)
	c := &inspect.Conversation{
		Client: f.inward(client),
		Judge:  f.request,
		Refused: func(q *inspect.Request, ref *rule.Refusal) {
			f.gate.refused(Refused{
				Refusal: *ref, Stage: StageRequest, Name: string(f.rec.Name), Addr: f.to.Addr(), Port: f.to.Port(),
				Method: q.Method, Target: q.Target,
			})
		},
	}
	sent := make(chan error, 1)
	go func() {
		err := c.Requests(r, f.outward(server))
		switch {
		case err == nil:
			err = closeWrite(server)
		case !errors.Is(err, inspect.ErrRefused):
			server.Close() // ends Responses
		}
		sent <- err
	}()
	received := c.Responses(bufio.NewReaderSize(server, bufSize))
	proper := received == nil || errors.Is(received, inspect.ErrAnswered)
	// A client that waits for us to end gets that first, and then a moment to end
	// as well; one whose server failed gets no more.
	patience := time.Now()
	if proper {
		client.CloseWrite() // an error shows when it is drained
		patience = patience.Add(linger)
	}
	client.SetReadDeadline(patience)
	server.Close()
	requests := <-sent
	switch {
	case proper || errors.Is(requests, inspect.ErrAnswered):
		drain(client)
		return nil
	case errors.Is(received, net.ErrClosed) && requests != nil:
		return requests
	}
	return received
}

// request judges one request of this flow.
func (f *flow) request(q *inspect.Request) *rule.Refusal {
	switch port := f.to.Port(); {
	case q.Host != f.rec.Name:
		return f.disagrees("a request on it names the host " + string(q.Host))
	case q.Port != 0 && q.Port != port:
		return f.disagrees("a request on it names another port")
	}
	return f.plain(q)
}

// drain lets an answer arrive: to close a connection on which unread bytes lie
// would take it back.
func drain(client Conn) {
	client.CloseWrite() // an error shows in the next line
	client.SetReadDeadline(time.Now().Add(linger))
	_, _ = io.CopyN(io.Discard, client, maxDrain) // it is answered; how it goes does not matter
}

// refuse answers a connection that is not to be. Where the sandbox asked for a
// name it may be a client of HTTP, which can be told why: it is accepted, and
// answered if it speaks HTTP. All else is reset.
func (f *flow) refuse(stage Stage, ref *rule.Refusal, o Opening) {
	f.tell(stage, ref)
	if !f.named || !f.gate.bePolite() {
		o.Refuse()
		return
	}
	defer f.gate.wasPolite()
	client, err := o.Accept()
	if err != nil {
		return
	}
	defer client.Close()
	client.SetDeadline(time.Now().Add(linger))
	r := bufio.NewReaderSize(client, 64)
	if kind, err := firstKind(r); err != nil || kind != inspect.HTTP {
		client.Reset()
		return
	}
	if _, err := client.Write(inspect.Answer(403, ref)); err != nil {
		client.Reset()
		return
	}
	drain(client)
}

func (g *Gate) bePolite() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.polite >= maxPolite {
		return false
	}
	g.polite++
	return true
}

func (g *Gate) wasPolite() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.polite--
}
