package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// request sends the head of a request, and what of its body is given.
func (h *inside) request(head, body string) net.Conn {
	h.t.Helper()
	conn, err := h.ln.dial(h.t.Context(), "", "")
	if err != nil {
		h.t.Fatal(err)
	}
	line, fields, _ := strings.Cut(head, "\n")
	fields = strings.ReplaceAll(fields, "\n", "\r\n")
	if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: cloche\r\n%s\r\n\r\n%s", line, fields, body); err != nil {
		h.t.Fatal(err)
	}
	return conn
}

// TestBodiesThatDoNotEnd: a client that promises a body and does not send it is
// answered, and holds the connection no longer than the rule for that body says.
func TestBodiesThatDoNotEnd(t *testing.T) {
	const (
		json   = "Content-Type: application/json\n"
		bytes  = "Content-Type: application/octet-stream\n"
		long   = "Content-Length: 100"
		chunks = "Transfer-Encoding: chunked"
		box    = "/v1/sandboxes/box"
		second = time.Second
	)
	for _, tc := range []struct {
		name, head, body string
		status           int
		answered, ended  time.Duration // at the latest
	}{
		{"refused", "POST /v1/sandboxes\nOrigin: http://evil.example\n" + json + long, "", 403, 0, 3 * second},
		{"refused, chunked", "POST /v1/sandboxes\nOrigin: http://evil.example\n" + json + chunks, "5\r\n{", 403, 0, 3 * second},
		{"refused, expecting", "POST /v1/run\nOrigin: http://evil.example\nExpect: 100-continue\n" + json + long, "", 403, 0, 3 * second},
		{"no such path", "POST /v1/nothing\n" + json + long, "", 404, 0, 3 * second},
		{"no such method", "PUT /v1/run\n" + json + long, "", 405, 0, 3 * second},
		{"no such sandbox", "GET /v1/sandboxes/none\n" + long, "", 404, 0, 3 * second},
		{"wrong type", "POST /v1/run\nContent-Type: text/plain\n" + long, "", 400, 0, 3 * second},
		{"too large", "POST /v1/run\n" + json + "Content-Length: 99999999999", "", 413, 0, 3 * second},
		{"a body that nobody wants", "GET /v1/version\n" + long, "{", 200, 3 * second, 6 * second},
		{"an action's body that nobody wants", "POST " + box + "/files/mkdir?path=/d\n" + chunks, "5\r\n", 204, 3 * second, 6 * second},
		{"JSON that stops", "POST /v1/run\n" + json + long, `{"exec"`, 408, time.Minute, time.Minute + 3*second},
		{"JSON that stops, chunked", "POST /v1/run\n" + json + chunks, "7\r\n{", 408, time.Minute, time.Minute + 3*second},
		{"upload that stops", "PUT " + box + "/files?path=/f\n" + bytes + long, "x", 408, 5 * time.Minute, 5*time.Minute + 3*second},
		{"tar that stops", "PUT " + box + "/tar?path=/d\nContent-Type: application/x-tar\n" + chunks, "5\r\nx", 408, 5 * time.Minute, 5*time.Minute + 3*second},
		{"input that stops", "POST " + box + "/processes/cat/stdin\n" + bytes + chunks, "5\r\nx", 408, 5 * time.Minute, 5*time.Minute + 3*second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *inside) {
				conn := h.request(tc.head, tc.body)
				defer conn.Close()
				began := time.Now()
				in := bufio.NewReader(conn)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); resp.StatusCode != tc.status || took > tc.answered {
					t.Errorf("HTTP %d after %v, want %d within %v", resp.StatusCode, took, tc.status, tc.answered)
				}
				if !resp.Close && resp.StatusCode >= 400 {
					t.Error("the answer does not say that the connection is closed")
				}
				if _, err := io.Copy(io.Discard, in); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > tc.ended {
					t.Errorf("the connection ended after %v, want %v", took, tc.ended)
				}
			})
		})
	}
}

// TestBodiesThatTrickle: a small body must come in a minute, an upload may take
// hours while it moves.
func TestBodiesThatTrickle(t *testing.T) {
	for _, tc := range []struct {
		name, head    string
		bytes         int
		every, atMost time.Duration
		status        int
	}{
		{"JSON", "POST /v1/run\nContent-Type: application/json\nContent-Length: 100", 100, 10 * time.Second, time.Minute, 408},
		{"upload", "PUT /v1/sandboxes/box/files?path=/f\nContent-Type: application/octet-stream\nContent-Length: 60", 60, 4 * time.Minute, 5 * time.Hour, 200},
		{"input", "POST /v1/sandboxes/box/processes/cat/stdin\nContent-Type: application/octet-stream\nContent-Length: 60", 60, 4 * time.Minute, 5 * time.Hour, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *inside) {
				conn := h.request(tc.head, "")
				began := time.Now()
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range tc.bytes {
						if _, err := conn.Write([]byte(" ")); err != nil {
							return
						}
						time.Sleep(tc.every)
					}
				}()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); resp.StatusCode != tc.status || took > tc.atMost {
					t.Errorf("HTTP %d after %v, want %d within %v", resp.StatusCode, took, tc.status, tc.atMost)
				}
				conn.Close()
				<-done
			})
		})
	}
}

