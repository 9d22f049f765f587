package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/internal/egress/hop"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// Bounds of what stands before a body.
const (
	maxHead    = 64 << 10
	maxFields  = 200
	maxChunk   = 4 << 10 // of a line that begins a chunk
	maxTrailer = 8 << 10
)

// Request is the part of an HTTP/1 request that stands before its body.
type Request struct {
	Method string
	// Target is as it was sent; of a whole address, it is the path.
	Target string
	// Host and Port are where the request says that it goes. Port 0: the request gives no port.
	Host rule.Name
	Port uint16

	minor  byte // of HTTP/1.x
	fields []field
	// length of the body; -1 is in chunks.
	length int64
	// upgrade is true when the connection may become something else.
	upgrade bool
}

type field struct{ name, value string }

func (f field) is(name string) bool { return strings.EqualFold(f.name, name) }

// Refused says why a request does not go on, and as which status.
type Refused struct {
	Status int
	*rule.Refusal
}

// Error implements error.
func (r *Refused) Error() string { return r.Reason }

// Unwrap returns the refusal.
func (r *Refused) Unwrap() error { return r.Refusal }

func malformed(format string, args ...any) error {
	return &Refused{400, &rule.Refusal{Rule: rule.RuleRequest, Reason: "the request is refused: " + fmt.Sprintf(format, args...)}}
}

func refused(format string, args ...any) error {
	return &Refused{403, &rule.Refusal{Rule: rule.RuleRequest, Reason: "the request is refused: " + fmt.Sprintf(format, args...)}}
}

// errHTTP2 is a connection that begins as HTTP/2 without being asked.
var errHTTP2 = &Refused{403, &rule.Refusal{
	Rule: rule.RuleProtocol, Reason: "HTTP/2 without TLS is not carried, for its requests name hosts of their own; HTTP/1.1 is",
}}

// line reads one line without its end, which must be CR LF. The bytes are valid
// until the next read.
func line(r *bufio.Reader, left *int) ([]byte, error) {
	b, err := r.ReadSlice('\n')
	if *left -= len(b); *left < 0 || errors.Is(err, bufio.ErrBufferFull) {
		return nil, malformed("what stands before the body is too long")
	}
	if errors.Is(err, io.EOF) && len(b) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	b = b[:len(b)-1]
	if len(b) == 0 || b[len(b)-1] != '\r' {
		return nil, malformed("a line ends in a bare line feed")
	}
	if b = b[:len(b)-1]; bytes.ContainsAny(b, "\r\x00") {
		return nil, malformed("a line has a byte in it that no line may have")
	}
	return b, nil
}

// readRequest reads what stands before the body. io.EOF is a connection that
// ended between two requests; a *Refused is a request that must not go on.
func readRequest(r *bufio.Reader) (*Request, error) {
	left := maxHead
	var first []byte
	for blank := 0; len(first) == 0; blank++ {
		if blank > 2 {
			return nil, malformed("it begins with empty lines")
		}
		var err error
		if first, err = line(r, &left); err != nil {
			return nil, err
		}
	}
	q, err := parseFirst(string(first))
	if err != nil {
		return nil, err
	}
	if q.fields, err = readFields(r, &left); err != nil {
		return nil, err
	}
	if err := q.frame(); err != nil {
		return nil, err
	}
	if err := q.hops(); err != nil {
		return nil, err
	}
	if err := q.address(); err != nil {
		return nil, err
	}
	if err := q.settle(); err != nil {
		return nil, err
	}
	return q, nil
}

func parseFirst(first string) (*Request, error) {
	if first == "PRI * HTTP/2.0" {
		return nil, errHTTP2
	}
	method, rest, _ := strings.Cut(first, " ")
	target, version, ok := strings.Cut(rest, " ")
	if !ok || !token(method) || len(method) > maxMethod || target == "" || strings.ContainsFunc(target, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '#' }) {
		return nil, malformed("its first line is not METHOD TARGET VERSION")
	}
	q := &Request{Method: method, Target: target}
	switch version {
	case "HTTP/1.1":
		q.minor = 1
	case "HTTP/1.0":
	default:
		return nil, malformed("its version is neither HTTP/1.1 nor HTTP/1.0")
	}
	if method == "CONNECT" {
		return nil, refused("CONNECT would hide what follows it; connect to the host itself")
	}
	return q, nil
}

// readFields reads header or trailer fields and the empty line after them.
func readFields(r *bufio.Reader, left *int) ([]field, error) {
	var fields []field
	for {
		b, err := line(r, left)
		switch {
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case len(b) == 0:
			return fields, nil
		case len(fields) == maxFields:
			return nil, malformed("it has more than %d fields", maxFields)
		case b[0] == ' ' || b[0] == '\t':
			return nil, malformed("a field goes on in the next line")
		}
		name, value, ok := strings.Cut(string(b), ":")
		if !ok || !token(name) {
			return nil, malformed("a field has no valid name")
		}
		value = strings.Trim(value, " \t")
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return nil, malformed("the field %s has a control character in it", name)
		}
		fields = append(fields, field{name, value})
	}
}

func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 {
			continue
		}
		return false
	}
	return s != ""
}

