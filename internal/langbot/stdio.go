package langbot

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Bounds of messages and of lines of stdio.
const (
	maxFrame = 16 << 20
	// lineBytes is the longest message that is one line, and the most that one piece
	// of a longer one says.
	lineBytes = 16 << 10
	// maxPieceLine bounds a line that we write: the client's reader ends with a line
	// over 64 KiB.
	maxPieceLine = 48 << 10
	// maxLine bounds a line that comes.
	maxLine = 1 << 20
	// maxPieces bounds the lines of one message.
	maxPieces = 4096
)

// errFrame: the other side broke the framing, and nothing that follows means anything.
var errFrame = errors.New("the framing of the stream is broken")

// piece is a line of a message that is longer than a line may be.
type piece struct {
	Type      string  `json:"type"`
	TotalSize *int64  `json:"total_size,omitempty"`
	Data      *string `json:"data,omitempty"`
	Offset    *int64  `json:"offset,omitempty"`
}

// lineReader takes messages out of lines.
type lineReader struct{ r *bufio.Reader }

func newLineReader(r io.Reader) *lineReader { return &lineReader{bufio.NewReaderSize(r, 64<<10)} }

// line is the next line, without its end; io.EOF is the end of the stream.
func (l *lineReader) line() ([]byte, error) {
	var out []byte
	for {
		part, err := l.r.ReadSlice('\n')
		out = append(out, part...)
		switch {
		case len(out) > maxLine:
			return nil, fmt.Errorf("read line: over %d bytes: %w", maxLine, errFrame)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && len(out) > 0 && errors.Is(err, io.EOF):
			return bytes.TrimSpace(out), nil
		case err != nil:
			return nil, err
		}
		return bytes.TrimSpace(out), nil
	}
}

// next is the next message. Lines that are none, outside of one, are passed over.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.line()
		if err != nil {
			return nil, err
		}
		if len(line) < 2 || line[0] != '{' || line[len(line)-1] != '}' {
			continue
		}
		var p piece
		if !bytes.Contains(line, []byte(`"chunk_`)) || json.Unmarshal(line, &p) != nil {
			return line, nil
		}
		switch p.Type {
		case "chunk_start":
			return l.pieces(p)
		case "chunk_data", "chunk_end":
			continue
		}
		return line, nil
	}
}

// pieces puts a long message together.
func (l *lineReader) pieces(start piece) ([]byte, error) {
	if start.TotalSize == nil || *start.TotalSize < 0 || *start.TotalSize > maxFrame {
		return nil, fmt.Errorf("read message: its size is not from 0 to %d: %w", maxFrame, errFrame)
	}
	var out []byte
	for range maxPieces {
		line, err := l.line()
		if err != nil {
			return nil, err
		}
		var p piece
		if json.Unmarshal(line, &p) != nil {
			continue
		}
		switch p.Type {
		case "chunk_data":
			if p.Data == nil || p.Offset == nil || *p.Offset != int64(len(out)) || int64(len(out)+len(*p.Data)) > *start.TotalSize {
				return nil, fmt.Errorf("read message: a piece is not where the one before ended: %w", errFrame)
			}
			out = append(out, *p.Data...)
		case "chunk_end":
			if int64(len(out)) != *start.TotalSize {
				return nil, fmt.Errorf("read message: it has %d of %d bytes: %w", len(out), *start.TotalSize, errFrame)
			}
			return out, nil
		}
	}
	return nil, fmt.Errorf("read message: it has more than %d lines: %w", maxPieces, errFrame)
}

// writeLines writes one message, in pieces where it is long. Each call of w's Write
// is a whole line.
func writeLines(w io.Writer, message []byte) error {
	if len(message) <= lineBytes {
		_, err := w.Write(append(message, '\n'))
		return err
	}
	put := func(p piece) error {
		line, err := encodeLine(p)
		if err == nil {
			_, err = w.Write(line)
		}
		return err
	}
	if err := put(piece{Type: "chunk_start", TotalSize: new(int64(len(message)))}); err != nil {
		return err
	}
	for at := 0; at < len(message); {
		n := pieceLen(message[at:])
		if err := put(piece{Type: "chunk_data", Data: new(string(message[at : at+n])), Offset: new(int64(at))}); err != nil {
			return err
		}
		at += n
	}
	return put(piece{Type: "chunk_end"})
}

func encodeLine(p piece) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(p)
	return b.Bytes(), err
}

// pieceLen is how much of a message goes into the next line: no more than lineBytes,
// no part of a character, and no more than maxPieceLine once it is escaped.
func pieceLen(message []byte) int {
	escaped, n := 0, 0
	for n < len(message) {
		r, size := utf8.DecodeRune(message[n:])
		cost := size
		if r < ' ' || r == '"' || r == '\\' || r == 0x7f || r == '\u2028' || r == '\u2029' || r == utf8.RuneError {
			cost = 6
		}
		if n+size > lineBytes || escaped+cost > maxPieceLine {
			break
		}
		n, escaped = n+size, escaped+cost
	}
	return n
}