// TestConnectionIsKept: a refusal after a body that came whole costs no
// connection, and its deadline is not the deadline of the next request.
func TestConnectionIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, h *inside) {
		conn := h.request("POST /v1/run\nContent-Type: application/json\nContent-Length: 2", "{}")
		defer conn.Close()
		in := bufio.NewReader(conn)
		for i := range 3 {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("answer %d: %v", i, err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Close {
				t.Fatalf("answer %d: %v, closes: %v", i, err, resp.Close)
			}
			time.Sleep(time.Minute)
			if _, err := io.WriteString(conn, "POST /v1/sandboxes/box/processes/cat/wait HTTP/1.1\r\nHost: cloche\r\n"+
				"Content-Type: application/json\r\nContent-Length: 19\r\n\r\n{\"timeout_ms\":9000}"); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
		}
	})
}

// TestInputThatBreaksOff is no end of the input.
func TestInputThatBreaksOff(t *testing.T) {
	bubble(t, func(t *testing.T, h *inside) {
		conn := h.request("POST /v1/sandboxes/box/processes/cat/stdin?end=true\nContent-Type: application/octet-stream\nContent-Length: 100", "half")
		synctest.Wait()
		conn.Close()
		synctest.Wait()
		p, err := h.client.Process(t.Context(), "box", "cat")
		if err != nil || p.State.Ended() || !p.StdinOpen {
			t.Errorf("the input of %+v was ended by one that broke off (%v)", p, err)
		}
	})
}

// TestRefusalsOverTCP: over a real connection too, and by the rules that need one.
func TestRefusalsOverTCP(t *testing.T) {
	h := open(t)
	for _, tc := range []struct {
		name, head string
		status     int
	}{
		{"no token", "Host: localhost", 401},
		{"wrong token", "Host: localhost\r\nAuthorization: Bearer " + token + "x", 401},
		{"wrong host", "Host: evil.example\r\nAuthorization: Bearer " + token, 403},
		{"wrong origin", "Host: localhost\r\nOrigin: http://evil.example\r\nAuthorization: Bearer " + token, 403},
		{"too large", "Host: localhost\r\nAuthorization: Bearer " + token, 413},
	} {
		for _, body := range []string{"Content-Length: 2000000", "Transfer-Encoding: chunked"} {
			if tc.status == 413 && strings.HasPrefix(body, "T") {
				continue
			}
			t.Run(tc.name+" "+body, func(t *testing.T) {
				t.Parallel()
				conn, err := net.Dial("tcp", h.tcp)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				// A server that waits for the body blocks this indefinitely.
				if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(conn, "POST /v1/sandboxes HTTP/1.1\r\nContent-Type: application/json\r\n%s\r\n%s\r\n\r\n", tc.head, body)
				in := bufio.NewReader(conn)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != tc.status || !resp.Close {
					t.Errorf("HTTP %d, closes: %v, want %d and close", resp.StatusCode, resp.Close, tc.status)
				}
				if _, err := io.Copy(io.Discard, in); err != nil {
					t.Errorf("the connection did not end: %v", err)
				}
				if id := resp.Header.Get("X-Request-Id"); !strings.Contains(logged(h, id), fmt.Sprintf(`"status":%d`, tc.status)) {
					t.Errorf("logged: %s", logged(h, id))
				}
			})
		}
	}
}

// logged is the line about one request.
func logged(h *fixture, id string) string {
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, id) {
			return line
		}
	}
	return ""
}

// TestLeavingIsNoFault: a caller that goes away is not an error of the server.
func TestLeavingIsNoFault(t *testing.T) {
	h := open(t)
	c := h.client()
	if _, err := c.Create(t.Context(), api.SandboxSpec{Name: "box"}); err != nil {
		t.Fatal(err)
	}
	spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "cat", Argv: []string{"cat"}}, OpenStdin: true}
	if _, err := c.StartProcess(t.Context(), "box", spec); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/v1/events?after=-1", "/v1/events", "/v1/sandboxes/box/logs?follow=true", "/v1/sandboxes/box/logs?exec_id=cat&wait_ms=60000",
	} {
		conn, err := net.Dial("unix", h.unix)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: cloche\r\nX-Request-Id: leaving\r\n\r\n", path)
		if !strings.Contains(path, "wait_ms") {
			if _, err := conn.Read(make([]byte, 16)); err != nil { // it has begun
				t.Fatal(err)
			}
		}
		conn.Close()
	}
	// An upload that breaks off, too.
	conn, err := net.Dial("unix", h.unix)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT /v1/sandboxes/box/files?path=/f HTTP/1.1\r\nHost: cloche\r\nX-Request-Id: leaving\r\n"+
		"Content-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nhalf")
	conn.Close()
	for ctx := t.Context(); strings.Count(h.log.String(), `"request":"leaving"`) < 5; {
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
		// Whatever is followed wakes when something happens, and finds no client.
		if _, err := c.WriteStdin(ctx, "box", "cat", nil, strings.NewReader("x"), false); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, `"request":"leaving"`) && !strings.Contains(line, `"level":"DEBUG"`) {
			t.Errorf("logged: %s", line)
		}
	}
}