// Fields are the header fields in their order.
func (q *Request) Fields() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, f := range q.fields {
			if !yield(f.name, f.value) {
				return
			}
		}
	}
}

// values are the values of all fields of that name.
func (q *Request) values(name string) []string {
	var out []string
	for _, f := range q.fields {
		if f.is(name) {
			out = append(out, f.value)
		}
	}
	return out
}

// frame finds how long the body is. Whatever two readers could understand in two
// ways is refused.
func (q *Request) frame() error {
	codings, lengths := q.values("Transfer-Encoding"), q.values("Content-Length")
	switch {
	case len(codings) == 0 && len(lengths) == 0:
	case len(codings) > 0 && len(lengths) > 0:
		return malformed("it has both Transfer-Encoding and Content-Length")
	case len(codings) > 0:
		if len(codings) > 1 || !strings.EqualFold(codings[0], "chunked") || q.minor == 0 {
			return malformed("its Transfer-Encoding is not chunked alone")
		}
		q.length = -1
	case len(lengths) > 1:
		return malformed("it has more than one Content-Length")
	default:
		n, ok := decimal(lengths[0])
		if !ok {
			return malformed("its Content-Length is no number")
		}
		q.length = n
	}
	return nil
}

// decimal reads digits and nothing else.
func decimal(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// hops checks that no field that we judged by is named as one that ends here: the
// next reader would drop it and understand something else.
func (q *Request) hops() error {
	for _, value := range q.values("Connection") {
		for part := range strings.SplitSeq(value, ",") {
			switch strings.ToLower(strings.Trim(part, " \t")) {
			case "host", "content-length", "transfer-encoding":
				return malformed("its Connection names a field that must not be dropped")
			}
		}
	}
	return nil
}

// address finds the host that the request names: in its Host field, and in its
// target where that is a whole address; both must say the same.
func (q *Request) address() error {
	hosts := q.values("Host")
	if len(hosts) != 1 {
		return malformed("it has %d Host fields, one is needed", len(hosts))
	}
	var err error
	if q.Host, q.Port, err = authority(hosts[0]); err != nil {
		return err
	}
	if strings.HasPrefix(q.Target, "/") || q.Target == "*" && q.Method == "OPTIONS" {
		return nil
	}
	scheme, rest, ok := strings.Cut(q.Target, "://")
	if !ok || !strings.EqualFold(scheme, "http") {
		return malformed("its target is neither a path nor an http address")
	}
	path := ""
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		rest, path = rest[:end], rest[end:]
	}
	host, port, err := authority(rest)
	if err != nil {
		return err
	}
	if host != q.Host || port != q.Port {
		return malformed("its target and its Host name different hosts")
	}
	// Only a proxy is sent whole addresses. A server gets what cannot name another host.
	switch {
	case path == "" && q.Method == "OPTIONS":
		q.Target = "*"
	case !strings.HasPrefix(path, "/"):
		q.Target = "/" + path
	default:
		q.Target = path
	}
	return nil
}

// authority reads HOST or HOST:PORT.
func authority(s string) (rule.Name, uint16, error) {
	host, text, ported := strings.Cut(s, ":")
	var port uint64
	if ported {
		var err error
		if port, err = strconv.ParseUint(text, 10, 16); err != nil || port == 0 || text[0] < '0' || text[0] > '9' {
			return "", 0, malformed("the port of its Host is no port")
		}
	}
	n, err := rule.ParseName(host)
	if e, ok := errors.AsType[*rule.NameError](err); ok {
		return "", 0, malformed("its %s", e.Error())
	}
	return n, uint16(port), nil
}

// settle takes out of the fields an offer to change to a protocol that is not passed on,
// which would carry what cannot be judged. The client goes on without it.
func (q *Request) settle() error {
	asked := hop.Asked(hop.Head{
		Method: q.Method, HTTP11: q.minor == 1, Body: q.length != 0, Upgrade: q.values("Upgrade"), Connection: q.values("Connection"),
	})
	if asked == hop.Malformed {
		return malformed("it asks for a WebSocket with a body, or with another method than GET")
	}
	if q.upgrade = asked == hop.WebSocket; q.upgrade {
		return nil
	}
	q.fields = slices.DeleteFunc(q.fields, func(f field) bool { return hop.OfUpgrade(f.name) })
	for i, f := range q.fields {
		if f.is("Connection") {
			q.fields[i].value = withoutUpgrade(f.value)
		}
	}
	return nil
}

func withoutUpgrade(connection string) string {
	var keep []string
	for part := range strings.SplitSeq(connection, ",") {
		part = strings.Trim(part, " \t")
		if part != "" && !hop.OfUpgrade(part) {
			keep = append(keep, part)
		}
	}
	return strings.Join(keep, ", ")
}

// head is what is sent on instead of what was read: the same, said once and
// plainly.
func (q *Request) head() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.%d\r\n", q.Method, q.Target, q.minor)
	for _, f := range q.fields {
		if f.value == "" && f.is("Connection") {
			continue
		}
		b.WriteString(f.name)
		b.WriteString(": ")
		b.WriteString(f.value)
		b.WriteString("\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}
