package inspect

import (
	"bufio"
	"encoding/binary"
	"io"
)

const (
	recordChange  = 20
	recordData    = 23
	maxCiphertext = maxRecord + 2048
	// maxEarly is how much may be sent before a second hello; servers throw away less.
	maxEarly = 256 << 10
)

// Retry reads what a TLS client sends after its hello. A server may ask for another
// hello, and some take the name out of that one: each more that comes in the clear is
// given to Check before a byte of it is read. An error of Check, or what is no TLS, is
// the error of Read.
//
// It looks until nothing in the clear can come any more, and only reads on then.
type Retry struct {
	r     *bufio.Reader
	check func(ClientHello) error

	out     []byte // of records that were looked at
	end     error  // after out
	msg     []byte // what came of a message that is not known yet, or is a hello
	skip    int    // of a message that is not a hello
	early   int    // bytes in records of data
	changed bool   // what comes may be encrypted
	over    bool
}

// NewRetry makes a Retry of what comes after the first hello.
func NewRetry(r *bufio.Reader, check func(ClientHello) error) *Retry {
	return &Retry{r: r, check: check}
}

// Read implements io.Reader.
func (t *Retry) Read(b []byte) (int, error) {
	for len(t.out) == 0 {
		switch {
		case t.end != nil:
			return 0, t.end
		case t.over:
			return t.r.Read(b)
		}
		t.end = t.record()
	}
	n := copy(b, t.out)
	if t.out = t.out[n:]; len(t.out) == 0 {
		t.out = nil
	}
	return n, nil
}

// record reads one record and appends it to out if it may go on. A message that is
// spread over several goes on when it is whole.
func (t *Retry) record() error {
	var held []byte
	for {
		head, err := t.r.Peek(recordHeader)
		if err != nil {
			if len(t.msg) > 0 {
				return unexpected(err)
			}
			t.out = append([]byte(nil), head...) // an end is passed on as it came
			_, _ = t.r.Discard(len(head))        // they are buffered
			return err
		}
		kind, size := head[0], int(binary.BigEndian.Uint16(head[3:]))
		if head[1] != 3 || size > maxCiphertext {
			return errHello
		}
		from := len(held)
		held = append(held, make([]byte, recordHeader+size)...)
		if _, err := io.ReadFull(t.r, held[from:]); err != nil {
			return unexpected(err)
		}
		if kind != recordHandshake && (len(t.msg) > 0 || t.skip > 0) {
			return errHello // nothing comes between the parts of a message
		}
		switch kind {
		case recordHandshake:
			err = t.handshake(held[from+recordHeader:])
		case recordChange:
			t.changed = true
		case recordData:
			t.early += size
			t.over = t.early > maxEarly
		}
		if err != nil {
			return err
		}
		if len(t.msg) == 0 {
			t.out = held
			return nil
		}
		if len(held) > maxRecords*recordHeader+2*MaxHello {
			return errHello
		}
	}
}

// handshake looks at the body of a record. It leaves an incomplete message in msg.
func (t *Retry) handshake(b []byte) error {
	if len(b) == 0 {
		return errHello
	}
	for len(b) > 0 && !t.over {
		if t.skip > 0 {
			n := min(t.skip, len(b))
			t.skip, b = t.skip-n, b[n:]
			continue
		}
		t.msg = append(t.msg, b...)
		b = nil
		// The version in a hello tells it from what is encrypted and looks like one.
		if len(t.msg) <= handshakeHeader && (t.msg[0] == typeClientHello || len(t.msg) < handshakeHeader) {
			return nil
		}
		size := int(t.msg[1])<<16 + int(t.msg[2])<<8 + int(t.msg[3])
		switch hello := t.msg[0] == typeClientHello; {
		case t.changed && !(hello && size <= MaxHello && t.msg[handshakeHeader] == 3):
			t.over, t.msg = true, nil
		case !hello:
			t.skip, b, t.msg = size, t.msg[handshakeHeader:], nil
		case size > MaxHello:
			return errHello
		case len(t.msg) < handshakeHeader+size:
			return nil
		default:
			h, err := parseHelloBody(t.msg[handshakeHeader : handshakeHeader+size])
			if err == nil && len(t.msg) > handshakeHeader+size {
				err = errHello // a client waits for the answer to its hello
			}
			if err == nil {
				err = t.check(h)
			}
			if err != nil {
				return err
			}
			t.msg = nil
		}
	}
	return nil
}
