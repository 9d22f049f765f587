package egress

import (
	"encoding/binary"
	"io"
	"time"
)

// dnsPatience is how long a stream of questions may be silent.
const dnsPatience = 10 * time.Second

// ServeDNS answers the questions that come over one stream, and closes it.
func (g *Gate) ServeDNS(o Opening) {
	g.mu.Lock()
	if g.closed || g.polite >= maxPolite {
		g.mu.Unlock()
		o.Refuse()
		return
	}
	g.polite++
	g.wg.Add(1)
	g.mu.Unlock()
	defer g.wg.Done()
	defer g.wasPolite()
	c, err := o.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	msg := make([]byte, 2+1<<12)
	for {
		if c.SetDeadline(time.Now().Add(dnsPatience)) != nil {
			return
		}
		if _, err := io.ReadFull(c, msg[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(msg))
		if n > len(msg)-2 { // no question is that long
			return
		}
		if _, err := io.ReadFull(c, msg[2:2+n]); err != nil {
			return
		}
		a := g.Answer(msg[2 : 2+n])
		if a == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}
