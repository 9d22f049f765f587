//go:build linux

package sandbox_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Open ports are found by the next daemon with their tokens and times, also where the last thing that
// the earlier one wrote was the record of a sandbox with an idle time.
func TestOpenPortsOutliveTheDaemon(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "served")
			c.Close()
		}
	}()
	n := ln.Addr().(*net.TCPAddr).Port
	w := newFixture(t)
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "box", Limits: api.Limits{IdleMS: time.Hour.Milliseconds()}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	permit := func(spec api.PortSpec) policy.PortPermit {
		t.Helper()
		p, err := policy.DecidePort(spec, nil, operator, testRules)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	opened, err := m.Ports.OpenPort(operator, "box", permit(api.PortSpec{Port: n, TTLMS: time.Hour.Milliseconds()}))
	if err != nil {
		t.Fatal(err)
	}
	short, err := m.Ports.OpenPort(operator, "box", permit(api.PortSpec{Port: 1, TTLMS: 1}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Ports.OpenPort(operator, "box", policy.PortPermit{}); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("without a permit: %v", err)
	}
	for range 2 {
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		m = w.manager(false)
		grant, info := m.Ports.PortGrant(sb.ID, n)
		if grant == nil || info.ID != sb.ID || !grant.ExpiresAt.Equal(opened.Grant.ExpiresAt) {
			t.Fatalf("the next daemon has %+v of %s", grant, info.ID)
		}
		if g, _ := m.Ports.PortGrant(sb.ID, short.Grant.Port); g != nil {
			t.Errorf("a port whose time is over is open: %+v", g)
		}
		use, err := policy.DecidePortUse(grant, sb.Tenant, policy.PortUse{
			Tokens: []string{opened.Token}, Local: netip.MustParseAddr("127.0.0.1"), At: time.Now(),
		}, testRules)
		if err != nil {
			t.Fatal(err)
		}
		port, err := m.Ports.UsePort(sb.ID, use)
		if err != nil {
			t.Fatal(err)
		}
		c, err := port.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(c); err != nil || string(data) != "served" {
			t.Errorf("%q %v", data, err)
		}
		c.Close()
		c.Close() // does nothing
	}
	if _, err := m.Delete(t.Context(), operator, sb.ID); err != nil {
		t.Fatal(err)
	}
	if g, info := m.Ports.PortGrant(sb.ID, n); g != nil || info.ID != "" {
		t.Errorf("of a removed sandbox: %+v %s", g, info.ID)
	}
}
