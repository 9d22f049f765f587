package inspect_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/inspect"
)

// hello is what Go's client sends first.
func hello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	var c recorder
	tls.Client(&c, config).Handshake() // fails: there is no answer
	return c.Bytes()
}

type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) { return r.Buffer.Write(b) }
func (r *recorder) Read([]byte) (int, error)    { return 0, io.EOF }
func (r *recorder) Close() error                { return nil }

// refragment puts the handshake bytes of records into records of n bytes.
func refragment(b []byte, n int) []byte {
	var msg, out []byte
	for len(b) > 0 {
		size := int(binary.BigEndian.Uint16(b[3:]))
		msg = append(msg, b[5:5+size]...)
		b = b[5+size:]
	}
	for len(msg) > 0 {
		part := msg[:min(n, len(msg))]
		out = append(out, 22, 3, 1, byte(len(part)>>8), byte(len(part)))
		out = append(out, part...)
		msg = msg[len(part):]
	}
	return out
}

func TestParseHello(t *testing.T) {
	plain := hello(t, &tls.Config{ServerName: "pypi.org", InsecureSkipVerify: true})
	for what, b := range map[string][]byte{
		"whole": plain, "and more": append(bytes.Clone(plain), "early data"...), "in records of 20": refragment(plain, 20), "in records of 100": refragment(plain, 100),
		"TLS 1.2": hello(t, &tls.Config{ServerName: "pypi.org", MaxVersion: tls.VersionTLS12}),
	} {
		h, err := inspect.ParseHello(b)
		if err != nil || h.ServerName != "pypi.org" || h.ECH {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
		// Every beginning asks for more, and for no more than there is.
		for n := range len(b) {
			h, err := inspect.ParseHello(b[:n])
			if err == nil {
				if h.ServerName != "pypi.org" {
					t.Fatalf("%s: %d bytes are %+v", what, n, h)
				}
				continue
			}
			short, ok := errors.AsType[*inspect.ShortError](err)
			if !ok || short.Need <= n || short.Need > len(b) {
				t.Fatalf("%s: %d bytes: %v", what, n, err)
			}
		}
	}
	if h, err := inspect.ParseHello(hello(t, &tls.Config{InsecureSkipVerify: true})); err != nil || h.ServerName != "" {
		t.Errorf("no name: %+v, %v", h, err)
	}
}

// body makes a hello with these extensions.
func body(extensions ...[]byte) []byte {
	ext := bytes.Join(extensions, nil)
	msg := append([]byte{3, 3}, make([]byte, 32)...)
	msg = append(msg, 0, 0, 2, 0x13, 1, 1, 0, byte(len(ext)>>8), byte(len(ext)))
	msg = append(msg, ext...)
	msg = append([]byte{1, 0, byte(len(msg) >> 8), byte(len(msg))}, msg...)
	return append([]byte{22, 3, 1, byte(len(msg) >> 8), byte(len(msg))}, msg...)
}

func extension(kind uint16, b string) []byte {
	out := binary.BigEndian.AppendUint16(nil, kind)
	return append(binary.BigEndian.AppendUint16(out, uint16(len(b))), b...)
}

func serverName(names ...string) []byte {
	var list string
	for _, n := range names {
		list += "\x00" + string(binary.BigEndian.AppendUint16(nil, uint16(len(n)))) + n
	}
	return extension(0, string(binary.BigEndian.AppendUint16(nil, uint16(len(list))))+list)
}

func TestHelloOddities(t *testing.T) {
	h, err := inspect.ParseHello(body(extension(0x1a1a, ""), serverName("a.org"), extension(0xfe0d, "grease")))
	if err != nil || h.ServerName != "a.org" || !h.ECH {
		t.Errorf("GREASE and ECH: %+v, %v", h, err)
	}
	for what, b := range map[string][]byte{
		"two names":            body(serverName("a.org", "b.org")),
		"the extension twice":  body(serverName("a.org"), serverName("b.org")),
		"any extension twice":  body(extension(43, "x"), serverName("a.org"), extension(43, "x")),
		"an empty name":        body(serverName("")),
		"an empty list":        body(extension(0, "\x00\x00")),
		"another kind of name": body(extension(0, "\x00\x04\x01\x00\x01a")),
		"more after the list":  body(extension(0, "\x00\x04\x00\x00\x01aXX")),
		"a name too long":      body(serverName(strings.Repeat("a", 300))),
		"no handshake":         {23, 3, 1, 0, 1, 0},
		"no hello":             {22, 3, 1, 0, 4, 2, 0, 0, 0},
		"an empty record":      {22, 3, 1, 0, 0},
		"SSLv2":                {0x80, 0x2e, 1, 3, 1},
		"a record too long":    {22, 3, 1, 0x40, 1},
		"a hello too long":     {22, 3, 1, 0, 4, 1, 1, 0, 0},
		"a cut extension":      append(body()[:len(body())-2], 0, 9),
	} {
		h, err := inspect.ParseHello(b)
		if _, short := errors.AsType[*inspect.ShortError](err); err == nil || short {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
	}
}

func FuzzParseHello(f *testing.F) {
	f.Add(hello(f, &tls.Config{ServerName: "pypi.org"}))
	f.Add(refragment(hello(f, &tls.Config{ServerName: "pypi.org"}), 50))
	f.Add(body(serverName("a.org"), serverName("b.org")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := inspect.ParseHello(b)
		if short, ok := errors.AsType[*inspect.ShortError](err); ok && (short.Need <= len(b) || short.Need > inspect.MaxHello+2*(1<<14+5)) {
			t.Fatalf("%d bytes need %d", len(b), short.Need)
		}
		if err != nil {
			return
		}
		// Piece by piece, as a flow is read, it is the same.
		have := 0
		for {
			h2, err := inspect.ParseHello(b[:have])
			short, ok := errors.AsType[*inspect.ShortError](err)
			if !ok {
				if err != nil || h2 != h {
					t.Fatalf("in pieces it is another hello: %+v %+v %v", h, h2, err)
				}
				break
			}
			have = short.Need
		}
		if got, ok := serverReads(b); ok && got != h.ServerName && !strings.HasSuffix(h.ServerName, ".") {
			t.Fatalf("we read %q, a server %q", h.ServerName, got)
		}
	})
}

// serverReads is the name that Go's own server understands.
func serverReads(b []byte) (name string, ok bool) {
	tls.Server(&half{Reader: bytes.NewReader(b)}, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = i.ServerName, true
		return nil, io.EOF
	}}).Handshake() // fails: it has no certificate
	return name, ok
}

// half is a connection whose client has sent something and gets no answer.
type half struct {
	net.Conn
	io.Reader
}

func (h *half) Read(b []byte) (int, error)  { return h.Reader.Read(b) }
func (h *half) Write(b []byte) (int, error) { return len(b), nil }
func (h *half) Close() error                { return nil }
