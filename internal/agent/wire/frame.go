// Package wire is what the two ends of the agent's protocol say to each other:
// frames on a stream, and the messages in them.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kind says what a frame holds.
type Kind byte

// The kinds. Requests, Reply, Started, Exit, Fail, Hello, Welcome, Log, Resize,
// Signal, Ack, Process, Cancel and Incoming hold JSON; the others hold bytes as they are.
const (
	KindHello   Kind = 'H' // host: Hello, once for each connection
	KindWelcome Kind = 'W' // agent: Welcome
	KindRequest Kind = 'Q' // host: Request, the first frame of each stream
	KindReply   Kind = 'R' // agent: the answer to a request
	KindFail    Kind = 'F' // agent: a api.Error instead of the answer
	KindStarted Kind = 'S' // agent: the program has been executed
	KindExit    Kind = 'X' // agent: api.Result without output
	KindStdout  Kind = 'o' // agent: output; streamed: eight bytes of sequence number first
	KindStderr  Kind = 'e' // agent: the same
	KindInput   Kind = 'i' // host: stdin
	KindEnd     Kind = '.' // either: no more input or data
	KindData    Kind = 'd' // either: bytes of a file or tar
	KindLog     Kind = 'l' // agent: LogHeader as JSON, then its bytes in a KindData
	KindSignal  Kind = 'k' // host: Signal
	KindResize  Kind = 'z' // host: api.Size
	// Since version 2.
	KindChunk   Kind = 'c' // agent: output of a process with its place; see Chunk
	KindAck     Kind = 'a' // host: Ack
	KindProcess Kind = 'p' // agent: api.Process
	KindCancel  Kind = 'q' // host: Empty; no more of this input is to be written
	// Since version 4.
	KindIncoming Kind = 'I' // agent: Incoming, the first frame of a stream that it opens
	KindOpaque   Kind = 'w' // host: nothing; what goes on this connection is HTTP no more
)

const (
	headerLen = 5
	// MaxData is the longest frame of bytes.
	MaxData = 256 << 10
	// MaxJSON is the longest frame of JSON. It holds the largest argument list
	// that a kernel takes.
	MaxJSON = 16 << 20
	// MaxHello is the longest frame that is read from a peer that has not shown
	// its token, or that has not been believed to be the agent.
	MaxHello = 4 << 10
	// SeqLen is the length of the sequence number before streamed output.
	SeqLen = 8
)

// ErrFrame is in every error about bytes that are no frame of this protocol.
var ErrFrame = errors.New("malformed frame")

// isBytes tells the kinds that carry bytes from those that carry JSON.
func (k Kind) isBytes() bool {
	switch k {
	case KindStdout, KindStderr, KindInput, KindData, KindEnd, KindChunk, KindOpaque:
		return true
	}
	return false
}

func (k Kind) known() bool {
	switch k {
	case KindHello, KindWelcome, KindRequest, KindReply, KindFail, KindStarted, KindExit, KindLog, KindSignal, KindResize,
		KindAck, KindProcess, KindCancel, KindIncoming:
		return true
	}
	return k.isBytes()
}

