// Package chain is the form of the audit log's lines and the proof that they were not
// changed. It needs only the files: no daemon and no Linux.
//
// A line is one JSON object that begins with its number and the hash of the line
// before, and ends with its own hash: the SHA-256 of its bytes up to that field.
package chain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// MaxLine is the longest line, its newline included.
const MaxLine = 64 << 10

// The names of the files, as a home has them.
const (
	// Active is the file that grows.
	Active = "audit.log"
	// Dir holds older segments, the head and the lock.
	Dir = "audit"
	// HeadName is the file of the head in Dir.
	HeadName = "head"
	// LockName is the file of the lock in Dir.
	LockName = "lock"

	segmentSuffix = ".log"
	segmentDigits = 8
)

// Zero is what the first record has as the hash of the one before.
const Zero = "0000000000000000000000000000000000000000000000000000000000000000"

// SegmentName is the file of an older segment in Dir.
func SegmentName(n int64) string {
	s := strconv.FormatInt(n, 10)
	return strings.Repeat("0", max(segmentDigits-len(s), 0)) + s + segmentSuffix
}

// SegmentNumber is the number of a segment's file.
func SegmentNumber(name string) (int64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, ok && err == nil && n > 0 && SegmentName(n) == name
}

const (
	hashField = `,"hash":"`
	hashTail  = len(hashField) + 2*sha256.Size + len(`"}`)
)

// Head is a place in the chain: a record and its hash. The zero Head is before
// the first record.
type Head struct {
	Seq  int64
	Hash string
}

// prev is the hash as the next record holds it.
func (h Head) prev() string {
	if h.Seq == 0 {
		return Zero
	}
	return h.Hash
}

// Seal appends the line of the record after h to buf, with its newline, and
// returns the place of that record. Body is the rest of its JSON object without
// braces, and not empty.
func (h Head) Seal(buf, body []byte) ([]byte, Head) {
	begin := len(buf)
	buf = append(buf, `{"seq":`...)
	buf = strconv.AppendInt(buf, h.Seq+1, 10)
	buf = append(buf, `,"prev":"`...)
	buf = append(buf, h.prev()...)
	buf = append(buf, `",`...)
	buf = append(buf, body...)
	sum := sha256.Sum256(buf[begin:])
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	buf = append(buf, hashField...)
	buf = append(buf, text[:]...)
	buf = append(buf, `"}`+"\n"...)
	return buf, Head{Seq: h.Seq + 1, Hash: string(text[:])}
}

// The ways in which a line can be no record.
var (
	errForm    = errors.New("it is no record")
	errChanged = errors.New("its content does not have its hash")
)

// Parse reads one line without its newline, and checks its own hash.
func Parse(line []byte) (api.AuditRecord, error) {
	var r api.AuditRecord
	body := len(line) - hashTail
	if body <= 0 || len(line) >= MaxLine || !bytes.HasPrefix(line[body:], []byte(hashField)) || !bytes.HasSuffix(line, []byte(`"}`)) {
		return r, errForm
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, errForm
	}
	sum := sha256.Sum256(line[:body])
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	// The hash that is compared is the one at the end, whatever else the line names so.
	if string(text[:]) != string(line[body+len(hashField):len(line)-len(`"}`)]) {
		return r, errChanged
	}
	if r.Hash != string(text[:]) || len(r.Prev) != len(Zero) || r.Seq < 1 {
		return r, errForm
	}
	return r, nil
}

// Sum is the SHA-256 of bytes, as lines hold it.
func Sum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
