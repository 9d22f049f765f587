package inspect_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/inspect"
)

var errOther = errors.New("another name")

// after reads what a client sends after its first hello.
func after(b []byte) ([]byte, error) {
	r := inspect.NewRetry(bufio.NewReader(iotest.OneByteReader(bytes.NewReader(b))), func(h inspect.ClientHello) error {
		if h.ServerName != "pypi.org" {
			return errOther
		}
		return nil
	})
	return io.ReadAll(r)
}

// TestSecondHello: a server that asks for another hello may go by the name in that one.
func TestSecondHello(t *testing.T) {
	good := hello(t, &tls.Config{ServerName: "pypi.org", InsecureSkipVerify: true})
	evil := hello(t, &tls.Config{ServerName: "evil.org", InsecureSkipVerify: true})
	none := hello(t, &tls.Config{InsecureSkipVerify: true})
	change, alert := []byte{20, 3, 3, 0, 1, 1}, []byte{21, 3, 3, 0, 2, 1, 0}
	data := func(n int) []byte { return append([]byte{23, 3, 3, byte(n >> 8), byte(n)}, make([]byte, n)...) }
	exchange := append([]byte{22, 3, 3, 0, 12, 16, 0, 0, 8}, "key bits"...)
	sealed := append([]byte{22, 3, 3, 0, 40, 1, 0, 0, 9, 9}, make([]byte, 35)...)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for what, b := range map[string][]byte{
		"nothing": nil, "data": data(10), "an alert": alert, "the same name": good, "after a change": join(change, good, data(3)),
		"in parts": refragment(good, 7), "early data": join(data(100), change, good), "TLS 1.2": join(exchange, change, sealed, data(5), sealed),
		"resumed TLS 1.2, and it looks like one": join(change, sealed, data(5)), "cut short": {23, 3},
		"much": join(bytes.Repeat(data(1<<14), 20), []byte("whatever now comes")),
	} {
		if out, err := after(b); err != nil || !bytes.Equal(out, b) {
			t.Errorf("%s: %d of %d bytes go on, %v", what, len(out), len(b), err)
		}
	}
	for what, c := range map[string]struct {
		b    []byte
		goes int
	}{
		"another name": {evil, 0}, "no name": {none, 0}, "after a change": {join(change, evil), len(change)}, "in parts": {refragment(evil, 3), 0},
		"in parts after a change": {join(change, refragment(evil, 1)), len(change)}, "after early data": {join(data(100), evil), 105},
		"after a good one": {join(good, evil), len(good)}, "after an exchange": {join(exchange, evil), len(exchange)}, "in the record of a good one": {join2(good, evil), 0},
		"in the record of an exchange":  {join2(exchange, evil), 0},
		"a part, and something between": {join(refragment(evil, 20)[:25], change, refragment(evil, 20)[25:]), 0},
		"no TLS":                        {[]byte("GET / HTTP/1.1\r\n\r\n"), 0}, "an empty record": {[]byte{22, 3, 3, 0, 0}, 0}, "a huge record": {[]byte{23, 3, 3, 255, 255}, 0},
	} {
		if out, err := after(c.b); err == nil || len(out) != c.goes {
			t.Errorf("%s: %d bytes go on, %v; want %d and an error", what, len(out), err, c.goes)
		}
	}
	if _, err := inspect.ParseHello(join2(good, evil)); err == nil {
		t.Error("a first hello with another in its record is one")
	}
}

// join2 puts the messages of two records into one.
func join2(a, b []byte) []byte {
	body := append(append([]byte(nil), a[5:]...), b[5:]...)
	return append([]byte{22, 3, 3, byte(len(body) >> 8), byte(len(body))}, body...)
}

// TestHandshakesGoOn carries what real clients send: with a second hello, with
// certificates of their own, resumed.
func TestHandshakesGoOn(t *testing.T) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	s.Close()
	cert := s.TLS.Certificates[0]
	for what, c := range map[string]*struct{ client, server tls.Config }{
		"TLS 1.3": {}, "TLS 1.2": {server: tls.Config{MaxVersion: tls.VersionTLS12}},
		"another hello":   {server: tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}}, client: tls.Config{CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP521}}},
		"own certificate": {server: tls.Config{ClientAuth: tls.RequireAnyClientCert}, client: tls.Config{Certificates: []tls.Certificate{cert}}},
		"own certificate in TLS 1.2": {
			server: tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, client: tls.Config{Certificates: []tls.Certificate{cert}},
		},
	} {
		c.server.Certificates = []tls.Certificate{cert}
		c.client.InsecureSkipVerify, c.client.ServerName, c.client.ClientSessionCache = true, "pypi.org", tls.NewLRUClientSessionCache(2)
		for _, again := range []string{"", " resumed"} {
			near, far := connected(t)
			hellos := 0
			r := inspect.NewRetry(bufio.NewReader(far), func(h inspect.ClientHello) error {
				if hellos++; h.ServerName != "pypi.org" {
					return errOther
				}
				return nil
			})
			got := make(chan error, 1)
			go func() {
				server := tls.Server(retried{far, r}, &c.server)
				b := make([]byte, 5)
				_, err := io.ReadFull(server, b)
				if err == nil {
					_, err = server.Write(b)
				}
				got <- err
			}()
			client := tls.Client(near, &c.client)
			_, err := client.Write([]byte("hello"))
			if err == nil {
				_, err = io.ReadFull(client, make([]byte, 5))
			}
			if err = errors.Join(err, <-got); err != nil || hellos == 0 {
				t.Errorf("%s%s: %v after %d hellos", what, again, err, hellos)
			}
			near.Close()
			far.Close()
		}
	}
}

// connected is both ends of a connection on loopback.
func connected(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err == nil {
		far, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{near, far} {
		c.SetDeadline(time.Now().Add(time.Minute))
	}
	return near, far
}

type retried struct {
	net.Conn
	r io.Reader
}

func (c retried) Read(b []byte) (int, error) { return c.r.Read(b) }

func FuzzRetry(f *testing.F) {
	good := hello(f, &tls.Config{ServerName: "pypi.org", InsecureSkipVerify: true})
	f.Add(good)
	f.Add(append([]byte{20, 3, 3, 0, 1, 1}, good...))
	f.Add([]byte{22, 3, 3, 0, 5, 1, 0, 0, 9, 9})
	f.Add([]byte{22, 3, 3, 0, 5, 16, 0, 0, 9, 9, 23, 3, 3, 0, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := after(b)
		if !bytes.HasPrefix(b, out) || err == nil && len(out) != len(b) {
			t.Fatalf("%x became %x, %v", b, out, err)
		}
	})
}