// Reader reads frames. It is for one goroutine.
type Reader struct {
	r io.Reader
	// Max bounds JSON frames; zero is MaxJSON.
	Max int
	hdr [headerLen]byte
	buf []byte
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next reads one frame. The bytes are valid until the call after. At the end of
// the stream between two frames the error is io.EOF.
func (r *Reader) Next() (Kind, []byte, error) {
	if _, err := io.ReadFull(r.r, r.hdr[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("read frame: %w: cut off in its header", ErrFrame)
		}
		return 0, nil, err
	}
	kind, n := Kind(r.hdr[0]), binary.BigEndian.Uint32(r.hdr[1:])
	if !kind.known() {
		return 0, nil, fmt.Errorf("read frame: %w: unknown kind %#x", ErrFrame, byte(kind))
	}
	limit := uint32(MaxData + ChunkHeaderLen)
	if !kind.isBytes() {
		limit = MaxJSON
		if r.Max > 0 {
			limit = uint32(r.Max)
		}
	}
	if n > limit {
		return 0, nil, fmt.Errorf("read frame: %w: %d bytes of kind %q are over the limit of %d", ErrFrame, n, byte(kind), limit)
	}
	if err := r.fill(int(n)); err != nil {
		return 0, nil, err
	}
	return kind, r.buf[:n], nil
}

// fill reads n bytes into buf. The buffer grows with what has arrived, so that a
// length alone costs a hostile peer's victim nothing.
func (r *Reader) fill(n int) error {
	const step = 64 << 10
	for have := 0; have < n; {
		want := min(n, have+step)
		if cap(r.buf) < want {
			grown := make([]byte, max(want, min(n, 2*cap(r.buf))))
			copy(grown, r.buf[:have])
			r.buf = grown
		}
		r.buf = r.buf[:cap(r.buf)]
		m, err := io.ReadFull(r.r, r.buf[have:want])
		have += m
		if err != nil {
			return fmt.Errorf("read frame: %w: cut off after %d of %d bytes", ErrFrame, have, n)
		}
	}
	return nil
}

// Writer writes frames. It is safe for concurrent use; a frame is one Write.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// JSON writes a frame that holds v.
func (w *Writer) JSON(kind Kind, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	if len(data) > MaxJSON {
		return fmt.Errorf("write frame: %w: %d bytes of kind %q are over the limit of %d", ErrFrame, len(data), byte(kind), MaxJSON)
	}
	return w.frame(kind, nil, data)
}

// Bytes writes data in as many frames as it takes, none for no data.
func (w *Writer) Bytes(kind Kind, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), MaxData)
		if err := w.frame(kind, nil, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Output writes one frame of streamed output.
func (w *Writer) Output(kind Kind, seq uint64, data []byte) error {
	return w.frame(kind, binary.BigEndian.AppendUint64(nil, seq), data)
}

// Opaque writes the frame that says that a connection is HTTP no more.
func (w *Writer) Opaque() error { return w.frame(KindOpaque, nil, nil) }

// End writes the frame that says that no more follows.
func (w *Writer) End() error { return w.frame(KindEnd, nil, nil) }

func (w *Writer) frame(kind Kind, head, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf[:0], byte(kind))
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(len(head)+len(data)))
	w.buf = append(append(w.buf, head...), data...)
	_, err := w.w.Write(w.buf)
	if cap(w.buf) > 2*MaxData {
		w.buf = nil
	}
	return err
}

// CutSeq splits streamed output into its sequence number and the bytes.
func CutSeq(payload []byte) (seq uint64, data []byte, err error) {
	if len(payload) < SeqLen {
		return 0, nil, fmt.Errorf("read output: %w: %d bytes are shorter than a sequence number", ErrFrame, len(payload))
	}
	return binary.BigEndian.Uint64(payload), payload[SeqLen:], nil
}

// Decode decodes the JSON of a frame.
func Decode[T any](payload []byte) (T, error) {
	var v T
	if err := json.Unmarshal(payload, &v); err != nil {
		return v, fmt.Errorf("decode frame: %w: %w", ErrFrame, err)
	}
	return v, nil
}

// ReadFirst reads what a peer says first, which must be of that kind, and JSON no longer
// than MaxHello. Nothing is read that comes after it.
func ReadFirst[T any](from io.Reader, kind Kind) (T, error) {
	r := NewReader(from)
	r.Max = MaxHello
	got, payload, err := r.Next()
	if err == nil && got != kind {
		err = fmt.Errorf("%w: kind %q instead of %q", ErrFrame, byte(got), byte(kind))
	}
	if err != nil {
		var none T
		return none, err
	}
	return Decode[T](payload)
}
