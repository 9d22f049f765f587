//go:build linux

package sandbox_test

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/test/freeport"
)

// TestEndpointAuto: the daemon finds a port that nothing has, says which, and keeps it
// whatever becomes of the daemon and the target.
func TestEndpointAuto(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	one := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "one") })
	two := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "two") })
	// What the first choice would be is taken: by something inside, or by one that
	// names it, though it comes later in the request.
	if taken, err := net.Listen("tcp", "127.0.0.1:13132"); err == nil {
		defer taken.Close() // and otherwise something else on this machine has it
	}
	named := 13133
	for ; named < 13380; named++ {
		if ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(named)); err == nil {
			ln.Close()
			break
		}
	}
	fixed := endpointTo(one, named)
	fixed.Name = "fixed"
	auto := endpointTo(one, 0)
	auto.Listen = api.EndpointListenAuto
	other := auto
	other.Name = "other"
	sb := w.createWith(m, auto, other, fixed)
	var ports []int
	for _, e := range sb.Endpoints {
		ports = append(ports, e.Port())
		if got := ask(e.Port()); got != "200 one" {
			t.Errorf("%s at %s: %s", e.Name, e.Listen, got)
		}
	}
	if len(ports) != 3 || ports[0] != named || ports[1] <= named || ports[2] <= named || ports[1] == ports[2] {
		t.Fatalf("ports: %v", ports)
	}
	port := ports[1]
	if got := envOf(t, m, sb, api.ExecRequest{}); got != "http://127.0.0.1:"+strconv.Itoa(ports[2])+"/v1 cloche 1" && got != "http://127.0.0.1:"+strconv.Itoa(port)+"/v1 cloche 1" && !strings.Contains(got, strconv.Itoa(named)) {
		t.Errorf("environment: %s", got)
	}
	// The same again is the same, and another target keeps the port.
	st, err := add(t, m, sb, auto, false)
	if err != nil || st.Endpoint.Port() != port {
		t.Errorf("the same again: %+v, %v", st.Endpoint, err)
	}
	auto.Target = two
	if st, err = add(t, m, sb, auto, true); err != nil || st.Endpoint.Port() != port || ask(port) != "200 two" {
		t.Errorf("another target: %+v, %v", st.Endpoint, err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	m = w.manager(false)
	if got := ask(port); got != "200 two" {
		t.Errorf("with the next daemon: %s", got)
	}
	if err := m.Remove(t.Context(), operator, sb.ID); err != nil || ask(port) != "nothing" {
		t.Error(err)
	}
	w.nothingLeft(m)
}

// TestEndpointProbe: one that is to be proven is ready when its target has been reached,
// and programs that wait for it begin then.
func TestEndpointProbe(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	absent := freeport.Free(t)
	e := endpointTo("http://127.0.0.1:"+strconv.Itoa(absent), freeport.Free(t))
	e.Probe = true
	sb := w.createWith(m, e)
	eventually(t, "it is degraded", func() bool { return stateOf(t, m, sb) == "model degraded" })
	waiting := func(names ...string) (api.Result, error) {
		return m.Exec(t.Context(), operator, sb.ID, permitExec(t, sb, api.ExecRequest{Argv: []string{"true"}, WaitEndpoints: names}))
	}
	if _, err := waiting("none"); api.CodeOf(err) != api.CodeNotFound {
		t.Errorf("one that there is not: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waiting("model")
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(absent))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go srv.Serve(ln)
	defer srv.Close()
	if err := <-done; err != nil || stateOf(t, m, sb) != "model ready" {
		t.Errorf("%s, %v", stateOf(t, m, sb), err)
	}
	// A sandbox that ends leaves no caller waiting.
	srv.Close()
	if ask(e.Port()) != "502 target_unreachable" {
		t.Error("the target is still there")
	}
	go func() {
		_, err := waiting("model")
		done <- err
	}()
	if _, err := m.RemoveEndpoint(t.Context(), operator, sb.ID, "model", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-done; api.CodeOf(err) != api.CodeState && api.CodeOf(err) != api.CodeNotFound {
		t.Errorf("one that was taken away: %v", err)
	}
	if _, err := policy.DecideExec(api.ExecRequest{Argv: []string{"true"}, WaitEndpoints: []string{"No Name"}}, policy.SettingsOf(sb), operator, testRules); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("what names none: %v", err)
	}
}
