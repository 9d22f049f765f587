package inspect

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// maxPending is how many requests may wait for their responses.
const maxPending = 32

// Conversation is one HTTP/1 connection: every request is judged before it goes
// on, and a refused one is answered in its turn, after the responses to those
// before it. Requests and Responses run beside each other, one goroutine each.
//
// It reads and writes plain bytes, so it serves a connection whose TLS was
// opened as well as one without TLS.
type Conversation struct {
	// Judge decides about one request.
	Judge func(*Request) *rule.Refusal
	// Refused is told of a refused or malformed request, whose Method may be empty;
	// it may be nil.
	Refused func(*Request, *rule.Refusal)
	// Client is where answers of our own go, beside the responses.
	Client io.Writer

	mu      sync.Mutex
	pending []*pending
	room    chan struct{} // filled by Requests, drained by Responses
	answer  *Refused      // to be sent after the pending ones
	done    chan struct{} // closed when Responses ended
	once    sync.Once
}

type pending struct {
	method string
	// upgraded gets one value when the connection may change with this response;
	// nil otherwise.
	upgraded chan bool
}

// ErrAnswered says that a conversation ended with an answer of this package to the
// client, which should be let to arrive.
var ErrAnswered = errors.New("a request was refused and answered")

// ErrRefused says that a request was refused and Responses will answer it, for
// responses to earlier ones are still to come.
var ErrRefused = errors.New("a request was refused and will be answered")

var errUnasked = errors.New("the server sent an answer without a request")

func (c *Conversation) begin() {
	c.once.Do(func() { c.room, c.done = make(chan struct{}, maxPending), make(chan struct{}) })
}

// Requests carries requests from the client to the server until the client ends,
// which is nil, or something goes wrong. After a refusal it reads nothing more and
// returns ErrAnswered or ErrRefused.
func (c *Conversation) Requests(client *bufio.Reader, server io.Writer) error {
	c.begin()
	for {
		q, err := readRequest(client)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			if ref := c.Judge(q); ref != nil {
				err = &Refused{403, ref}
			}
		}
		if r, ok := errors.AsType[*Refused](err); ok {
			if c.Refused != nil {
				if q == nil {
					q = &Request{}
				}
				c.Refused(q, r.Refusal)
			}
			return c.refuse(r)
		}
		if err != nil {
			return err
		}
		if done, err := c.send(q, client, server); done || err != nil {
			return err
		}
	}
}

// send carries one request, and all that follows where the connection becomes
// something else, which is the end of Requests.
func (c *Conversation) send(q *Request, client *bufio.Reader, server io.Writer) (done bool, err error) {
	p := &pending{method: q.Method}
	if q.upgrade {
		p.upgraded = make(chan bool, 1)
	}
	select {
	case c.room <- struct{}{}:
	case <-c.done:
		return true, nil
	}
	c.mu.Lock()
	c.pending = append(c.pending, p)
	c.mu.Unlock()
	if _, err := server.Write(q.head()); err != nil {
		return true, err
	}
	if err := body(server, client, q.length); err != nil {
		return true, err
	}
	if p.upgraded == nil {
		return false, nil
	}
	select {
	case upgraded := <-p.upgraded:
		if !upgraded {
			return false, nil
		}
		_, err := client.WriteTo(server)
		return true, err
	case <-c.done:
		return true, nil
	}
}

// refuse answers now, or leaves the answer to Responses.
func (c *Conversation) refuse(r *Refused) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = r
	if len(c.pending) > 0 {
		return ErrRefused
	}
	return c.write(r)
}

// write sends our answer. It is called under mu, and once.
func (c *Conversation) write(r *Refused) error {
	var err error
	if r == errHTTP2 {
		_, err = c.Client.Write(goAway(r.Refusal))
	} else {
		_, err = c.Client.Write(Answer(r.Status, r.Refusal))
	}
	return errors.Join(ErrAnswered, err)
}

// Responses carries responses back until the server ends, which is nil, or
// something goes wrong. ErrAnswered means that after them a refusal was sent.
func (c *Conversation) Responses(server *bufio.Reader) error {
	c.begin()
	defer close(c.done)
	for {
		_, err := server.Peek(1)
		c.mu.Lock()
		var p *pending
		if len(c.pending) > 0 {
			p = c.pending[0]
		}
		answered := c.answer != nil
		c.mu.Unlock()
		switch {
		case p == nil && answered:
			return ErrAnswered
		case errors.Is(err, io.EOF) && p == nil:
			return nil
		case err != nil:
			return unexpected(err)
		case p == nil:
			return errUnasked
		}
		last, err := c.receive(p, server)
		if last || err != nil {
			return err
		}
		if err := c.next(); err != nil {
			return err
		}
	}
}

// next takes the first pending request away, and sends the refusal when that was
// the last before it.
func (c *Conversation) next() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = c.pending[1:]
	<-c.room
	if len(c.pending) == 0 && c.answer != nil {
		return c.write(c.answer)
	}
	return nil
}

// receive carries the response to p. Last is true when nothing can follow it.
func (c *Conversation) receive(p *pending, server *bufio.Reader) (last bool, err error) {
	for {
		r, err := readResponse(server, p.method)
		if err != nil {
			return true, err
		}
		if r.status == http.StatusSwitchingProtocols && p.upgraded == nil {
			return true, errUnasked
		}
		if _, err := c.Client.Write(r.raw); err != nil {
			return true, err
		}
		switch {
		case r.status == http.StatusSwitchingProtocols:
			p.upgraded <- true
			_, err := server.WriteTo(c.Client)
			return true, err
		case r.status < 200:
			continue
		}
		if p.upgraded != nil {
			p.upgraded <- false
		}
		return r.length == untilClose, body(c.Client, server, r.length)
	}
}

// Answer is a whole HTTP/1.1 response that says why a request went nowhere, with
// Body in it.
func Answer(status int, r *rule.Refusal) []byte {
	body := Body(status, r)
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n",
		status, http.StatusText(status), strconv.Itoa(len(body)))
	return append([]byte(head), body...)
}

// Body says why a request went nowhere, in words for a program: {code, rule,
// reason, allow}.
func Body(status int, r *rule.Refusal) []byte {
	code := "denied"
	switch status {
	case http.StatusBadRequest:
		code = "invalid_argument"
	case http.StatusBadGateway:
		code = "unavailable"
	}
	body, err := json.Marshal(struct {
		Code string `json:"code"`
		*rule.Refusal
	}{code, r})
	if err != nil { // strings always marshal
		body = []byte(`{"code":"denied"}`)
	}
	return append(body, '\n')
}

// goAway is what an HTTP/2 client understands: empty settings, and that the
// connection ends because HTTP/1.1 is required.
func goAway(r *rule.Refusal) []byte {
	const (
		frameSettings, frameGoAway = 4, 7
		http11Required             = 13
	)
	debug := min(len(r.Reason), 255)
	out := []byte{0, 0, 0, frameSettings, 0, 0, 0, 0, 0}
	out = append(out, 0, 0, byte(8+debug), frameGoAway, 0, 0, 0, 0, 0)
	out = append(out, 0, 0, 0, 0, 0, 0, 0, http11Required)
	return append(out, r.Reason[:debug]...)
}
