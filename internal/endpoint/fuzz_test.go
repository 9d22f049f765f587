package endpoint

import (
	"bufio"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
)

// FuzzPath: what is let through cannot mean anything above where it begins, however
// often it is decoded and cleaned.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/", "/v1/x?y", "/../a", "/%2e%2e/a", "//a", "/a%2fb", "/..;a/b", "@a", `/\a`, "/%252e./x", "/a#b", "/%", "/%zz", "/a%00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		raw, decoded, err := pathOf(target, true)
		if err != nil {
			return
		}
		if u := (&url.URL{Path: "/base" + decoded, RawPath: "/base" + raw}).EscapedPath(); !strings.HasPrefix(u, "/base/") {
			t.Fatalf("%q goes on as %q", target, u)
		}
		for range 2 {
			if c := path.Clean("/base" + decoded); c != "/base" && !strings.HasPrefix(c, "/base/") {
				t.Fatalf("%q means %q", target, c)
			}
			if decoded, err = url.PathUnescape(decoded); err != nil {
				return
			}
		}
	})
}

// FuzzFraming: whatever comes, in whatever pieces, is followed without harm, and what
// net/http takes for one request whose length is said twice is noticed.
func FuzzFraming(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabGET / HTTP/1.1\r\nHost: b\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nT: v\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		step = max(1, min(step, 1000))
		var pieces, whole framing
		pieces.begin()
		whole.begin()
		whole.see(data)
		for rest := data; len(rest) > 0; {
			n := min(step, len(rest))
			pieces.see(rest[:n])
			rest = rest[n:]
		}
		if whole.ambiguous.Load() != pieces.ambiguous.Load() {
			t.Fatal("it depends on the pieces")
		}
		head, _, ok := strings.Cut(string(data), "\r\n\r\n")
		if _, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(data)))); err != nil || !ok || strings.Contains(head, "\n\n") || strings.Contains(head, "\n\r\n") || strings.HasPrefix(head, "\n") {
			return
		}
		sized, coded := false, false
		for line := range strings.SplitSeq(head, "\n") {
			name, _, _ := strings.Cut(strings.ToLower(line), ":")
			sized, coded = sized || name == "content-length", coded || name == "transfer-encoding"
		}
		if sized && coded && !whole.ambiguous.Load() {
			t.Fatalf("not noticed: %q", head)
		}
	})
}
