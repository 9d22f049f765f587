package client

// maxPending is how much input an Attachment keeps until the daemon says that
// the process has it.
const maxPending = 1 << 20

// pending is the input of an Attachment that is not acknowledged: it may have to
// be sent again. It is not safe for concurrent use.
type pending struct {
	base   int64  // offset of the first byte of kept
	kept   []byte // never written to in place, so that what next returned stays as it is
	sent   int    // so much of kept went out on the present connection
	closed bool   // no more will be added
	told   bool   // that was said
}

// add keeps as much of p as fits.
func (q *pending) add(p []byte) int {
	n := min(len(p), maxPending-len(q.kept))
	q.kept = append(q.kept, p[:n]...)
	return n
}

// next is what is to be sent now, and counts as sent: a frame of input, or its
// end. Neither is there when all was sent.
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

// ack drops what the process has been given, up to an offset. What was not sent
// on the present connection stays, even if an earlier one brought it there: the
// daemon counts from where the present one began.
func (q *pending) ack(offset int64) {
	if offset > q.base+int64(len(q.kept)) {
		// That is another client's input: what comes next belongs behind it.
		q.base, q.kept, q.sent = offset, q.kept[q.sent:], 0
		return
	}
	n := min(offset-q.base, int64(q.sent))
	if n > 0 {
		q.base, q.kept, q.sent = q.base+n, q.kept[n:], q.sent-int(n)
	}
}

// rewind makes everything that is kept be sent again, on a new connection, and
// its end where that was not said or may be said again.
func (q *pending) rewind(endAgain bool) {
	q.sent = 0
	q.told = q.told && !endAgain
}
