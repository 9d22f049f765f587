//go:build linux

package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// stoppedDeadline is every deadline of the daemon's in TestAttackStopped, and
// stoppedSlack how much later a loaded machine may tell of it. The log has how late the
// latest was.
const (
	stoppedDeadline = 8 * time.Second
	stoppedSlack    = 20 * time.Second
)

// goferPart is how the process begins that reads host files for a gVisor sandbox.
const goferPart = "cloche-gofer "

// holderPart is how the process begins that keeps links for the next daemon.
const holderPart = "cloche-holder"

// stoppedVerbs are calls about a sandbox, one of every kind that asks a part of it. Those
// that end it come last, and by themselves.
func stoppedVerbs() (together, last []string) {
	const js = `{"argv":["true"]}`
	return []string{
		"GET /v1/sandboxes", "GET /v1/sandboxes/box", "GET /v1/sandboxes/box/processes", "GET /v1/sandboxes/box/processes/web", "GET /v1/sandboxes/box/endpoints",
		"GET /v1/sandboxes/box/egress", "GET /v1/sandboxes/box/logs?exec_id=web&follow=true", "GET /v1/sandboxes/box/logs",
		"GET /v1/sandboxes/box/files?path=/etc/passwd", "GET /v1/sandboxes/box/files/stat?path=/etc", "GET /v1/sandboxes/box/files/list?path=/etc",
		"GET /v1/sandboxes/box/tar?path=/etc", "GET /v1/status", "GET /v1/doctor", "GET /v1/metrics", "GET /v1/images", "GET /v1/workspaces",
		"GET /v1/snapshots", "GET /v1/programs", "GET /v1/approvals", "GET /v1/errors", "GET /v1/guidance", "GET /healthz", "GET /readyz",
		"POST /v1/sandboxes/box/exec " + js, "POST /v1/sandboxes/box/processes " + js, `POST /v1/sandboxes/box/processes/web/wait {"timeout_ms":60000}`,
		`POST /v1/sandboxes/box/processes/web/signal {"signal":"HUP"}`, `POST /v1/sandboxes/box/processes/web/resize {"rows":9,"cols":9}`,
		"POST /v1/sandboxes/box/files/mkdir?path=/workspace/new", "POST /v1/sandboxes/box/files/move?path=/workspace/a&to=/workspace/b",
		"PUT /v1/sandboxes/box/files?path=/workspace/f text", "PUT /v1/sandboxes/box/tar?path=/workspace tar", "DELETE /v1/sandboxes/box/files?path=/workspace/f",
		`POST /v1/sandboxes/box/tools/read {"path":"/etc/passwd"}`, `POST /v1/sandboxes/box/tools/glob {"pattern":"/etc/*"}`,
		`POST /v1/sandboxes/box/endpoints {"name":"data","target":"http://127.0.0.1:9"}`, "POST /v1/sandboxes/box/heartbeat", "GET /v1/sandboxes/box/diff",
		`POST /v1/batch/status {"ids":["box"]}`, "POST /v1/sandboxes/box/snapshots {}",
	}, []string{"POST /v1/sandboxes/box/pause", "POST /v1/sandboxes/box/resume", `POST /v1/sandboxes/box/stop {"grace_ms":1000}`, "POST /v1/sandboxes/box/kill", "DELETE /v1/sandboxes/box"}
}

