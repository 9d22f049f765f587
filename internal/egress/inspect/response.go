package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// untilClose is the length of a body that ends with its connection.
const untilClose = -2

// response is the part of an HTTP/1 response that stands before its body. It is
// passed on as it came: we only need to know where it ends.
type response struct {
	status int
	raw    []byte
	length int64 // -1 is in chunks, untilClose until the end
}

var errResponse = errors.New("read response: it is no HTTP/1 response")

// readResponse reads the head of a response to a request with that method. The
// server is not trusted, but it can only hurt who asked it: where two readings
// are possible the body lasts until the connection ends.
func readResponse(r *bufio.Reader, method string) (*response, error) {
	var p response
	fields, err := p.readHead(r)
	if err != nil {
		return nil, err
	}
	first := string(p.raw[:bytes.IndexByte(p.raw, '\n')])
	if len(first) < len("HTTP/1.1 200") || !strings.HasPrefix(first, "HTTP/1.") || first[8] != ' ' {
		return nil, errResponse
	}
	status, ok := decimal(first[9:12])
	if !ok || status < 100 {
		return nil, errResponse
	}
	p.status = int(status)
	p.length = p.bodyLength(fields, method)
	return &p, nil
}

func (p *response) readHead(r *bufio.Reader) ([]field, error) {
	var fields []field
	for n := 0; ; n++ {
		b, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		if len(p.raw)+len(b) > maxHead || n > 2*maxFields {
			return nil, errResponse
		}
		p.raw = append(p.raw, b...)
		text := strings.TrimRight(string(b), "\r\n")
		if text == "" && n > 0 {
			return fields, nil
		}
		if name, value, ok := strings.Cut(text, ":"); ok && n > 0 {
			fields = append(fields, field{strings.TrimSpace(name), strings.Trim(value, " \t")})
		}
	}
}

func (p *response) bodyLength(fields []field, method string) int64 {
	q := Request{fields: fields}
	codings, lengths := q.values("Transfer-Encoding"), q.values("Content-Length")
	switch {
	case method == "HEAD" || p.status < 200 || p.status == 204 || p.status == 304:
		return 0
	case len(codings) == 1 && len(lengths) == 0 && strings.EqualFold(codings[0], "chunked"):
		return -1
	case len(codings) == 0 && len(lengths) == 1:
		if n, ok := decimal(lengths[0]); ok {
			return n
		}
	}
	return untilClose
}

// body copies a body of that length.
func body(w io.Writer, r *bufio.Reader, length int64) error {
	switch {
	case length == 0:
		return nil
	case length == -1:
		return chunks(w, r)
	case length == untilClose:
		_, err := r.WriteTo(w)
		return err
	}
	_, err := io.CopyN(w, r, length)
	return unexpected(err)
}

// chunks copies a body in chunks. Sizes are written anew, without extensions, so
// that the next reader sees the same chunks as we did.
func chunks(w io.Writer, r *bufio.Reader) error {
	for {
		left := maxChunk
		b, err := line(r, &left)
		if err != nil {
			return unexpected(err)
		}
		text, _, _ := strings.Cut(string(b), ";")
		size, err := hexadecimal(strings.TrimRight(text, " \t"))
		if err != nil {
			return err
		}
		if size == 0 {
			return trailer(w, r)
		}
		if _, err := fmt.Fprintf(w, "%x\r\n", size); err != nil {
			return err
		}
		if _, err := io.CopyN(w, r, size); err != nil {
			return unexpected(err)
		}
		var end [2]byte
		if _, err := io.ReadFull(r, end[:]); err != nil {
			return unexpected(err)
		}
		if end != [2]byte{'\r', '\n'} {
			return malformed("a chunk does not end where it says")
		}
		if _, err := w.Write(end[:]); err != nil {
			return err
		}
	}
}

// trailer ends a body in chunks. Trailer fields that would have been judged in
// front of the body are left out.
func trailer(w io.Writer, r *bufio.Reader) error {
	left := maxTrailer
	fields, err := readFields(r, &left)
	if err != nil {
		return unexpected(err)
	}
	q := Request{}
	for _, f := range fields {
		switch strings.ToLower(f.name) {
		case "host", "content-length", "transfer-encoding", "connection", "upgrade":
		default:
			q.fields = append(q.fields, f)
		}
	}
	b := []byte("0\r\n")
	for _, f := range q.fields {
		b = append(b, f.name+": "+f.value+"\r\n"...)
	}
	_, err = w.Write(append(b, "\r\n"...))
	return err
}

func hexadecimal(s string) (int64, error) {
	if s == "" || len(s) > 15 {
		return 0, malformed("a chunk has no valid size")
	}
	var n int64
	for i := range len(s) {
		c := s[i] | 0x20
		switch {
		case s[i] >= '0' && s[i] <= '9':
			n = n<<4 | int64(s[i]-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | int64(c-'a'+10)
		default:
			return 0, malformed("a chunk has no valid size")
		}
	}
	return n, nil
}

// unexpected is err for a place where nothing may end.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
