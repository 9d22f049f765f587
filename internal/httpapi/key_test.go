package httpapi_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// newKey makes a key as the operator.
func (h *fixture) newKey(spec api.KeySpec) api.NewKey {
	h.t.Helper()
	k, err := h.client().CreateKey(h.t.Context(), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	return k
}

func TestAKeyIsItsTenant(t *testing.T) {
	h := open(t)
	red, blue := h.newKey(api.KeySpec{Tenant: "red"}), h.newKey(api.KeySpec{Tenant: "blue"})
	mine := h.tcpClient(red.Secret)
	sb, err := mine.Create(t.Context(), api.SandboxSpec{Name: "box"})
	if err != nil || sb.Tenant != "red" {
		t.Fatalf("made %+v, %v", sb, err)
	}
	for _, foreign := range []string{blue.Secret, token} {
		if _, err := h.tcpClient(foreign).Get(t.Context(), sb.ID); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("a foreign id: %v", err)
		}
	}
	// The same name is free for every other tenant.
	if other, err := h.tcpClient(blue.Secret).Create(t.Context(), api.SandboxSpec{Name: "box"}); err != nil || other.ID == sb.ID {
		t.Errorf("%+v, %v", other, err)
	}
	for _, wrong := range []string{red.Secret + "x", "clk_", red.Secret[:len(red.Secret)-1], "x"} {
		if _, err := h.tcpClient(wrong).Status(t.Context()); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("token %q: %v", wrong, err)
		}
	}
	// On the socket the peer is the caller, whatever it shows.
	resp, data := h.do("GET", "/v1/sandboxes", http.Header{"Authorization": {"Bearer " + blue.Secret}}, nil)
	if resp.StatusCode != 200 || strings.Contains(string(data), "blue") {
		t.Errorf("HTTP %d: %s", resp.StatusCode, data)
	}
	if strings.Contains(h.log.String(), red.Secret) || strings.Contains(h.log.String(), blue.Secret) {
		t.Error("a key is in the log")
	}
}

// TestEveryRouteHasAVerb: each request is admitted for one verb, so that a key that
// is for none of them gets nothing at all, whatever it asks.
func TestEveryRouteHasAVerb(t *testing.T) {
	h := open(t)
	k := h.newKey(api.KeySpec{Tenant: "red", Verbs: []string{"nothing"}})
	for route, verb := range h.server.Verbs() {
		if !slices.Contains(core.Verbs(), verb) {
			t.Errorf("%s is for %q, which is no verb", route, verb)
		}
		method, path, _ := strings.Cut(route, " ")
		url := strings.NewReplacer("{ref}", "box", "{id}", "one", "{port}", "7", "{name}", "data", "{key}", "key-1").Replace(path)
		resp, data := h.send("tcp", h.tcp, "localhost", method, url, http.Header{"Authorization": {"Bearer " + k.Secret}}, nil)
		if verb == "version" {
			if resp.StatusCode != 200 {
				t.Errorf("%s: HTTP %d", route, resp.StatusCode)
			}
			continue
		}
		if e := h.errorOf(resp, data); resp.StatusCode != 403 || e.Rule != "key:"+k.Key.ID {
			t.Errorf("%s: HTTP %d, %+v", route, resp.StatusCode, e)
		}
	}
}

func TestAKeyIsForItsVerbs(t *testing.T) {
	h := open(t)
	c := h.tcpClient(h.newKey(api.KeySpec{Tenant: "red", Verbs: []string{"list", "run"}}).Secret)
	if _, err := c.List(t.Context(), api.ListOptions{}); err != nil {
		t.Error(err)
	}
	res, err := c.Run(t.Context(), api.RunRequest{Exec: api.ExecRequest{Argv: []string{"echo", "x"}}})
	if err != nil || h.core.Live() != 0 {
		t.Errorf("%+v, %v; %d left", res, err, h.core.Live())
	}
	_, err = c.Create(t.Context(), api.SandboxSpec{})
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeDenied || e.Rule != "key:key-1" || e.Hint == "" {
		t.Errorf("%+v", err)
	}
}

func TestTooManyRequests(t *testing.T) {
	h := open(t)
	k := h.newKey(api.KeySpec{Tenant: "hasty"})
	resp, data := h.send("tcp", h.tcp, "localhost", "GET", "/v1/status", http.Header{"Authorization": {"Bearer " + k.Secret}}, nil)
	e := h.errorOf(resp, data)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "2" || e.Code != api.CodeTooMany || !e.Retryable {
		t.Errorf("HTTP %d, Retry-After %q, %+v", resp.StatusCode, resp.Header.Get("Retry-After"), e)
	}
	if _, err := h.tcpClient(k.Secret).Status(t.Context()); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("client: %v", err)
	}
}

// TestRevokeEndsWhatIsUnderWay: a request, a stream and what is followed end with
// the key that they came by.
func TestRevokeEndsWhatIsUnderWay(t *testing.T) {
	h := open(t)
	k := h.newKey(api.KeySpec{Tenant: "red"})
	c := h.tcpClient(k.Secret)
	if _, err := c.Create(t.Context(), api.SandboxSpec{Name: "box"}); err != nil {
		t.Fatal(err)
	}
	run := make(chan error, 1)
	go func() {
		_, err := c.Run(t.Context(), api.RunRequest{Exec: api.ExecRequest{Argv: []string{"sleep"}}})
		run <- err
	}()
	h.await(func() bool { return h.core.Running() == 1 })
	stream, err := c.ExecStream(t.Context(), "box", api.ExecRequest{Argv: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	h.await(func() bool { return h.core.Running() == 2 })
	if _, err := h.client().RevokeKey(t.Context(), k.Key.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-run; !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("the run that was under way: %v", err)
	}
	for err = nil; err == nil; {
		_, err = stream.Recv()
	}
	if !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("the stream that was open: %v", err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("after the end: %v", err)
	}
}

func TestTheClientNeverSendsAKeyAsAnId(t *testing.T) {
	h := open(t)
	k := h.newKey(api.KeySpec{Tenant: "red"})
	long := "clk_0123456789abcdef_" + strings.Repeat("0a", 32)
	if _, err := h.client().RevokeKey(t.Context(), long); !errors.Is(err, api.ErrInvalid) || strings.Contains(err.Error(), "0a0a") {
		t.Errorf("%v", err)
	}
	h.do("DELETE", "/v1/keys/"+long, nil, nil)
	if strings.Contains(h.log.String(), "0a0a") {
		t.Error("what was sent in place of an id is in the log")
	}
	l, err := h.client().Keys(t.Context())
	if err != nil || len(l.Keys) != 1 || l.Keys[0].ID != k.Key.ID {
		t.Errorf("%+v, %v", l, err)
	}
}
