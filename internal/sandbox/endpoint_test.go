//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/test/freeport"
)

func endpointTo(target string, port int) api.Endpoint {
	return api.Endpoint{Name: "model", Target: target, Listen: "127.0.0.1:" + strconv.Itoa(port), Presets: []string{"openai"}}
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// ask is the status, the bridge's own code and the body of an answer.
func ask(port int) string {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	resp, err := c.Get("http://127.0.0.1:" + strconv.Itoa(port) + "/x")
	if err != nil {
		return "nothing"
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if code := resp.Header.Get("X-Bridge-Error"); code != "" {
		body = []byte(code)
	}
	return strconv.Itoa(resp.StatusCode) + " " + string(body)
}

func (w *fixture) createWith(m *sandbox.Manager, e ...api.Endpoint) api.Sandbox {
	w.t.Helper()
	sb, err := m.Create(w.t.Context(), w.permit(api.SandboxSpec{Name: "box", Endpoints: e, Env: map[string]string{"OPENAI_BASE_URL": "https://elsewhere.example", "OWN": "1"}}), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

func add(t *testing.T, m *sandbox.Manager, sb api.Sandbox, e api.Endpoint, replace bool) (api.EndpointStatus, error) {
	t.Helper()
	now, err := m.Get(operator, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	others := slices.DeleteFunc(slices.Clone(now.Endpoints), func(o api.Endpoint) bool { return o.Name == e.Name })
	p, err := policy.DecideEndpoint(e, others, policy.SettingsOf(now), operator, testRules, m.HasSecrets())
	if err != nil {
		return api.EndpointStatus{}, err
	}
	return m.AddEndpoint(t.Context(), operator, sb.ID, p, replace)
}

func stateOf(t *testing.T, m *sandbox.Manager, sb api.Sandbox) string {
	t.Helper()
	list, err := m.Endpoints(operator, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list.Endpoints {
		out = append(out, e.Endpoint.Name+" "+string(e.State))
	}
	return strings.Join(out, ", ")
}

func envOf(t *testing.T, m *sandbox.Manager, sb api.Sandbox, req api.ExecRequest) string {
	t.Helper()
	req.Shell = "echo $OPENAI_BASE_URL $OPENAI_API_KEY $OWN"
	res, err := m.Exec(t.Context(), operator, sb.ID, permitExec(t, sb, req))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// TestEndpointLife: it is there with the sandbox, is exported to processes and to
// nothing else, is switched, taken away and added again, and goes with the sandbox.
func TestEndpointLife(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	port := freeport.Free(t)
	one := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "one ", r.Header.Get("X-Sandbox-Id")) })
	two := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "two") })
	sb := w.createWith(m, endpointTo(one, port))
	if got := ask(port); got != "200 one "+sb.ID {
		t.Error(got)
	}
	base := "http://127.0.0.1:" + strconv.Itoa(port) + "/v1"
	if got := envOf(t, m, sb, api.ExecRequest{}); got != base+" cloche 1" {
		t.Errorf("environment: %s", got)
	}
	// What a program is given itself goes before, and nothing is kept of any of it.
	if got := envOf(t, m, sb, api.ExecRequest{Env: map[string]string{"OPENAI_BASE_URL": "mine"}}); got != "mine cloche 1" {
		t.Errorf("environment: %s", got)
	}
	if now, _ := m.Get(operator, sb.ID); now.Env["OPENAI_BASE_URL"] != "https://elsewhere.example" || now.Env["OPENAI_API_KEY"] != "" {
		t.Errorf("on record: %v", now.Env)
	}
	list, err := m.Endpoints(operator, sb.ID)
	if err != nil || len(list.Endpoints) != 1 || list.Endpoints[0].HostView.URL != one || list.Endpoints[0].SandboxView.Env["OPENAI_BASE_URL"] != base || list.Endpoints[0].Counters.Requests != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := add(t, m, sb, endpointTo(one, port), false); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if _, err := add(t, m, sb, endpointTo(two, port), false); !errors.Is(err, api.ErrExists) {
		t.Errorf("another of that name: %v", err)
	}
	if _, err := add(t, m, sb, endpointTo(two, port), true); err != nil {
		t.Error(err)
	}
	if got := ask(port); got != "200 two" {
		t.Error(got)
	}
	if now, _ := m.Get(operator, sb.ID); len(now.Endpoints) != 1 || now.Endpoints[0].Target != two {
		t.Errorf("on record after the switch: %+v", now.Endpoints)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	other := endpointTo(two, taken.Addr().(*net.TCPAddr).Port)
	other.Name = "other"
	if _, err := add(t, m, sb, other, false); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a port that is taken: %v", err)
	}
	if got := stateOf(t, m, sb); got != "model ready" {
		t.Error(got)
	}
	if _, err := m.RemoveEndpoint(t.Context(), operator, sb.ID, "model", nil); err != nil {
		t.Error(err)
	}
	if _, err := m.RemoveEndpoint(t.Context(), operator, sb.ID, "model", nil); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	if got := envOf(t, m, sb, api.ExecRequest{}); ask(port) != "nothing" || got != "https://elsewhere.example 1" {
		t.Errorf("after its end: %s, %s", ask(port), got)
	}
	if _, err := add(t, m, sb, endpointTo(one, port), false); err != nil || ask(port) != "200 one "+sb.ID {
		t.Error(err)
	}
	if _, err := m.Stop(t.Context(), operator, sb.ID, nil); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(t, m, sb); got != "model closed" || ask(port) != "nothing" {
		t.Errorf("after the stop: %s, %s", got, ask(port))
	}
	if err := m.Remove(t.Context(), operator, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
	var kinds []string
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Endpoint == "model" {
			kinds = append(kinds, strings.TrimPrefix(string(e.Kind), "endpoint."))
		}
	}
	if want := "draining closed ready draining closed"; !strings.Contains(strings.Join(kinds, " "), want) {
		t.Errorf("events: %v", kinds)
	}
}

// TestEndpointPortTaken: a create whose port is taken leaves nothing.
func TestEndpointPortTaken(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free := endpointTo("http://127.0.0.1:1", freeport.Free(t))
	free.Name = "free"
	spec := api.SandboxSpec{Endpoints: []api.Endpoint{free, endpointTo("http://127.0.0.1:1", taken.Addr().(*net.TCPAddr).Port)}}
	if _, err := m.Create(t.Context(), w.permit(spec), nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("%v", err)
	}
	w.nothingLeft(m)
}

// TestEndpointOutlivesTheDaemon: while no daemon serves it there is an answer that says
// so, and with the next it goes on.
func TestEndpointOutlivesTheDaemon(t *testing.T) {
	w := newFixture(t)
	m := w.newManager(false)
	if err := m.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	port := freeport.Free(t)
	reached := make(chan struct{}, 1)
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if len(reached) == 0 {
			reached <- struct{}{}
			<-r.Context().Done()
		}
	})
	sb := w.createWith(m, endpointTo(target, port))
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := ask(port); got != "502 bridge_lost" && got != "503 draining" {
			t.Errorf("under way: %s", got)
		}
	})
	eventually(t, "the target is asked", func() bool { return len(reached) == 1 })
	if err := m.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if got := ask(port); got != "503 bridge_absent" {
		t.Errorf("meanwhile: %s", got)
	}
	w.forgetEvents()
	m = w.manager(false)
	if got := ask(port); got != "200 " {
		t.Errorf("afterwards: %s", got)
	}
	if got := stateOf(t, m, sb); got != "model ready" {
		t.Error(got)
	}
	w.mu.Lock()
	told := slices.ContainsFunc(w.events, func(e api.Event) bool { return e.Kind == api.EventEndpointReady })
	w.mu.Unlock()
	if !told {
		t.Error("no event tells of it")
	}
	if err := m.Remove(t.Context(), operator, sb.ID); err != nil || ask(port) != "nothing" {
		t.Error(err)
	}
	w.nothingLeft(m)
}

