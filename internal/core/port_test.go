//go:build linux

package core_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:1")

// use asks for a port as the listener does.
func (h *fixture) use(t *testing.T, sandbox string, port int, tokens ...string) (*core.PortUse, error) {
	t.Helper()
	return h.UsePort(t.Context(), core.PortRequest{Sandbox: sandbox, Port: port, Tokens: tokens, Local: loopback, Remote: loopback})
}

func (h *fixture) openPort(t *testing.T, caller core.Caller, ref string, spec api.PortSpec) api.OpenedPort {
	t.Helper()
	o, err := h.OpenPort(t.Context(), caller, ref, spec)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// The sandboxes of the fixture are programs of this machine, so a server on it is in them.
func serverOn(t *testing.T, address string) int {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip("this machine has no address such as " + address)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "served")
			c.Close()
		}
	}()
	return ln.Addr().(*net.TCPAddr).Port
}

func TestOpenPort(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		h := newFixture(t)
		sb, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := serverOn(t, address)
		o := h.openPort(t, operator, "box", api.PortSpec{Port: n})
		if len(o.Token) < 26 || o.URL != fmt.Sprintf("http://%d-%s.localhost/", n, sb.ID) || o.AccessURL != o.URL+"?cloche_token="+o.Token || o.ExpiresAt != nil {
			t.Errorf("opened %+v", o)
		}
		use, err := h.use(t, sb.ID, n, "x", o.Token)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := use.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(conn); err != nil || string(data) != "served" {
			t.Errorf("%s: %q %v", address, data, err)
		}
		conn.Close()
		list, err := h.OpenPorts(t.Context(), operator, "box")
		if err != nil || len(list.Ports) != 1 || list.Ports[0].Port != n || strings.Contains(fmt.Sprint(list), o.Token) {
			t.Errorf("%+v %v", list, err)
		}
		again := h.openPort(t, operator, "box", api.PortSpec{Port: n})
		if _, err := h.use(t, sb.ID, n, o.Token); api.CodeOf(err) != api.CodeNotFound || use.Live.Err() == nil {
			t.Errorf("the earlier token: %v", err)
		}
		if use, err = h.use(t, sb.ID, n, again.Token); err != nil {
			t.Fatal(err)
		}
		if err := h.ClosePort(t.Context(), operator, "box", n); err != nil || use.Live.Err() == nil {
			t.Errorf("close: %v", err)
		}
		if err := h.ClosePort(t.Context(), operator, "box", n); api.CodeOf(err) != api.CodeNotFound {
			t.Errorf("close again: %v", err)
		}
		if lines := h.records(t); !holds(lines, "open_port ok", fmt.Sprint(n)) || !holds(lines, "close_port ok") || !holds(lines, "list_ports ok") || strings.Contains(fmt.Sprint(lines), o.Token) {
			t.Errorf("audit %q", lines)
		}
	}
}

