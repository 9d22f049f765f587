package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Anchor is the content of the head's file: how long the log is. It is written in
// place after each record, and needs no space on a full disk.
type Anchor struct {
	Seq     int64  `json:"seq"`
	Hash    string `json:"hash"`
	Segment int64  `json:"segment"`
	// Boot is the run of the machine in which it was written.
	Boot string `json:"boot,omitempty"`
	// Synced is the last record that is known to be on the disk itself.
	Synced int64 `json:"synced,omitempty"`
	// Missed records could not be written since the last one that was.
	Missed int64     `json:"missed,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	// Removed is how far old segments were removed.
	Removed Removed `json:"removed,omitzero"`
}

// Removed is the last segment that was removed, and its last record.
type Removed struct {
	Segment int64  `json:"segment"`
	Seq     int64  `json:"seq"`
	Hash    string `json:"hash"`
}

// AnchorSize is the size of the head's file, whatever it says.
const AnchorSize = 1024

// Append appends the anchor as the file has it.
func (a Anchor) Append(buf []byte) ([]byte, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode anchor: %w", err)
	}
	if len(text) >= AnchorSize {
		return nil, fmt.Errorf("encode anchor: %d bytes", len(text))
	}
	buf = append(buf, text...)
	for range AnchorSize - 1 - len(text) {
		buf = append(buf, ' ')
	}
	return append(buf, '\n'), nil
}

// Head is the place that the anchor holds.
func (a Anchor) Head() Head { return Head{a.Seq, a.Hash} }

// errNoAnchor is a file that holds none.
var errNoAnchor = errors.New("it holds no anchor")

// ReadAnchor reads the head's file.
func ReadAnchor(path string) (Anchor, error) {
	var a Anchor
	f, err := os.Open(path)
	if err != nil {
		return a, fmt.Errorf("read anchor: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, AnchorSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return a, fmt.Errorf("read anchor: %w", err)
	}
	if a, err = ParseAnchor(text); err != nil {
		return a, fmt.Errorf("read anchor: %w", err)
	}
	return a, nil
}

// ParseAnchor reads the content of the head's file.
func ParseAnchor(text []byte) (Anchor, error) {
	var a Anchor
	if len(text) != AnchorSize || json.Unmarshal(text, &a) != nil || a.Seq < 0 || a.Seq > 0 && len(a.Hash) != len(Zero) {
		return Anchor{}, errNoAnchor
	}
	return a, nil
}
