package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

// process answers what concerns processes and ports, and says whether it did.
func (f *fakeDaemon) process(w http.ResponseWriter, r *http.Request, rest string) bool {
	if port, ok := strings.CutPrefix(rest, "/ports/"); ok {
		f.port(w, r, port)
		return true
	}
	rest, ok := strings.CutPrefix(rest, "/processes")
	if !ok {
		return false
	}
	if rest == "" && r.Method == http.MethodPost {
		f.decode(r, &f.started)
		w.WriteHeader(http.StatusCreated)
		answer(w, f.startedRecord())
		return true
	}
	if rest == "" {
		answer(w, api.ProcessList{Processes: f.processes})
		return true
	}
	id, verb, _ := strings.Cut(rest[1:], "/")
	for _, p := range append(f.processes, f.startedRecord()) {
		if p.ExecID == id {
			f.known(w, r, p, verb)
			return true
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	answer(w, map[string]*api.Error{"error": api.Errorf(api.CodeNotFound, "sandbox box has no process %s", id)})
	return true
}

// startedRecord is the process that was started last.
func (f *fakeDaemon) startedRecord() api.Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := api.Process{
		ExecID: f.started.ExecID, Name: f.started.Name, Argv: f.started.Argv, State: api.ProcessRunning, Running: true,
		TTY: f.started.TTY, Managed: true, StartedAt: time.Now(), StdinOpen: f.started.OpenStdin,
	}
	if p.ExecID == "" {
		p.ExecID = "p-new"
	}
	return p
}

func (f *fakeDaemon) known(w http.ResponseWriter, r *http.Request, p api.Process, verb string) {
	switch verb {
	case "":
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(w, p)
	case "wait":
		answer(w, f.waited)
	case "signal":
		f.decode(r, &f.signal)
		w.WriteHeader(http.StatusNoContent)
	case "stdin":
		data, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		f.stdin += string(data)
		f.mu.Unlock()
		answer(w, api.StdinAck{Offset: int64(len(data))})
	case "attach":
		f.stream(w, r)
	}
}

// port carries a connection to what the test has at the port.
func (f *fakeDaemon) port(w http.ResponseWriter, r *http.Request, port string) {
	if port == "1" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		answer(w, map[string]*api.Error{"error": api.Errorf(api.CodeUnavailable, "nothing listens on port 1 in the sandbox")})
		return
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		f.t.Errorf("accept: %v", err)
		return
	}
	defer conn.CloseNow()
	near, far := net.Pipe()
	defer near.Close()
	go f.dial(far)
	go func() {
		for {
			_, data, err := conn.Read(r.Context())
			if err != nil {
				near.Close()
				return
			}
			_, _ = near.Write(data)
		}
	}()
	buf := make([]byte, 1024)
	for {
		n, err := near.Read(buf)
		if n > 0 {
			_ = conn.Write(r.Context(), websocket.MessageBinary, buf[:n])
		}
		if err != nil {
			_ = conn.Write(r.Context(), websocket.MessageBinary, nil)
			conn.Close(websocket.StatusNormalClosure, "")
			return
		}
	}
}

func (f *fakeDaemon) serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range f.events {
		fmt.Fprintf(w, "id: %d\nevent: %s\ndata: ", e.Cursor, e.Kind)
		answer(w, e)
		fmt.Fprint(w, "\n")
	}
	if r.URL.Query().Get("follow") == "true" {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// hold keeps the sandbox while the connection lasts.
func (f *fakeDaemon) hold(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		f.t.Errorf("accept: %v", err)
		return
	}
	defer conn.CloseNow()
	var m api.ClientMessage
	_, data, err := conn.Read(r.Context())
	if err != nil || unmarshal(data, &m) != nil || m.Hold == nil {
		f.t.Errorf("the first message of a hold is %q, %v", data, err)
		return
	}
	f.mu.Lock()
	f.spec = *m.Hold
	f.held++
	f.mu.Unlock()
	_ = conn.Write(r.Context(), websocket.MessageText, marshal(api.ServerMessage{Sandbox: &f.sandbox}))
	_, _, _ = conn.Read(r.Context())
	f.mu.Lock()
	f.held--
	f.mu.Unlock()
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func unmarshal(b []byte, v any) error { return json.Unmarshal(b, v) }
