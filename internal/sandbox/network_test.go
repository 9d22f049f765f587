//go:build linux

package sandbox_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/fdstore"
	"github.com/cloche-dev/cloche/internal/egress/netstack"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// ping sends an echo request to the resolver's address over a sandbox's end of its
// link, and reports whether an answer comes.
func (w *fixture) ping(sb api.Sandbox) bool {
	w.t.Helper()
	guest, err := w.machine.Link(sandbox.EngineStateForTest(w.t, filepath.Join(w.dir, "owner", "sandboxes", sb.ID)))
	if err != nil {
		w.t.Fatal(err)
	}
	defer guest.Close()
	plan := netstack.DefaultPlan()
	icmp := []byte{8, 0, 0, 0, 0, 1, 0, 1}
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(8<<8+1+1))
	ip := []byte{0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 1, 0, 0}
	ip = append(append(ip, plan.Guest.Addr().AsSlice()...), plan.Gateway.AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	if _, err := guest.Write(slices.Concat(plan.GatewayMAC, plan.GuestMAC, []byte{8, 0}, ip, icmp)); err != nil {
		return false // the link has no other end
	}
	if err := guest.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		w.t.Fatal(err)
	}
	b := make([]byte, 2048)
	n, err := guest.Read(b)
	return err == nil && n >= 14+20+8 && b[14+9] == 1 && b[14+20] == 0
}

// killHolder kills the one holder that this test has started.
func killHolder(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, name := range all {
		cmd, _ := os.ReadFile(name)
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		var pid, parent int
		var comm, state string
		if err != nil || string(cmd) != fdstore.Argv0+"\x00" {
			continue
		}
		if _, err := fmt.Sscan(string(stat), &pid, &comm, &state, &parent); err != nil || parent != os.Getpid() {
			continue
		}
		killed++
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}
	if killed != 1 {
		t.Fatalf("%d holders were killed", killed)
	}
}

// restart ends a daemon and begins the next.
func (w *fixture) restart(m *sandbox.Manager) *sandbox.Manager {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	if err := errors.Join(m.Close(ctx), w.networks.Close()); err != nil {
		w.t.Fatal(err)
	}
	return w.manager(false)
}

func TestNetworkOverRestarts(t *testing.T) {
	w := newFixture(t)
	w.held = true
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Egress: &api.Egress{Allow: []string{"a.example"}}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !w.ping(sb) {
		t.Fatal("nobody serves the link")
	}
	m = w.restart(m)
	if got, _ := m.Get(operator, "x"); got.Degraded != "" || got.State != api.StateRunning || !w.ping(sb) {
		t.Fatalf("after a restart: %+v", got)
	}

	// Rules that change are those of the next daemon too; what fails changes nothing.
	wanted := errors.New("wanted")
	for _, fail := range []error{nil, wanted} {
		_, err := m.SetEgress(t.Context(), operator, policy.VerbChangeEgress, "x", func(g policy.EgressGrant) (policy.EgressGrant, error) {
			if fail != nil {
				g = policy.EgressGrant{}
			}
			g.Rules = append(slices.Clone(g.Rules), rule.Rule{ID: "b.example", Host: "b.example"})
			return g, fail
		})
		if !errors.Is(err, fail) {
			t.Errorf("set egress: %v", err)
		}
	}
	m = w.restart(m)
	grant, _, err := m.Egress(operator, policy.VerbEgress, "x")
	if err != nil || len(grant.Rules) != 2 || grant.Rules[1].Host != "b.example" {
		t.Errorf("rules after a restart: %+v, %v", grant.Rules, err)
	}
	if !w.ping(sb) {
		t.Error("nobody serves the link")
	}

	// When what held the links dies with the daemon, the network is closed for good.
	ctx := context.WithoutCancel(t.Context())
	if err := errors.Join(m.Close(ctx), w.networks.Close()); err != nil {
		t.Fatal(err)
	}
	killHolder(t)
	w.forgetEvents()
	m = w.manager(false)
	got, err := m.Get(operator, "x")
	if err != nil || !strings.Contains(got.Degraded, "network is closed") || got.State != api.StateRunning || got.Reason != "" {
		t.Errorf("without its link: %+v, %v", got, err)
	}
	if kinds := w.kinds(); !slices.Equal(kinds, []string{"degraded", "adopted"}) {
		t.Errorf("events %v", kinds)
	}
	if _, err := m.SetEgress(t.Context(), operator, policy.VerbChangeEgress, "x", func(g policy.EgressGrant) (policy.EgressGrant, error) { return g, nil }); api.CodeOf(err) != api.CodeState {
		t.Errorf("set egress of what has no network any more: %v", err)
	}
	m = w.restart(m)
	if got, _ := m.Get(operator, "x"); got.Degraded == "" {
		t.Error("it is whole again")
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

// TestNetworkEndsWithItsSandbox: the link goes with the sandbox and its log stays as
// long as its record; one without a network has none of it.
func TestNetworkEndsWithItsSandbox(t *testing.T) {
	noGoroutinesLeft(t)
	w := newFixture(t)
	m := w.manager(false)
	none := w.create(m, "none")
	if _, err := w.machine.Link(sandbox.EngineStateForTest(t, filepath.Join(w.dir, "owner", "sandboxes", none.ID))); err == nil {
		t.Error("a sandbox without a network has a link")
	}
	if _, err := m.SetEgress(t.Context(), operator, policy.VerbChangeEgress, "none", nil); api.CodeOf(err) != api.CodeState {
		t.Errorf("set egress of one without a network: %v", err)
	}
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Egress: &api.Egress{}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	guest, err := w.machine.Link(sandbox.EngineStateForTest(t, filepath.Join(w.dir, "owner", "sandboxes", sb.ID)))
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	if !w.ping(sb) {
		t.Error("nobody serves the link")
	}
	grace := time.Duration(0)
	if _, err := m.Stop(t.Context(), operator, "x", &grace); err != nil {
		t.Fatal(err)
	}
	if err := guest.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := guest.Read(make([]byte, 100)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the link is there: %d, %v", n, err)
	}
	if err := m.EgressLog(t.Context(), operator, policy.VerbEgressLog, "x", api.EgressLogOptions{Follow: true}, func(api.EgressRecord) error { return nil }); err != nil {
		t.Errorf("the log of what has ended: %v", err)
	}
	for _, name := range []string{"x", "none"} {
		if err := m.Remove(t.Context(), operator, name); err != nil {
			t.Fatal(err)
		}
	}
	w.nothingLeft(m)
}
