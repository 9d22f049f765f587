package inspect_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/inspect"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// judge allows what names a.org.
func judge(q *inspect.Request) *rule.Refusal {
	if q.Host == "a.org" && (q.Port == 0 || q.Port == 80) {
		return nil
	}
	return &rule.Refusal{Rule: rule.RuleAgree, Reason: "another host"}
}

// requests runs the client's side over text, and returns what a server got, what
// the client was answered, and the end.
func requests(text string) (server, client string, err error) {
	var up, down bytes.Buffer
	c := &inspect.Conversation{Judge: judge, Client: &down}
	err = c.Requests(bufio.NewReaderSize(strings.NewReader(text), 16<<10), &up)
	return up.String(), down.String(), err
}

func TestRequestsThatGoOn(t *testing.T) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET /x?y=z HTTP/1.1\r\nHost: a.org:80\r\nAccept: */*\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\nhelloGET /2 HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: a.org\r\n\r\n",
		"PROPFIND /dav HTTP/1.1\r\nHost: a.org\r\nDepth: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.org\r\nX: a\tb\r\nConnection: close, X\r\n\r\n",
	} {
		if up, down, err := requests(s); up != s || down != "" || err != nil {
			t.Errorf("%q became %q, answered %q, %v", s, up, down, err)
		}
	}
	for in, want := range map[string]string{
		"GET http://a.org/x?y HTTP/1.1\r\nHost: a.org\r\n\r\n":        "GET /x?y HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET http://a.org?@evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n": "GET /?@evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"OPTIONS http://a.org HTTP/1.1\r\nHost: a.org\r\n\r\n":        "OPTIONS * HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"\r\nGET / HTTP/1.1\r\nHost: A.ORG\r\n\r\n":                   "GET / HTTP/1.1\r\nHost: A.ORG\r\n\r\n",
		"GET / HTTP/1.1\r\nHost:a.org\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n":    "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost:a.org\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n":                                                     "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost:a.org\r\nConnection: close\r\nUpgrade: websocket\r\n\r\n":                                                            "GET / HTTP/1.1\r\nHost: a.org\r\nConnection: close\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n00A;ext=\"x\"\r\n0123456789\r\n0\r\nX-Sum: 1\r\nHost: evil.org\r\n\r\n": "POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n",
	} {
		if up, down, err := requests(in); up != want || down != "" || err != nil {
			t.Errorf("%q became %q, answered %q, %v", in, up, down, err)
		}
	}
}

func TestRequestsThatDoNot(t *testing.T) {
	for s, status := range map[string]string{
		"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n":                                                                 "403",
		"GET / HTTP/1.1\r\nHost: a.org:8080\r\n\r\n":                                                               "403",
		"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n":                                                        "403",
		"GET http://evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n":                                                     "400",
		"GET http://a.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n":                                                     "400",
		"GET http://a.org#@evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n":                                              "400",
		"GET /x#y HTTP/1.1\r\nHost: a.org\r\n\r\n":                                                                 "400",
		"GET http://a.org@evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n":                                               "400",
		"GET https://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n":                                                       "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n":                      "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\nx": "400",
		"GET //evil.org HTTP/1.1\r\nHost: a.org\r\nHost: evil.org\r\n\r\n":                                         "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nHost: a.org\r\n\r\n":                                                     "400",
		"GET / HTTP/1.1\r\nHost: a.org, evil.org\r\n\r\n":                                                          "400",
		"GET / HTTP/1.1\r\nHost: user@a.org\r\n\r\n":                                                               "400",
		"GET / HTTP/1.1\r\nHost: \r\n\r\n":                                                                         "400",
		"GET / HTTP/1.1\r\nHost: 93.184.215.14\r\n\r\n":                                                            "400",
		"GET / HTTP/1.1\r\n\r\n":                                                                                   "400",
		"GET / HTTP/1.0\r\n\r\n":                                                                                   "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\n folded\r\n\r\n":                                                         "400",
		"GET / HTTP/1.1\r\nHost : a.org\r\n\r\n":                                                                   "400",
		"GET / HTTP/1.1\r\n Host: a.org\r\n\r\n":                                                                   "400",
		"GET / HTTP/1.1\nHost: a.org\n\n":                                                                          "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nX: a\rb\r\n\r\n":                                                         "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nX: a\x00b\r\n\r\n":                                                       "400",
		"GET / HTTP/1.1\r\nHost: a.org\x00\r\n\r\n":                                                                "400",
		"GET /\r\n\r\n":                                         "400",
		"GET  / HTTP/1.1\r\nHost: a.org\r\n\r\n":                "400",
		"GET / HTTP/1.1 \r\nHost: a.org\r\n\r\n":                "400",
		"GET /\tHTTP/1.1\r\nHost: a.org\r\n\r\n":                "400",
		"GET / HTTP/2.0\r\nHost: a.org\r\n\r\n":                 "400",
		"G(T / HTTP/1.1\r\nHost: a.org\r\n\r\n":                 "400",
		"\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a.org\r\n\r\n": "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":             "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx":                              "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1, 1\r\n\r\nx":                                                "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: +1\r\n\r\nx":                                                  "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 0x1\r\n\r\nx":                                                 "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 99999999999999999999\r\n\r\nx":                                "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n":                            "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n":                                 "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n":                              "400",
		"POST / HTTP/1.0\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                                  "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nConnection: close, host\r\n\r\n":                                               "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n\r\n0\r\n\r\n": "400",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\nConnection: close,\tContent-Length \r\n\r\nx":            "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nConnection: close\r\nconnection: HOST\r\n\r\n":                                 "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nX: a\x7fb\r\n\r\n":                                                             "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nX: a\x1fb\r\n\r\n":                                                             "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\nX: " + strings.Repeat("a", 70<<10) + "\r\n\r\n":                                "400",
		"GET / HTTP/1.1\r\nHost: a.org\r\n" + strings.Repeat("X: a\r\n", 300) + "\r\n":                                   "400",
	} {
		up, down, err := requests(s + "GET /next HTTP/1.1\r\nHost: a.org\r\n\r\n")
		if up != "" || !strings.HasPrefix(down, "HTTP/1.1 "+status+" ") || !errors.Is(err, inspect.ErrAnswered) {
			t.Errorf("%.100q: the server got %q, answered %.40q, %v", s, up, down, err)
		}
	}
	for _, s := range []string{
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 9\r\n\r\nshort",
		"GET / HTTP/1.1\r\nHost: a.org\r\n",
	} {
		if _, _, err := requests(s); err == nil {
			t.Errorf("%q ended well", s)
		}
	}
}

// converse runs both sides against a server that answers text to whatever comes, once
// all that goes on has come.
func converse(t *testing.T, request, response string) (client string, reqErr, resErr error) {
	t.Helper()
	server, far := net.Pipe()
	var down bytes.Buffer
	c := &inspect.Conversation{Judge: judge, Client: &down}
	asked := make(chan struct{})
	go func() {
		defer far.Close()
		go io.Copy(io.Discard, far)
		<-asked
		io.WriteString(far, response)
	}()
	reqErr = c.Requests(bufio.NewReader(strings.NewReader(request)), server)
	close(asked)
	resErr = c.Responses(bufio.NewReader(server))
	server.Close()
	return down.String(), reqErr, resErr
}

func TestRefusalWaitsForItsTurn(t *testing.T) {
	get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	first := "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	second := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
	down, reqErr, resErr := converse(t, get("a.org")+get("a.org")+get("evil.org")+get("after.org"), first+second)
	if !strings.HasPrefix(down, first+second+"HTTP/1.1 403 Forbidden\r\n") || !errors.Is(reqErr, inspect.ErrRefused) || !errors.Is(resErr, inspect.ErrAnswered) {
		t.Errorf("%q, %v, %v", down, reqErr, resErr)
	}
	if strings.Count(down, "HTTP/1.1 ") != 4 {
		t.Errorf("something came after the refusal: %q", down)
	}
}

func TestResponses(t *testing.T) {
	for _, c := range []struct{ method, response string }{
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"},
		{"GET", "HTTP/1.1 204 No Content\r\n\r\n"},
		{"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"},
		{"GET", "HTTP/1.1 200 OK\r\n\r\nuntil the end"},
		{"GET", "HTTP/1.0 200 OK\nX: y\n\nbare"},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"},
		{"GET", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"},
	} {
		down, reqErr, resErr := converse(t, c.method+" / HTTP/1.1\r\nHost: a.org\r\n\r\n", c.response)
		if down != c.response || reqErr != nil || resErr != nil {
			t.Errorf("%s %q became %q, %v, %v", c.method, c.response, down, reqErr, resErr)
		}
	}
	for _, response := range []string{"SSH-2.0\r\n\r\n", "HTTP/1.1 99 x\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\nraw", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "HTTP/1.1 200 OK\r\n", ""} {
		if _, _, err := converse(t, "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n", response); err == nil {
			t.Errorf("%q ended well", response)
		}
	}
}

// FuzzRequests: whatever a client sends, every request that a server would read
// from what goes on names the one host.
func FuzzRequests(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a.org\r\n\r\nGET /2 HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
		"POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nContent-Length: 40\r\n\r\nGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.org\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		up, down, err := requests(s)
		if errors.Is(err, inspect.ErrAnswered) != (down != "") {
			t.Fatalf("%q: answered %q and returned %v", s, down, err)
		}
		r := bufio.NewReader(strings.NewReader(up))
		for {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			host, _, _ := strings.Cut(q.Host, ":")
			if n, err := rule.ParseName(host); err != nil || n != "a.org" {
				t.Fatalf("%q: a server reads a request to %q from %q", s, q.Host, up)
			}
			if _, err := io.Copy(io.Discard, q.Body); err != nil {
				return
			}
		}
	})
}

func TestKindOf(t *testing.T) {
	for s, want := range map[string]inspect.Kind{
		"": inspect.Short, "G": inspect.Short, "GET ": inspect.HTTP, "PRI * HTTP/2.0": inspect.HTTP, "\x16": inspect.TLS, "M-SEARCH * ": inspect.HTTP,
		"SSH-2.0-x": inspect.Other, " GET": inspect.Other, "get / ": inspect.Other, "\x00": inspect.Other, "\x80\x2e\x01": inspect.Other,
		strings.Repeat("A", 32): inspect.Short, strings.Repeat("A", 33): inspect.Other, strings.Repeat("A", 32) + " ": inspect.HTTP,
	} {
		if got := inspect.KindOf([]byte(s)); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}
