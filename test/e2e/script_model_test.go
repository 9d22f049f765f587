//go:build linux

package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// pypiVar names a directory that holds the openai, mcp and hypercorn packages of PyPI with all
// that they need, for the scripts that use them unmodified.
const pypiVar = "CLOCHE_TEST_PYPI"

// model is a strict server of a model's API, on the host.
type model struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string // METHOD PATH AUTHORIZATION SANDBOX
	gone  int      // clients that left before their answer was whole
	conns atomic.Int64
}

// cmdModel is:
//
//	model start            begins one and sets $MODEL, $MODELPORT and $PYPI
//	model [!] asked RE     whether a request matches, as METHOD PATH AUTHORIZATION SANDBOX
//	model gone N           waits until so many clients have left
//	model connections N    whether it had at most so many connections since it was asked last
func cmdModel(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 1 && args[0] == "start" {
		m := &model{}
		m.Server = httptest.NewUnstartedServer(m)
		m.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				m.conns.Add(1)
			}
		}
		m.Start()
		models.Store(ts, m)
		ts.Defer(func() {
			models.Delete(ts)
			m.CloseClientConnections()
			m.Close()
		})
		ts.Setenv("MODEL", m.URL)
		ts.Setenv("MODELPORT", m.URL[strings.LastIndex(m.URL, ":")+1:])
		ts.Setenv("PYPI", os.Getenv(pypiVar))
		return
	}
	found, ok := models.Load(ts)
	if !ok || len(args) != 2 {
		ts.Fatalf("usage: model start|asked RE|gone N|connections N, after a start")
	}
	m := found.(*model)
	var n int
	fmt.Sscan(args[1], &n)
	switch args[0] {
	case "asked":
		m.mu.Lock()
		defer m.mu.Unlock()
		re := regexp.MustCompile(args[1])
		hit := false
		for _, a := range m.asked {
			hit = hit || re.MatchString(a)
		}
		if hit == neg {
			ts.Fatalf("the model was asked %q", m.asked)
		}
	case "gone":
		for end := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
			m.mu.Lock()
			got := m.gone
			m.mu.Unlock()
			if got >= n {
				return
			}
			if time.Now().After(end) {
				ts.Fatalf("%d clients have left", got)
			}
		}
	case "connections":
		if got := m.conns.Swap(0); got > int64(n) {
			ts.Fatalf("%d connections", got)
		}
	}
}

// models are the running ones, by script.
var models sync.Map

// ServeHTTP implements http.Handler.
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.asked = append(m.asked, strings.Join([]string{r.Method, r.RequestURI, r.Header.Get("Authorization"), r.Header.Get("X-Sandbox-Id")}, " "))
	m.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch r.URL.Path {
	case "/v1/chat/completions":
		m.complete(w, r, body)
	case "/v1/models":
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model","created":1,"owned_by":"host"}]}`)
	case "/hang":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: begun\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		m.mu.Lock()
		m.gone++
		m.mu.Unlock()
	case "/silent":
		<-r.Context().Done()
	case "/echo-header":
		w.Header().Set("X-Said", "you said "+r.Header.Get("Authorization"))
	case "/echo":
		w.Write(body)
	case "/rollout/r1/vf/tools/add":
		fmt.Fprint(w, `{"result":"ok"}`)
	case "/rollout/r1/vf/user":
		fmt.Fprint(w, `{"messages":[]}`)
	case "/rollout/r1/vf/stop":
		fmt.Fprint(w, `{"done":true,"stop_condition":"tests"}`)
	default:
		http.NotFound(w, r)
	}
}

// complete streams a completion, to a request that says nothing that it does not know
// and nothing twice.
func (m *model) complete(w http.ResponseWriter, r *http.Request, body []byte) {
	dec, seen, depth := json.NewDecoder(bytes.NewReader(body)), map[string]bool{}, 0
	known := map[string]bool{"model": true, "messages": true, "stream": true, "temperature": true, "max_tokens": true}
	for key := true; ; {
		tok, err := dec.Token()
		if err != nil {
			break
		}
		if d, ok := tok.(json.Delim); ok {
			if d == '{' || d == '[' {
				depth++
			} else {
				depth--
			}
			key = true
			continue
		}
		if depth != 1 {
			continue
		}
		if name, ok := tok.(string); ok && key {
			if seen[name] || !known[name] {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprintf(w, `{"error":{"message":"unknown or repeated: %s","type":"invalid_request_error"}}`, name)
				return
			}
			seen[name] = true
		}
		key = !key
	}
	var q struct{ Stream bool }
	if err := json.Unmarshal(body, &q); err != nil || !seen["model"] || !seen["messages"] {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if !q.Stream {
		fmt.Fprint(w, `{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there"},"finish_reason":"stop"}]}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, word := range []string{"Hel", "lo ", "there"} {
		fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`+"\n\n", word)
		w.(http.Flusher).Flush()
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