func TestPortOfASandboxThatPausesAndEnds(t *testing.T) {
	h := newFixture(t)
	sb, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	o := h.openPort(t, operator, "box", api.PortSpec{Port: 1})
	use, err := h.use(t, sb.ID, 1, o.Token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := use.Dial(t.Context()); api.CodeOf(err) != api.CodeUnavailable {
		t.Errorf("no program listens: %v", err)
	}
	if _, err := h.Pause(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	if _, err := use.Dial(t.Context()); errorOf(t, err).Code != api.CodeState || !errorOf(t, err).Retryable {
		t.Errorf("paused: %v", err)
	}
	if _, err := h.Stop(t.Context(), operator, "box", new(time.Duration)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.use(t, sb.ID, 1, o.Token); api.CodeOf(err) != api.CodeNotFound || use.Live.Err() == nil {
		t.Errorf("stopped: %v", err)
	}
	if _, err := h.OpenPort(t.Context(), operator, "box", api.PortSpec{Port: 1}); api.CodeOf(err) != api.CodeState {
		t.Errorf("opened in a stopped sandbox: %v", err)
	}
}

func TestRulesOfPorts(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	sb, err := h.Create(t.Context(), red, api.SandboxSpec{Name: "box"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	setRules := func(p rules.PortRule) {
		t.Helper()
		r := h.rules
		r.Ports = p
		if err := h.UseRules(t.Context(), r, fmt.Sprint(p)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(spec api.PortSpec, rule string) {
		t.Helper()
		if _, err := h.OpenPort(t.Context(), red, "box", spec); err == nil || errorOf(t, err).Rule != rule {
			t.Errorf("%+v: %v, want a refusal by %s", spec, err, rule)
		}
	}
	refused(api.PortSpec{Port: 80, Public: true}, "ports.public")
	refused(api.PortSpec{Port: 0}, "")
	refused(api.PortSpec{Port: 65536}, "")
	refused(api.PortSpec{Port: 80, TTLMS: -1}, "")
	setRules(rules.PortRule{Public: []string{"red"}, MaxTTL: rules.Duration(time.Hour)})
	refused(api.PortSpec{Port: 80, TTLMS: 2 * time.Hour.Milliseconds()}, "ports.max_ttl")
	o := h.openPort(t, red, "box", api.PortSpec{Port: 80, Public: true})
	if o.Token != "" || o.AccessURL != o.URL || o.ExpiresAt == nil || time.Until(*o.ExpiresAt) > time.Hour {
		t.Errorf("public %+v", o)
	}
	if _, err := h.use(t, sb.ID, 80); err != nil {
		t.Error(err)
	}
	remote := core.PortRequest{Sandbox: sb.ID, Port: 80, Local: netip.MustParseAddrPort("192.0.2.1:80"), Remote: loopback}
	if _, err := h.UsePort(t.Context(), remote); err == nil {
		t.Error("a request from beyond this machine needs a rule")
	}
	if err := h.AuthorizePublish(remote.Local.Addr()); err == nil || errorOf(t, err).Rule != "ports.publish" {
		t.Errorf("publish: %v", err)
	}
	setRules(rules.PortRule{Publish: true, Public: []string{"*"}})
	if _, err := h.UsePort(t.Context(), remote); err != nil {
		t.Error(err)
	}
	setRules(rules.PortRule{Publish: true})
	if _, err := h.use(t, sb.ID, 80); err == nil {
		t.Error("public, and no rule allows it any more")
	}
	off := false
	private := h.openPort(t, red, "box", api.PortSpec{Port: 81})
	setRules(rules.PortRule{Enabled: &off})
	refused(api.PortSpec{Port: 82}, "ports.enabled")
	if _, err := h.use(t, sb.ID, 81, private.Token); err == nil {
		t.Error("used while the rules switch ports off")
	}
	setRules(rules.PortRule{})
	short := h.openPort(t, red, "box", api.PortSpec{Port: 82, TTLMS: 1})
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err = h.use(t, sb.ID, 82, short.Token); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("used after its time")
	}
	if list, err := h.OpenPorts(t.Context(), red, "box"); err != nil || len(list.Ports) != 2 {
		t.Errorf("listed %+v %v", list, err)
	}
	for n := 100; ; n++ {
		if _, err := h.OpenPort(t.Context(), red, "box", api.PortSpec{Port: n}); err != nil {
			if errorOf(t, err).Code != api.CodeTooLarge || n != 100+api.MaxOpenPorts-2 {
				t.Errorf("port %d: %v", n, err)
			}
			break
		}
	}
}

func TestTokenOfAnotherSandboxIsRefusedAndRecorded(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	one, err := h.Create(t.Context(), red, api.SandboxSpec{Name: "one"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	two, err := h.Create(t.Context(), blue, api.SandboxSpec{Name: "two"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mine := h.openPort(t, red, "one", api.PortSpec{Port: 80})
	h.openPort(t, blue, "two", api.PortSpec{Port: 80})
	h.openPort(t, red, "one", api.PortSpec{Port: 81})
	_, unknown := h.use(t, "sb-none", 80, mine.Token)
	for name, do := range map[string]func() error{
		"another sandbox": func() error { _, err := h.use(t, two.ID, 80, mine.Token); return err },
		"another port":    func() error { _, err := h.use(t, one.ID, 81, mine.Token); return err },
		"closed port":     func() error { _, err := h.use(t, one.ID, 82, mine.Token); return err },
		"no token":        func() error { _, err := h.use(t, one.ID, 80); return err },
		"a name":          func() error { _, err := h.use(t, "one", 80, mine.Token); return err },
	} {
		if err := do(); err == nil || err.Error() != unknown.Error() {
			t.Errorf("%s: %v, want %v", name, err, unknown)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				_, _ = h.use(t, two.ID, 80, "guess")
			}
		})
	}
	wg.Wait()
	time.Sleep(1100 * time.Millisecond) // the next refusal has a record, and tells of these
	_, _ = h.use(t, two.ID, 80, "guess")
	lines := h.records(t)
	if n := strings.Count(fmt.Sprint(lines), "use_port refused"); n < 3 || n > 30 {
		t.Errorf("%d records of a flood", n)
	}
	if !holds(lines, "use_port refused", "not_told:") || !holds(lines, "use_port refused", "reason:the request has another token", "port:80") || strings.Contains(fmt.Sprint(lines), "guess") {
		t.Errorf("audit %q", lines)
	}
}
