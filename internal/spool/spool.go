// Package spool keeps the output of one process on the host: a bounded log that
// survives the death of the daemon, written by one goroutine and read by any
// number, each at its own pace, none holding up the writer or another.
//
// Every byte has a position, counted over both streams together, and an offset
// in its own stream; position = offset in stdout + offset in stderr, always.
// What is no longer kept, was never received, or is damaged on disk is told as
// a gap with its exact length, never as wrong bytes.
package spool

import (
	"errors"
	"math"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Options say where a Log is and how much it keeps.
type Options struct {
	// Dir exists, has mode 0700 and belongs to the log alone. One Log at a time
	// may have it open.
	Dir string
	// MaxBytes is how much disk the log may take, its own headers included; 0 is
	// 64 MiB. The oldest eighth is dropped when it is full.
	MaxBytes int64
	// TailBytes is how much of the end is kept in memory, where readers that are
	// near the end share it; 0 is 256 KiB.
	TailBytes int
	// Ends are what Log.Ends said of a log that was written before. Its files alone
	// do not show that the last of them is damaged: with the ends, readers get a
	// gap for what is missing there. Less than what the files hold is ignored.
	Ends Ends
}

// Ends are the offsets after the last byte of each stream, and the time of the
// latest record.
type Ends struct {
	Stdout, Stderr int64
	Latest         time.Time
}

// Record is a run of output of one stream, or a gap.
type Record struct {
	// Stream is api.Stdout or api.Stderr. Of a gap it may be empty: then
	// Offset means nothing, because it is not known whose bytes are missing.
	Stream api.Stream
	// Position of the first byte of Data in both streams together, and Offset in
	// Stream.
	Position, Offset int64
	// Time is when the first byte was read from the process. Of a gap that a reader
	// gets, it is the time of a record beside it.
	Time time.Time
	// Data is shared between readers, which must not change it.
	Data []byte
	// Gap is set, with no data, where bytes are missing before Position: of the
	// stream that the reader chose, or of both together when it chose none.
	Gap int64
}

// ReadOptions choose where a Reader begins and what it sees. Of several bounds
// the one that begins last holds.
type ReadOptions struct {
	// Stream chooses one; empty is both, in their order.
	Stream api.Stream
	// Since is a position, or an offset of Stream where one is chosen; negative
	// counts from the present end. A reader that begins before what is kept gets a
	// gap first; one that begins after the end waits until the log is there.
	Since int64
	// SinceTime begins at the first record that was written then or later; zero is
	// no bound.
	SinceTime time.Time
	// TailLines begins so many lines before the present end, an unfinished last
	// line counted as one; 0 is no bound.
	TailLines int
}

// ErrNoMore says that there is nothing to read now, and that more may come.
var ErrNoMore = errors.New("spool: nothing more to read now")

// ErrFinished says that something was appended to a log that is finished.
var ErrFinished = errors.New("spool: the log is finished")

// ErrOrder says that a record does not come after what the log holds: its
// position is before the end, or its offset contradicts its position.
var ErrOrder = errors.New("spool: the record does not follow the end of the log")

const (
	defaultMaxBytes  = 64 << 20
	defaultTailBytes = 256 << 10
	minMaxBytes      = 16 << 10
	// segmentCount is into how many files the log is cut, and so which part of it
	// goes at once.
	segmentCount = 8
	// maxSegment bounds one file, whatever MaxBytes is; nothing behind it is read.
	maxSegment = 64 << 20
	// maxRecord bounds the data of one record, on disk and as Next returns it.
	maxRecord = 256 << 10
	// indexEvery is how many bytes of file have one entry in the index.
	indexEvery = 64 << 10
	// joinWithin is how far apart in time two records may be that Next returns as
	// one, so that the times of a slow log stay true.
	joinWithin = int64(100 * time.Millisecond)
	// retryAfter is how long a log that could not write leaves the disk alone.
	retryAfter = time.Second
	// maxReason bounds what Finish keeps, in bytes.
	maxReason = 1 << 10
)

// stream is a stream as an index; none where it is not known or not chosen.
type stream int8

const (
	none stream = iota - 1
	stdout
	stderr
)

func streamOf(s api.Stream) (stream, bool) {
	switch s {
	case api.Stdout:
		return stdout, true
	case api.Stderr:
		return stderr, true
	}
	return none, s == ""
}

func (s stream) name() api.Stream {
	switch s {
	case stdout:
		return api.Stdout
	case stderr:
		return api.Stderr
	}
	return ""
}

func (s stream) other() stream { return 1 - s }

// nanos is t as it is kept: nanoseconds since 1970, 0 for no time. A time that
// does not fit is the nearest that does.
func nanos(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return 0
	case s >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return t.UnixNano()
}

func timeOf(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