// TestEndpointLinkBreaks: the connection to the sandbox is cut, and made again by
// the keeper of the endpoints, without a request.
func TestEndpointLinkBreaks(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	port := freeport.Free(t)
	sb := w.createWith(m, endpointTo(serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok") }), port))
	cut := sandbox.BreakConnections(m)
	for range 3 {
		cut(sb.ID)
		eventually(t, "it answers again", func() bool { return ask(port) == "200 ok" })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.ContainsFunc(w.events, func(e api.Event) bool { return e.Kind == api.EventEndpointBinding && e.Reason != "" }) {
		t.Error("no event tells that it was out of reach")
	}
}

// TestEndpointLinkBreaksUnderNetwork: who waits for an answer when the connection to the
// sandbox is cut gets one, and so does who watches.
func TestEndpointLinkBreaksUnderNetwork(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	port := freeport.Free(t)
	reached := make(chan struct{}, 1)
	sb := w.createWith(m, endpointTo(serve(t, func(_ http.ResponseWriter, r *http.Request) {
		reached <- struct{}{}
		<-r.Context().Done()
	}), port))
	answer := make(chan string, 1)
	go func() { answer <- ask(port) }()
	<-reached
	w.forgetEvents()
	begun := time.Now()
	sandbox.BreakConnections(m)(sb.ID)
	if got := <-answer; got != "502 bridge_lost" {
		t.Errorf("under way: %s", got)
	}
	t.Logf("answered %s after the cut", time.Since(begun))
	eventually(t, "an event and the condition tell of it", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.events, func(e api.Event) bool {
			return e.Endpoint == "model" && e.Kind == api.EventEndpointBinding && e.Reason != "" && e.Time.Sub(begun) < 10*time.Second
		})
	})
	eventually(t, "it is ready again", func() bool { return stateOf(t, m, sb) == "model ready" })
}

// served is a client that serves an endpoint.
type served struct{ addr string }

func (s served) Open(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", s.addr)
}

func (served) Close() error { return nil }

// TestEndpointServed: a client comes, goes and comes back, and the sandbox is there all
// the time.
func TestEndpointServed(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	port := freeport.Free(t)
	sb := w.createWith(m, endpointTo(api.TargetClient, port))
	addr := strings.TrimPrefix(serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "mine") }), "http://")
	for range 2 {
		if got := ask(port); got != "503 no_attachment" {
			t.Error(got)
		}
		detach, err := m.ServeEndpoint(operator, sb.ID, "model", served{addr})
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(port); got != "200 mine" {
			t.Error(got)
		}
		detach()
	}
	if got := stateOf(t, m, sb); got != "model degraded" {
		t.Error(got)
	}
	if _, err := m.ServeEndpoint(operator, sb.ID, "other", served{addr}); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
}
