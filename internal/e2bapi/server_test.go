package e2bapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
	"github.com/cloche-dev/cloche/internal/image/build"
)

// sandboxes is a core whose sandboxes are records, and whose ports lead to one server. Each key is the
// name of its tenant.
type sandboxes struct {
	Core
	port string
	// resumed counts the calls of Resume.
	resumed atomic.Int32
	// started counts the calls of StartSandbox.
	started atomic.Int32
	// noSuspend: the engine cannot save memory.
	noSuspend bool
	// unpublished refuses ports at every address.
	unpublished atomic.Bool

	mu   sync.Mutex
	made int
	live map[string]*api.Sandbox
}

func (c *sandboxes) Authenticate(token string) (core.Caller, context.Context, error) {
	return core.Caller{Tenant: strings.TrimPrefix(token, keyPrefix), Key: token}, context.Background(), nil
}

func (c *sandboxes) CallerOfKey(id string) (core.Caller, error) {
	return core.Caller{Tenant: strings.TrimPrefix(id, keyPrefix), Key: id}, nil
}

func (c *sandboxes) Admit(context.Context, core.Caller, core.Verb) error { return nil }

// InspectImage has no image.
func (c *sandboxes) InspectImage(_ context.Context, _ core.Caller, ref string) (api.Image, error) {
	return api.Image{}, api.Errorf(api.CodeNotFound, "there is no image %s", ref)
}

func (c *sandboxes) Images(context.Context, core.Caller) (api.ImageList, error) {
	return api.ImageList{}, nil
}

// BuildPlan tells an output and fails if the first step of the client is RUN exit 1.
func (c *sandboxes) BuildPlan(ctx context.Context, _ core.Caller, r build.Request, _ api.BuildSandbox, tell func(api.BuildEvent)) (api.Image, error) {
	steps := r.Plan.Stages[0].Steps
	for i, step := range steps {
		tell(api.BuildEvent{Step: &api.BuildStep{Number: i + 1, Total: len(steps), Text: step.Text}})
		tell(api.BuildEvent{Stream: api.Stdout, Data: api.Bytes("no line end")})
		switch step.Text {
		case "RUN exit 1":
			return api.Image{}, api.Errorf(api.CodeState, "RUN exit 1: exit status 1")
		case "RUN wait":
			<-ctx.Done()
			return api.Image{}, ctx.Err()
		}
	}
	return api.Image{Name: r.Name}, nil
}

func (c *sandboxes) Create(_ context.Context, caller core.Caller, spec api.SandboxSpec, _ func(string)) (api.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	end := time.Now().Add(time.Duration(spec.Limits.LifetimeMS) * time.Millisecond)
	sb := &api.Sandbox{ID: api.NewID(idPrefix), Tenant: caller.Tenant, State: api.StateRunning, ExpiresAt: &end, Env: spec.Env}
	c.live[sb.ID] = sb
	return *sb, nil
}

func (c *sandboxes) change(caller core.Caller, ref string, f func(*api.Sandbox)) (api.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb := c.live[ref]
	if sb == nil || sb.Tenant != caller.Tenant && !caller.Operator {
		return api.Sandbox{}, api.Errorf(api.CodeNotFound, "there is no sandbox %s", ref)
	}
	f(sb)
	return *sb, nil
}

func (c *sandboxes) Get(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.change(caller, ref, func(*api.Sandbox) {})
}

func (c *sandboxes) Pause(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.change(caller, ref, func(sb *api.Sandbox) { sb.State = api.StatePaused })
}

// Fork creates sandboxes like the parent, and fails for one that is over the sixth.
func (c *sandboxes) Fork(ctx context.Context, caller core.Caller, ref string, req api.ForkRequest) (api.ForkResult, error) {
	var out api.ForkResult
	if _, err := c.Get(ctx, caller, ref); err != nil || c.noSuspend {
		return out, cmp.Or(err, error(api.Errorf(api.CodeUnsupported, "the engine cannot save the memory of a sandbox")))
	}
	for n := range req.Count {
		if n >= 6 {
			out.Failed = append(out.Failed, api.BatchFailure{Index: n, Error: api.Errorf(api.CodeTooMany, "too many sandboxes")})
			continue
		}
		sb, err := c.Create(ctx, caller, api.SandboxSpec{Limits: api.Limits{LifetimeMS: 1000}}, nil)
		if err != nil {
			return out, err
		}
		out.Succeeded = append(out.Succeeded, sb)
	}
	return out, nil
}

