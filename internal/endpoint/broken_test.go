package endpoint_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// A response that its target breaks off is on record as that, and is broken off for who
// asked.
func TestResponseIsBrokenOff(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	resp, err := http.Get(in.base + "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("it ended well: %q", b)
	}
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	if x := in.last(t); x.Code != "target_reset" || x.Outcome == "ok" {
		t.Errorf("on record: %+v", x)
	}
}

// said is an answer of the endpoint's own.
type said struct {
	Error struct {
		Type, Code, Message string
		Retryable           bool
		RequestID           string `json:"request_id"`
	}
}

// TestBodyIsMalformed: a body that cannot be read is the fault of who sends it. The target
// is not blamed, and the same is not worth another try.
func TestBodyIsMalformed(t *testing.T) {
	srv := target(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for _, c := range []struct{ name, filter, body string }{
		{"no size", "", "zz\r\nhello\r\n0\r\n\r\n"},
		{"after a chunk", "", "5\r\nhello\r\nzz\r\n0\r\n\r\n"},
		{"a chunk that is longer than it says", "", "5\r\nhello, world\r\n0\r\n\r\n"},
		{"a size too large", "", "fffffffffffffffff\r\nhello\r\n0\r\n\r\n"},
		{"a line of the wrong end", "", "5\nhello\n0\n\n"},
		{"a trailer without a name", "", "5\r\nhello\r\n0\r\n: x\r\n\r\n"},
		{"where it is looked into", api.BodyFilterStrip, "zz\r\nhello\r\n0\r\n\r\n"},
	} {
		in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{BodyFilter: c.filter}}, nil)
		for range 3 {
			answer := in.say(t, "POST /v1/messages HTTP/1.1\r\nHost: "+in.addr+"\r\nTransfer-Encoding: chunked\r\n\r\n"+c.body)
			resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
			if err != nil {
				t.Fatalf("%s: %q, %v", c.name, answer, err)
			}
			var body said
			err = json.NewDecoder(resp.Body).Decode(&body)
			if resp.StatusCode != 400 || resp.Header.Get("X-Bridge-Error") != "malformed_request" || resp.Header.Get("Retry-After") != "" ||
				err != nil || body.Error.Code != "malformed_request" || body.Error.Retryable {
				t.Errorf("%s: %q", c.name, answer)
			}
		}
		until(t, func() bool { return in.Status().Counters.Active == 0 })
		if x := in.last(t); x.Code != "malformed_request" || x.Outcome != "denied" || x.Status != 400 {
			t.Errorf("%s: on record %+v", c.name, x)
		}
		if st := in.Status(); st.State == api.EndpointDegraded || st.Counters.Errors["target_reset"] != 0 {
			t.Errorf("%s: %+v", c.name, st)
		}
	}
}

// TestClientLeavesItsBody: the end of who sends a body says nothing of the target.
func TestClientLeavesItsBody(t *testing.T) {
	srv := target(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for _, head := range []string{"Content-Length: 100\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"} {
		in := open(t, api.Endpoint{Target: srv.URL}, nil)
		c, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\n%s", in.addr, head)
		until(t, func() bool { return in.Status().Counters.BytesIn == 5 })
		c.Close()
		until(t, func() bool { return in.Status().Counters.Active == 0 })
		if x := in.last(t); x.Outcome != "client_cancel" || x.Code != "client_gone" {
			t.Errorf("%q: on record %+v", head, x)
		}
		if st := in.Status(); st.State == api.EndpointDegraded || len(st.Counters.Errors) > 0 {
			t.Errorf("%q: %+v", head, st)
		}
	}
}

// TestRefusedBeforeItIsARequest: what HTTP itself refuses has the answer and the record of
// any other refusal, also where requests that were answered came before it.
func TestRefusedBeforeItIsARequest(t *testing.T) {
	srv := target(t, func(http.ResponseWriter, *http.Request) {})
	for _, c := range []struct {
		name, request string
		status        int
		code, says    string
	}{
		{"no request", "hello\r\n\r\n", 400, "malformed_request", ""},
		{"another version", "GET / HTTP/3.0\r\nHost: HOST\r\n\r\n", 505, "malformed_request", "unsupported protocol version"},
		{"no version", "GET /\r\n\r\n", 400, "malformed_request", ""},
		{"no Host", "GET / HTTP/1.1\r\n\r\n", 400, "malformed_request", "missing required Host header"},
		{"two Hosts", "GET / HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n", 400, "malformed_request", ""},
		{"a bad Host", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "malformed_request", "malformed Host header"},
		{"a bad name", "GET / HTTP/1.1\r\nHost: HOST\r\nX Y: z\r\n\r\n", 400, "malformed_request", ""},
		{"a bad value", "GET / HTTP/1.1\r\nHost: HOST\r\nX: \x00\r\n\r\n", 400, "malformed_request", ""},
		{"a bad length", "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n", 400, "malformed_request", ""},
		{"another coding", "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "malformed_request", ""},
		{"another expectation", "POST / HTTP/1.1\r\nHost: HOST\r\nExpect: much\r\n\r\n", 417, "malformed_request", ""},
		{"a head too large", "GET / HTTP/1.1\r\nHost: HOST\r\nX: " + strings.Repeat("x", 128<<10) + "\r\n\r\n", 431, "header_too_large", ""},
	} {
		for _, before := range []int{0, 2} {
			in := open(t, api.Endpoint{Target: srv.URL}, nil)
			conn, err := net.Dial("tcp", in.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(time.Minute))
			io.WriteString(conn, strings.Repeat("GET /before HTTP/1.1\r\nHost: "+in.addr+"\r\n\r\n", before)+strings.ReplaceAll(c.request, "HOST", in.addr))
			r := bufio.NewReader(conn)
			for range before {
				resp, err := http.ReadResponse(r, nil)
				if err != nil || resp.StatusCode != 200 {
					t.Fatal(resp, err)
				}
				io.Copy(io.Discard, resp.Body)
			}
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			var body said
			err = json.Unmarshal(text, &body)
			if resp.StatusCode != c.status || resp.Header.Get("X-Bridge-Error") != c.code || !resp.Close || err != nil || body.Error.Type != "bridge_error" ||
				body.Error.Code != c.code || body.Error.Retryable || !strings.Contains(body.Error.Message, c.says) {
				t.Errorf("%s after %d: %s %v %s, want %d %s", c.name, before, resp.Status, resp.Header, text, c.status, c.code)
			}
			until(t, func() bool { return in.Status().Counters.Active == 0 })
			x := in.last(t)
			if x.Code != c.code || x.Outcome != "denied" || x.Status != c.status || x.Method != "" || x.ID != body.Error.RequestID {
				t.Errorf("%s after %d: on record %+v", c.name, before, x)
			}
			if n := in.Status().Counters; n.Requests != int64(before+1) || n.Errors[c.code] != 1 {
				t.Errorf("%s after %d: counted as %+v", c.name, before, n)
			}
			if rest, _ := io.ReadAll(r); len(rest) > 0 {
				t.Errorf("%s after %d: %q follows", c.name, before, rest)
			}
		}
	}
}
