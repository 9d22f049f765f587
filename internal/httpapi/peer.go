package httpapi

import (
	"context"
	"errors"
	"net"
	"time"
)

const (
	// pingEvery is how soon a client that died is noticed while neither side has
	// anything to say, and keeps proxies from closing a quiet stream.
	pingEvery = 10 * time.Second
	// latePings is how many pings' time an answer may take where it is known that the
	// client reads: it is half a minute until a dead one is left.
	latePings = 2
	// vanished is how long nothing may be heard of the other machine. A system that
	// is there answers what it is sent, and asks of its window every two minutes
	// when its program does not read; two of those may be lost.
	vanished = 5 * time.Minute
)

// peer is the other end of a network connection. The zero value is for a connection inside this
// machine, which the kernel ends. Such a peer cannot vanish.
type peer struct {
	tcp   *net.TCPConn
	limit time.Duration
	every time.Duration
}

func (s *Server) peerOf(r request) peer {
	p := peer{limit: s.vanished, every: s.pingEvery}
	if d, ok := r.Context().Value(listenerKey{}).(listener); ok {
		p.tcp = d.tcp
	}
	return p
}

// gone reports whether the other machine is there no more, or no longer on the
// network: it has not acknowledged what it is sent. A program that only does not
// read is another matter, which its system's acknowledgements tell.
func (p peer) gone() bool {
	return p.tcp != nil && p.limit > 0 && silence(p.tcp) > p.limit
}

// reading is when the program at the other end reads.
type reading bool

const (
	readsAlways reading = true
	// readsAtWill: that an answer is late means nothing.
	readsAtWill reading = false
)

// ping writes to the socket now and then: to one whose other end is gone it
// cannot, or nothing is heard of that any more.
func (k *socket) ping(when reading) {
	patience := k.peer.every
	if when == readsAlways {
		patience = latePings * k.peer.every
	}
	t := time.NewTicker(k.peer.every)
	defer t.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(k.ctx, patience)
		err := k.conn.Ping(ctx)
		cancel()
		late := when == readsAtWill && errors.Is(err, context.DeadlineExceeded)
		if err != nil && !late || k.peer.gone() {
			k.cancel()
			return
		}
	}
}