// Suspend changes the state, unless the engine cannot.
func (c *sandboxes) Suspend(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	if c.noSuspend {
		return api.Sandbox{}, api.Errorf(api.CodeUnsupported, "the engine cannot save the memory of a sandbox")
	}
	return c.change(caller, ref, func(sb *api.Sandbox) { sb.State = api.StateSuspended })
}

func (c *sandboxes) Resume(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	c.resumed.Add(1)
	return c.change(caller, ref, func(sb *api.Sandbox) { sb.State = api.StateRunning })
}

// Stop changes the state, and StartSandbox counts as a Resume does not.
func (c *sandboxes) Stop(_ context.Context, caller core.Caller, ref string, _ *time.Duration) (api.Sandbox, error) {
	return c.change(caller, ref, func(sb *api.Sandbox) { sb.State = api.StateStopped })
}

func (c *sandboxes) StartSandbox(_ context.Context, caller core.Caller, ref string, _ func(string)) (api.Sandbox, error) {
	c.started.Add(1)
	return c.change(caller, ref, func(sb *api.Sandbox) { sb.State = api.StateRunning })
}

func (c *sandboxes) Delete(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.change(caller, ref, func(*api.Sandbox) { delete(c.live, ref) })
}

func (c *sandboxes) Extend(_ context.Context, caller core.Caller, ref string, x api.Extension) (api.Sandbox, error) {
	return c.change(caller, ref, func(sb *api.Sandbox) {
		if end := time.Now().Add(time.Duration(x.LifetimeMS) * time.Millisecond); x.Exact || end.After(*sb.ExpiresAt) {
			sb.ExpiresAt = &end
		}
	})
}

func (c *sandboxes) AuthorizePublish(at netip.Addr) error {
	if c.unpublished.Load() {
		return api.Errorf(api.CodeDenied, "no rule publishes ports at %s", at)
	}
	return nil
}

func (c *sandboxes) DialPort(ctx context.Context, caller core.Caller, ref string, port int) (net.Conn, error) {
	if _, err := c.Get(ctx, caller, ref); err != nil {
		return nil, err
	}
	if port != 8000 {
		return nil, api.Errorf(api.CodeUnavailable, "nothing listens at port %d", port)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", c.port)
}

// dataPlane answers with what it was given.
type dataPlane struct{}

func (dataPlane) Cut(string) {}

func (dataPlane) ServeSandbox(w http.ResponseWriter, _ *http.Request, sb envd.Sandbox) {
	_, _ = io.WriteString(w, sb.Ref+" "+sb.Token)
}

// fixture is a server over such a core.
type fixture struct {
	*testing.T
	core *sandboxes
	dir  string
	url  string
	end  func()
	// sweep does once what the server does from time to time.
	sweep func()
}

// newFixture has a port of every sandbox answer with handler.
func newFixture(t *testing.T, handler http.HandlerFunc) *fixture {
	t.Helper()
	inside := httptest.NewServer(handler)
	t.Cleanup(inside.Close)
	f := &fixture{T: t, dir: t.TempDir(), core: &sandboxes{live: map[string]*api.Sandbox{}, port: inside.Listener.Addr().String()}}
	f.start()
	t.Cleanup(func() { f.end() })
	return f
}

func (f *fixture) start() {
	f.Helper()
	s, err := New(f.Context(), Options{Core: f.core, DataPlane: dataPlane{}, Dir: f.dir, Domain: "sbx.test:8443"})
	if err != nil {
		f.Fatal(err)
	}
	h := httptest.NewServer(s)
	f.url = h.URL
	f.sweep = func() {
		for _, kept := range s.records.all() {
			if err := s.sweepOne(kept); err != nil {
				f.Error(err)
			}
		}
	}
	f.end = sync.OnceFunc(func() {
		h.CloseClientConnections()
		h.Close()
		if err := s.Close(); err != nil {
			f.Error(err)
		}
	})
}

// do sends a request; headers are names and values in turn. The caller reads and closes the body.
func (f *fixture) do(method, path, body string, headers ...string) *http.Response {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		f.Fatal(err)
	}
	return res
}

