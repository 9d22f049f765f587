//go:build linux

package envd_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
)

func (f *fixture) put(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func unzipped(t *testing.T, text string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDownload(t *testing.T) {
	f := newFixture(t)
	text := strings.Repeat("0123456789", 10_000)
	f.put(t, "a.txt", text)
	f.put(t, "page", "<html><body>x</body></html>")
	f.put(t, "empty", "")
	if err := os.Symlink("a.txt", filepath.Join(f.dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		query  string
		h      map[string]string
		status int
		body   string
		want   map[string]string
	}{
		{"path=a.txt", nil, 200, text, map[string]string{"Content-Type": "text/plain; charset=utf-8", "Content-Length": "100000", "Vary": "Accept-Encoding", "Content-Disposition": "inline; filename=a.txt"}},
		{"path=link", nil, 200, text, nil},
		{"path=" + url.QueryEscape("~/a.txt"), nil, 200, text, nil},
		{"path=" + url.QueryEscape(f.dir+"/./x/../a.txt"), nil, 200, text, nil},
		{"path=page", nil, 200, "<html><body>x</body></html>", map[string]string{"Content-Type": "text/html; charset=utf-8"}},
		{"path=empty", nil, 200, "", nil},
		{"path=a.txt", map[string]string{"Range": "bytes=5-9"}, 206, "56789", map[string]string{"Content-Range": "bytes 5-9/100000"}},
		{"path=a.txt", map[string]string{"Range": "bytes=-3", "Accept-Encoding": "gzip"}, 206, "789", map[string]string{"Content-Encoding": ""}},
		{"path=a.txt", map[string]string{"Range": "bytes=200000-"}, 416, "invalid range: failed to overlap\n", nil},
		{"path=a.txt", map[string]string{"Accept-Encoding": "gzip"}, 200, "gzip", map[string]string{"Content-Encoding": "gzip"}},
		{"path=a.txt", map[string]string{"Accept-Encoding": "gzip, identity;q=0"}, 200, "gzip", nil},
		{"path=a.txt", map[string]string{"Accept-Encoding": "gzip, deflate, br"}, 200, text, map[string]string{"Content-Encoding": ""}},
		{"path=a.txt", map[string]string{"Accept-Encoding": "br, *;q=0"}, 406, "no acceptable coding", nil},
		{"path=nope", nil, 404, "path '" + f.dir + "/nope' does not exist", nil},
		{"path=a.txt/b", nil, 404, "does not exist", nil},
		{"path=" + url.QueryEscape(f.dir), nil, 400, "is a directory", nil},
		{"", nil, 400, "is a directory", nil},
		{"path=/dev/null", nil, 400, "not a regular file", nil},
		{"path=" + strings.Repeat("a", 5000), nil, 400, "too long", nil},
		{"path=a%00b", nil, 400, "NUL", nil},
		{"path=~other/x", nil, 400, "~other", nil},
		{"path=a.txt&username=unknown", nil, 401, "error looking up user 'unknown'", nil},
	} {
		status, h, body := f.do(t, http.MethodGet, "/files?"+c.query, c.h, nil)
		if c.body == "gzip" {
			if got := unzipped(t, body); got != text {
				t.Errorf("%s %v: %d bytes", c.query, c.h, len(got))
			}
		} else if ok := body == c.body || status >= 400 && strings.Contains(body, c.body); !ok {
			t.Errorf("%s %v: %.200q, want %.200q", c.query, c.h, body, c.body)
		}
		if status != c.status {
			t.Errorf("%s %v: status %d, want %d", c.query, c.h, status, c.status)
		}
		for k, want := range c.want {
			if got := h.Get(k); got != want {
				t.Errorf("%s %v: %s is %q, want %q", c.query, c.h, k, got, want)
			}
		}
	}
	if status, _, body := f.do(t, http.MethodGet, "/files?path=/proc/version", nil, nil); status != 200 || !strings.Contains(body, "Linux version") {
		t.Errorf("a file of /proc: %d %.100q", status, body)
	}
}

// part is one part of a multipart body.
type part struct{ field, file, text string }

func multi(t *testing.T, parts ...part) (kind, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		h := textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf("form-data; name=%q", p.field)}}
		if p.file != "" {
			h["Content-Disposition"][0] += fmt.Sprintf("; filename=%q", p.file)
		}
		one, err := w.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(one, p.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.String()
}

func TestUpload(t *testing.T) {
	f := newFixture(t)
	f.put(t, "dir/x", "old")
	octets := "application/octet-stream"
	one := func(p part, more ...part) (string, string) { return multi(t, append([]part{p}, more...)...) }
	for _, c := range []struct {
		name, query string
		h           map[string]string
		parts       []part
		body        string // without parts
		status      int
		answer      string // a part of it
		files       map[string]string
	}{
		{"part by its name", "", nil, []part{{"file", "new/a.txt", "A"}}, "", 200, `[{"path":"DIR/new/a.txt","name":"a.txt","type":"file"}]`, map[string]string{"new/a.txt": "A"}},
		{"part by the path", "path=b.txt", nil, []part{{"file", "ignored", "B"}}, "", 200, `[{"path":"DIR/b.txt","name":"b.txt","type":"file"}]`, map[string]string{"b.txt": "B"}},
		{"several parts", "", nil, []part{{"file", "m/1", "1"}, {"other", "m/3", "3"}, {"file", "m/2", "2"}}, "", 200, `"DIR/m/2"`, map[string]string{"m/1": "1", "m/2": "2"}},
		{"no part", "", nil, []part{{"other", "x", "3"}}, "", 200, `[]`, nil},
		{"overwrites", "path=dir/x", map[string]string{"Content-Type": octets}, nil, "new", 200, `"x"`, map[string]string{"dir/x": "new"}},
		{"gzip", "path=g", map[string]string{"Content-Type": octets, "Content-Encoding": "gzip"}, nil, zipped(t, "unpacked"), 200, `"g"`, map[string]string{"g": "unpacked"}},
		{"outside of the home", "path=" + url.QueryEscape("../"+filepath.Base(f.dir)+"/o"), map[string]string{"Content-Type": octets}, nil, "o", 200, `"DIR/o"`, map[string]string{"o": "o"}},
		{"metadata is checked", "path=meta", map[string]string{"Content-Type": octets, "X-Metadata-Author": "me"}, nil, "m", 200, `[{"path":"DIR/meta","name":"meta","type":"file"}]`, nil},
		{"bad metadata", "path=meta2", map[string]string{"Content-Type": octets, "X-Metadata-Author": "m\u00e9"}, nil, "m", 400, "ASCII", nil},
		{"much metadata", "path=meta2", map[string]string{"Content-Type": octets, "X-Metadata-A": strings.Repeat("x", 4090)}, nil, "m", 400, "4096", nil},
		{"a long key of metadata", "path=meta2", map[string]string{"Content-Type": octets, "X-Metadata-" + strings.Repeat("a", 247): "v"}, nil, "m", 400, "246", nil},
		{"no path", "", map[string]string{"Content-Type": octets}, nil, "x", 400, "no path", nil},
		{"no type", "path=x", map[string]string{"Content-Type": ""}, nil, "x", 400, "Content-Type", nil},
		{"other type", "path=x", map[string]string{"Content-Type": "text/plain"}, nil, "x", 400, "text/plain", nil},
		{"no boundary", "path=x", map[string]string{"Content-Type": "multipart/form-data"}, nil, "x", 400, "boundary", nil},
		{"other coding", "path=x", map[string]string{"Content-Type": octets, "Content-Encoding": "br"}, nil, "x", 400, "br", nil},
		{"bad gzip", "path=x", map[string]string{"Content-Type": octets, "Content-Encoding": "gzip"}, nil, "x", 400, "gzip", nil},
		{"half a gzip", "path=half", map[string]string{"Content-Type": octets, "Content-Encoding": "gzip"}, nil, zipped(t, "unpacked")[:12], 400, "not complete", nil},
		{"bad parts", "path=x", map[string]string{"Content-Type": "multipart/form-data; boundary=b"}, nil, "--b\r\nnothing", 400, "multipart", nil},
		{"half a part", "path=half", map[string]string{"Content-Type": "multipart/form-data; boundary=b"}, nil, "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc", 400, "not complete", nil},
		{"the same twice", "path=twice", nil, []part{{"file", "a", "1"}, {"file", "b", "2"}}, "", 400, "twice", nil},
		{"a directory", "path=dir", map[string]string{"Content-Type": octets}, nil, "x", 400, "path is a directory: DIR/dir", nil},
		{"below a file", "path=dir/x/y", map[string]string{"Content-Type": octets}, nil, "x", 400, "", nil},
		{"unknown user", "path=x&username=unknown", map[string]string{"Content-Type": octets}, nil, "x", 401, "unknown", nil},
	} {
		h, body := c.h, c.body
		if c.parts != nil {
			kind, text := one(c.parts[0], c.parts[1:]...)
			h, body = map[string]string{"Content-Type": kind}, text
		}
		status, _, answer := f.do(t, http.MethodPost, "/files?"+c.query, h, strings.NewReader(body))
		if want := strings.ReplaceAll(c.answer, "DIR", f.dir); status != c.status || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want %d %s", c.name, status, answer, c.status, want)
		}
		for name, want := range c.files {
			if got, err := os.ReadFile(filepath.Join(f.dir, name)); string(got) != want {
				t.Errorf("%s: %s has %q, want %q: %v", c.name, name, got, want, err)
			}
		}
	}
	for _, name := range []string{"half", "meta2", "x"} {
		if _, err := os.Stat(filepath.Join(f.dir, name)); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

func TestCompose(t *testing.T) {
	f := newFixture(t)
	f.put(t, "1", "one")
	f.put(t, "2", "")
	f.put(t, "3", "three")
	f.put(t, "d/x", "")
	for _, c := range []struct {
		body   string
		status int
		answer string
	}{
		{`{"source_paths":["1","nope"],"destination":"all"}`, 404, "nope"},
		{`{"source_paths":["1","d"],"destination":"all"}`, 400, "not a regular file"},
		{`{"source_paths":[],"destination":"all"}`, 400, "source_paths"},
		{`{"source_paths":["1"],"destination":"d"}`, 400, "path is a directory"},
		{`{"source_paths":`, 400, "JSON"},
		{`{"source_paths":["1"],"destination":"all","username":"unknown"}`, 401, "unknown"},
		{`{"source_paths":["1","2","3"],"destination":"new/all"}`, 200, `/new/all"`},
	} {
		status, _, answer := f.do(t, http.MethodPost, "/files/compose", nil, strings.NewReader(c.body))
		if status != c.status || !strings.Contains(answer, c.answer) {
			t.Errorf("%s: %d %s", c.body, status, answer)
		}
	}
	if got, err := os.ReadFile(filepath.Join(f.dir, "new/all")); string(got) != "onethree" {
		t.Errorf("joined %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(f.dir, "1")); err == nil {
		t.Error("a source was kept")
	}
}

func signed(path, op, user, token, exp string) string {
	text := path + ":" + op + ":" + user + ":" + token
	if exp != "" {
		text += ":" + exp
	}
	sum := sha256.Sum256([]byte(text))
	return envd.SignatureVersion + base64.RawStdEncoding.EncodeToString(sum[:])
}

func TestSignatures(t *testing.T) {
	// The vector of E2B's own tests.
	q := url.Values{"path": {"hello.txt"}, "username": {"user"}, "signature": {"v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"}}
	if !envd.MatchesSignature(http.MethodGet, q, token) || envd.MatchesSignature(http.MethodPost, q, token) {
		t.Error("the known signature")
	}
	f := newFixture(t)
	f.put(t, "a", "A")
	later, before := strconv.FormatInt(time.Now().Unix()+60, 10), strconv.FormatInt(time.Now().Unix()-60, 10)
	for _, c := range []struct {
		name   string
		q      url.Values
		token  string
		status int
		body   string
	}{
		{"signed", url.Values{"path": {"a"}, "signature": {signed("a", "read", "", token, "")}}, "", 200, "A"},
		{"signed for a time", url.Values{"path": {"a"}, "signature": {signed("a", "read", "", token, later)}, "signature_expiration": {later}}, "", 200, "A"},
		{"expired", url.Values{"path": {"a"}, "signature": {signed("a", "read", "", token, before)}, "signature_expiration": {before}}, "", 401, `{"code":401,"message":"signature is already expired"}`},
		{"another time", url.Values{"path": {"a"}, "signature": {signed("a", "read", "", token, before)}, "signature_expiration": {later}}, "", 401, `{"code":401,"message":"invalid signature"}`},
		{"no time", url.Values{"path": {"a"}, "signature": {signed("a", "read", "", token, "x")}, "signature_expiration": {"x"}}, "", 401, `{"code":401,"message":"signature is already expired"}`},
		{"missing", url.Values{"path": {"a"}}, "", 401, `{"code":401,"message":"missing signature query parameter"}`},
		{"for writing", url.Values{"path": {"a"}, "signature": {signed("a", "write", "", token, "")}}, "", 401, `{"code":401,"message":"invalid signature"}`},
		{"of another path", url.Values{"path": {"a"}, "signature": {signed("b", "read", "", token, "")}}, "", 401, `{"code":401,"message":"invalid signature"}`},
		{"of another sandbox", url.Values{"path": {"a"}, "signature": {signed("a", "read", "", token[1:], "")}}, "", 401, `{"code":401,"message":"invalid signature"}`},
		{"for another user", url.Values{"path": {"a"}, "username": {"root"}, "signature": {signed("a", "read", "", token, "")}}, "", 401, `{"code":401,"message":"invalid signature"}`},
		{"with a wrong token", url.Values{"path": {"a"}, "signature": {signed("a", "read", "", token, "")}}, token[1:], 401, `{"code":401,"message":"the access token is wrong"}`},
		{"with the token", url.Values{"path": {"a"}}, token, 200, "A"},
	} {
		status, _, body := f.do(t, http.MethodGet, "/files?"+c.q.Encode(), map[string]string{"X-Access-Token": c.token}, nil)
		if status != c.status || body != c.body {
			t.Errorf("%s: %d %s, want %d %s", c.name, status, body, c.status, c.body)
		}
	}
}

func TestPathsAndTokens(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		method, path, token string
		status              int
	}{
		{"GET", "/health", "", 204},
		{"POST", "/health", "", 405},
		{"GET", "/envs", "", 401},
		{"GET", "/envs", token, 200},
		{"GET", "/metrics", "wrong", 401},
		{"GET", "/metrics", token, 200},
		{"POST", "/process.Process/List", "", 401},
		{"POST", "/filesystem.Filesystem/Stat", token + "x", 401},
		{"POST", "/files/compose", "", 401},
		{"PUT", "/files", token, 405},
		{"POST", "/init", token, 404},
		{"POST", "/freeze", token, 404},
		{"GET", "/", token, 404},
	} {
		status, _, body := f.do(t, c.method, c.path, map[string]string{"X-Access-Token": c.token, "Content-Type": "application/json"}, strings.NewReader("{}"))
		var out map[string]any
		if body != "" && json.Unmarshal([]byte(body), &out) != nil {
			t.Errorf("%s %s: %q", c.method, c.path, body)
		}
		if status != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, status, body, c.status)
		}
		if code, ok := out["code"]; ok && code != float64(c.status) {
			t.Errorf("%s %s: the body has the code %v", c.method, c.path, code)
		}
	}
	if _, _, body := f.do(t, http.MethodGet, "/envs", nil, nil); body != `{"BOTH":"sandbox","GLOBAL":"sandbox"}` {
		t.Errorf("the environment is %s", body)
	}
	_, _, body := f.do(t, http.MethodGet, "/metrics", nil, nil)
	for _, key := range []string{"ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "mem_total_mib", "mem_used_mib", "disk_used", "disk_total"} {
		if !strings.Contains(body, `"`+key+`":`) {
			t.Errorf("no %s in %s", key, body)
		}
	}
}

func FuzzUpload(f *testing.F) {
	f.Add("multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"../x\"\r\n\r\nabc\r\n--b--\r\n", "", "")
	f.Add("application/octet-stream", "abc", "a/b", "gzip")
	f.Add("multipart/form-data; boundary=\"\"", "--\r\n", "~", "")
	f.Fuzz(func(t *testing.T, kind, body, path, coding string) {
		envd.ReceiveUpload(t, kind, coding, path, body)
	})
}
