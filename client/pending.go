package client

// maxPending is how much input an Attachment keeps until the daemon acknowledges it.
const maxPending = 1 << 20

// pending is the input of an Attachment that is not acknowledged and may have to be sent again. It
// is not safe for concurrent use.
type pending struct {
	base   int64  // offset of the first byte of kept
	kept   []byte // never changed in place, so that slices from next stay valid
	sent   int    // how much of kept was sent on the present connection
	closed bool   // no more will be added
	told   bool   // the end was sent
}

// add keeps as much of p as fits and returns that number.
func (q *pending) add(p []byte) int {
	n := min(len(p), maxPending-len(q.kept))
	q.kept = append(q.kept, p[:n]...)
	return n
}

// next returns what to send now and marks it as sent: a frame of input, or its end. It returns
// neither if everything was sent.
func (q *pending) next() (data []byte, end bool) {
	if q.sent < len(q.kept) {
		data = q.kept[q.sent:min(len(q.kept), q.sent+stdinFrame)]
		q.sent += len(data)
		return data, false
	}
	if q.closed && !q.told {
		q.told = true
		return nil, true
	}
	return nil, false
}

// ack drops what the process has received, up to an offset. It keeps what was not sent on the
// present connection, even if an earlier connection delivered it: the daemon counts from where the
// present connection began.
func (q *pending) ack(offset int64) {
	if offset > q.base+int64(len(q.kept)) {
		// Another client wrote that input. The next input comes after it.
		q.base, q.kept, q.sent = offset, q.kept[q.sent:], 0
		return
	}
	n := min(offset-q.base, int64(q.sent))
	if n > 0 {
		q.base, q.kept, q.sent = q.base+n, q.kept[n:], q.sent-int(n)
	}
}

// rewind marks everything that is kept as unsent for a new connection. It does the same with the
// end if it was not sent or can be repeated.
func (q *pending) rewind(endAgain bool) {
	q.sent = 0
	q.told = q.told && !endAgain
}