// want sends a request as tenant acme, checks the status and decodes the answer.
func (f *fixture) want(status int, method, path, body string, into any, headers ...string) string {
	f.Helper()
	res := f.do(method, path, body, append([]string{"X-API-Key", keyPrefix + "acme"}, headers...)...)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		f.Fatal(err)
	}
	if res.StatusCode != status {
		f.Fatalf("%s %s: %d, want %d: %s", method, path, res.StatusCode, status, data)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			f.Fatalf("%s %s: %v: %s", method, path, err, data)
		}
	}
	return string(data)
}

func (f *fixture) create() sandboxAnswer {
	f.Helper()
	var sb sandboxAnswer
	f.want(http.StatusCreated, http.MethodPost, "/v2/sandboxes", `{"templateID":"base","metadata":{"a":"b"},"forceUpload":true}`, &sb)
	return sb
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// A sandbox, its token and its metadata outlive the server. No other tenant sees it.
func TestServerRestart(t *testing.T) {
	f := newFixture(t, hello)
	sb, other := f.create(), f.create()
	if sb.EnvdAccessToken == other.EnvdAccessToken || len(sb.EnvdAccessToken) < 20 {
		t.Errorf("tokens %q and %q", sb.EnvdAccessToken, other.EnvdAccessToken)
	}
	f.end()
	f.start()
	var is detail
	f.want(http.StatusOK, http.MethodGet, "/sandboxes/"+sb.SandboxID, "", &is)
	if is.EnvdAccessToken != sb.EnvdAccessToken || is.Metadata["a"] != "b" || is.State != stateRunning {
		t.Errorf("after a restart: %+v", is)
	}
	got := f.want(http.StatusOK, http.MethodPost, "/process.Process/List", "{}", nil, headerID, sb.SandboxID, headerPort, "49983")
	if got != idPrefix+sb.SandboxID+" "+sb.EnvdAccessToken {
		t.Errorf("the data plane has %q", got)
	}
	f.want(http.StatusNotFound, http.MethodDelete, "/sandboxes/"+sb.SandboxID, "", nil, "X-API-Key", keyPrefix+"evil")
	var list []listed
	f.want(http.StatusOK, http.MethodGet, "/v2/sandboxes", "", &list, "X-API-Key", keyPrefix+"evil")
	if len(list) != 0 {
		t.Errorf("another tenant sees %+v", list)
	}
}

// Ports of programs need a rule at an address that other machines reach. The data plane has tokens.
func TestUnpublishedPorts(t *testing.T) {
	f := newFixture(t, hello)
	sb := f.create()
	to := func(port string) []string { return []string{headerID, sb.SandboxID, headerPort, port} }
	if got := f.want(http.StatusOK, http.MethodGet, "/", "", nil, to("8000")...); got != "hello" {
		t.Errorf("a port: %q", got)
	}
	f.core.unpublished.Store(true)
	got := f.want(http.StatusForbidden, http.MethodGet, "/", "", nil, to("8000")...)
	if !strings.Contains(got, "no rule publishes ports at 127.0.0.1") {
		t.Errorf("refused with %q", got)
	}
	f.want(http.StatusForbidden, http.MethodGet, "/", "", nil, "Host", "8000-"+sb.SandboxID+".sbx.test:8443")
	f.want(http.StatusOK, http.MethodPost, "/process.Process/List", "{}", nil, to("49983")...)
}

// The end never moves to an earlier time by connect, and timeout sets it exactly.
func TestServerTimeouts(t *testing.T) {
	f := newFixture(t, hello)
	at := "/sandboxes/" + f.create().SandboxID
	end := func() time.Time {
		var is detail
		f.want(http.StatusOK, http.MethodGet, at, "", &is)
		return is.EndAt
	}
	began := end()
	f.want(http.StatusOK, http.MethodPost, "/v2"+at+"/connect", `{"timeout":1}`, nil)
	f.want(http.StatusOK, http.MethodPost, at+"/connect", `{"timeout":1}`, nil)
	f.want(http.StatusNoContent, http.MethodPost, at+"/refreshes", "", nil)
	if got := end(); !got.Equal(began) {
		t.Errorf("the end moved from %s to %s", began, got)
	}
	f.want(http.StatusOK, http.MethodPost, "/v2"+at+"/connect", `{"timeout":3600}`, nil)
	if got := end(); !got.After(began.Add(time.Minute)) {
		t.Errorf("connect did not extend: %s, and it was %s", got, began)
	}
	f.want(http.StatusNoContent, http.MethodPost, at+"/timeout", `{"timeout":60}`, nil)
	if got := end(); !got.Before(began) {
		t.Errorf("timeout did not shorten: %s, and it was %s", got, began)
	}
	f.want(http.StatusConflict, http.MethodPost, at+"/resume", "", nil)
	f.want(http.StatusBadRequest, http.MethodPost, at+"/connect", `{"timeout":0}`, nil)
	f.want(http.StatusNoContent, http.MethodPost, at+"/timeout", `{"timeout":0}`, nil)
	f.want(http.StatusNotFound, http.MethodGet, at, "", nil)
}

// A pause and a kill break the connections to ports off. What another API pauses or resumes is paused or
// running here too.
func TestServerPause(t *testing.T) {
	f := newFixture(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "x")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	id := f.create().SandboxID
	at, port := "/sandboxes/"+id, []string{headerID, id, headerPort, "8000"}
	cut := func(verb func()) {
		t.Helper()
		res := f.do(http.MethodGet, "/", "", port...)
		defer res.Body.Close()
		if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		verb()
		if _, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the stream ended by %v", err)
		}
		f.want(http.StatusBadGateway, http.MethodGet, "/", "", nil, port...)
	}
	cut(func() { f.want(http.StatusNoContent, http.MethodPost, at+"/pause", "", nil) })
	f.want(http.StatusConflict, http.MethodPost, at+"/pause", "{}", nil)
	f.want(http.StatusNotFound, http.MethodPost, at+"/timeout", `{"timeout":9}`, nil)

	if _, err := f.core.Resume(t.Context(), core.Caller{Tenant: "acme"}, idPrefix+id); err != nil {
		t.Fatal(err)
	}
	var is detail
	if f.want(http.StatusOK, http.MethodGet, at, "", &is); is.State != stateRunning || is.EndAt.Before(time.Now()) {
		t.Errorf("after another API resumed it: %s until %s", is.State, is.EndAt)
	}
	f.want(http.StatusNoContent, http.MethodPost, at+"/pause", "", nil)
	f.want(http.StatusCreated, http.MethodPost, "/v2"+at+"/connect", "", nil)
	cut(func() { f.want(http.StatusNoContent, http.MethodDelete, at, "", nil) })
	f.want(http.StatusNotFound, http.MethodDelete, at, "", nil)
}

// A port is reached by headers or by the name of the host, whose domain has a port.
func TestServerPorts(t *testing.T) {
	f := newFixture(t, hello)
	sb := f.create()
	if sb.Domain == nil || *sb.Domain != "sbx.test:8443" {
		t.Errorf("domain %v", sb.Domain)
	}
	if got := f.want(http.StatusOK, http.MethodGet, "/", "", nil, "Host", "8000-"+sb.SandboxID+".sbx.test:8443", "Origin", "https://a.example"); got != "hello" {
		t.Errorf("by name: %q", got)
	}
	f.want(http.StatusOK, http.MethodGet, "/sandboxes/"+sb.SandboxID, "", nil, "Host", "api.sbx.test:8443")
	var closed dataFailure
	f.want(http.StatusBadGateway, http.MethodGet, "/", "", &closed, headerID, sb.SandboxID, headerPort, "8001")
	if want := (dataFailure{sb.SandboxID, "The sandbox is running but port is not open", 8001, http.StatusBadGateway}); closed != want {
		t.Errorf("a closed port: %+v", closed)
	}
	f.want(http.StatusForbidden, http.MethodGet, "/", "", nil, headerID, sb.SandboxID, headerPort, "8000", "Cookie", "a=b")
}