// TestAttackStopped: no call hangs when a part that it asks is stopped from outside, and
// no list has what does not exist.
func TestAttackStopped(t *testing.T) {
	for _, name := range []string{"CALL", "CHANGE", "WORK", "TRANSFER", "AGENT"} {
		t.Setenv("CLOCHE__DEADLINES__"+name, stoppedDeadline.String())
	}
	for _, tc := range []struct{ engine, part string }{
		{"native", "agent"}, {"gvisor", "cloche-sentry "}, {"gvisor", goferPart}, {"gvisor", holderPart}, {"gvisor", "daemon"},
	} {
		t.Run(tc.engine+"/"+strings.TrimSpace(tc.part), func(t *testing.T) {
			h := newFixture(t)
			c, err := client.New(client.Options{Host: "unix://" + h.socket(), Silence: stoppedDeadline, NoReconnect: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			marker := fmt.Sprintf("86400.%09d", rand.IntN(1e9))
			spec := api.SandboxSpec{Name: "box", Engine: tc.engine, Network: "on", Egress: &api.Egress{Allow: []string{"example.org"}}}
			sb, err := c.Create(t.Context(), spec)
			if err != nil && (tc.engine != "gvisor" || os.Geteuid() != 0) {
				t.Skipf("needs an engine %s with a network that works for this user: %v", tc.engine, err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sb.StartProcess(t.Context(), api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "web", Argv: []string{"sleep", marker}}}); err != nil {
				t.Fatal(err)
			}
			s := &stoppedPart{T: t, h: h, c: c, part: tc.part, marker: marker}
			s.stop(sb)
			s.all()
		})
	}
}

// stoppedPart is a part that does not answer.
type stoppedPart struct {
	*testing.T
	h    *fixture
	c    *client.Client
	part string
	// marker is in the arguments of the process that runs inside.
	marker string

	mu     sync.Mutex
	latest time.Duration
}

// stop stops the part, and lets it go on at the end of the test.
func (s *stoppedPart) stop(sb *client.Sandbox) {
	s.Helper()
	var pids []int
	switch s.part {
	case "daemon":
		pids = []int{s.h.daemon.Process.Pid}
	case "agent":
		a := &stuckAgent{T: s.T, c: s.c, sb: sb, marker: s.marker}
		if !poll(func() bool { pids = []int{a.find()}; return pids[0] > 1 }) {
			s.Fatalf("the agent is not found among %v", a.processes())
		}
	default:
		for _, p := range s.h.processes() {
			if strings.HasPrefix(p.argv, s.part) {
				pids = append(pids, p.pid)
			}
		}
		if len(pids) == 0 {
			s.Skipf("needs a process %s of its own for this sandbox, and here is none", s.part)
		}
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	}
}

// all makes every call, and looks at what the lists say meanwhile.
func (s *stoppedPart) all() {
	together, last := stoppedVerbs()
	// A gofer that is stopped holds up programs as a slow disk does, and a holder none. What
	// waits for a program waits on.
	waits := s.part == goferPart || s.part == holderPart
	if waits {
		together = slices.DeleteFunc(together, func(v string) bool {
			return strings.Contains(v, "/exec ") || strings.Contains(v, "/wait ") || strings.Contains(v, "follow=true")
		})
	}
	var wg sync.WaitGroup
	for _, verb := range together {
		wg.Go(func() { s.call(verb) })
	}
	for name, f := range map[string]func(context.Context) error{
		"exec stream": func(ctx context.Context) error {
			st, err := s.c.ExecStream(ctx, "box", api.ExecRequest{Argv: []string{"sleep", "1000"}})
			if err != nil {
				return err
			}
			defer st.Close()
			_, err = st.Recv()
			return err
		},
		"attach": func(ctx context.Context) error {
			a, err := s.c.Attach(ctx, "box", "web", api.AttachRequest{})
			if err != nil {
				return err
			}
			defer a.Close()
			_, err = a.Recv()
			return err
		},
		"port": func(ctx context.Context) error { _, err := s.c.DialPort(ctx, "box", 1); return err },
	} {
		if !waits || name == "port" {
			wg.Go(func() { s.within(name, 2*stoppedDeadline, f) })
		}
	}
	wg.Wait()
	if s.part != "daemon" {
		list, err := s.c.List(s.Context(), api.ListOptions{})
		if err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].Name != "box" || list.Sandboxes[0].ObservedAt.IsZero() {
			s.Errorf("the list has %+v, %v", list.Sandboxes, err)
		}
	}
	for _, verb := range last {
		s.call(verb)
	}
	s.Logf("the latest call was %s behind its deadline", s.latest)
}

// call makes one call as "METHOD /path body".
func (s *stoppedPart) call(verb string) {
	method, rest, _ := strings.Cut(verb, " ")
	path, body, _ := strings.Cut(rest, " ")
	most := stoppedDeadline
	switch {
	case strings.Contains(path, "/stop"):
		most += time.Second
	case strings.Contains(path, "exec"), strings.Contains(path, "/wait"):
		// An agent is given up after its silence, and then dialled once more.
		most = 3 * stoppedDeadline
	}
	s.within(verb, most, func(ctx context.Context) error {
		if s.part == "daemon" {
			return s.byClient(ctx, path)
		}
		req, err := http.NewRequestWithContext(ctx, method, "http://cloche"+path, bytes.NewBufferString(body))
		if err != nil {
			return err
		}
		switch body {
		case "text":
			req.Header.Set("Content-Type", "application/octet-stream")
		case "tar":
			req.Header.Set("Content-Type", "application/x-tar")
		case "":
			req.Body = nil
		default:
			req.Header.Set("Content-Type", "application/json")
		}
		one := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.h.socket())
		}}}
		resp, err := one.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		var e struct{ Error *api.Error }
		if json.Unmarshal(data, &e) == nil && e.Error != nil {
			if e.Error.Code == api.CodeInternal {
				s.Errorf("%s: %v", verb, e.Error)
			}
			return e.Error
		}
		return err
	})
}

// byClient is a call of a daemon that does not answer: it is the client that ends it.
func (s *stoppedPart) byClient(ctx context.Context, path string) error {
	var err error
	switch {
	case strings.HasSuffix(path, "/exec"):
		_, err = s.c.Exec(ctx, "box", api.ExecRequest{Argv: []string{"true"}})
	case strings.HasSuffix(path, "/stop"):
		_, err = s.c.Stop(ctx, "box", api.StopOptions{})
	case strings.HasSuffix(path, "/wait"):
		_, err = s.c.WaitProcess(ctx, "box", "web", api.WaitRequest{})
	case strings.Contains(path, "/logs"):
		err = s.c.Logs(ctx, "box", api.LogOptions{ExecID: "web", Follow: true}, func(api.LogEntry) error { return nil })
	case strings.Contains(path, "/files"):
		_, err = s.c.ReadFile(ctx, "box", "/etc/passwd")
	case strings.Contains(path, "/sandboxes/box"):
		_, err = s.c.Get(ctx, "box")
	default:
		_, err = s.c.List(ctx, api.ListOptions{})
	}
	if !errors.Is(err, api.ErrUnavailable) {
		s.Errorf("%s: a daemon that is stopped: %v", path, err)
	}
	return err
}

// within makes a call that ends by itself.
func (s *stoppedPart) within(name string, most time.Duration, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(s.Context(), most+stoppedSlack)
	defer cancel()
	begun := time.Now()
	err := f(ctx)
	took := time.Since(begun)
	if ctx.Err() != nil {
		s.Errorf("%s hangs: after %s %v", name, took, err)
	}
	s.mu.Lock()
	s.latest = max(s.latest, took-most)
	s.mu.Unlock()
	s.Logf("%s", fmt.Sprintf("%-60.60s %8s %v", name, took.Round(time.Millisecond), err))
}
