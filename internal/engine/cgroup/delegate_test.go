//go:build linux

package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// messageBus starts a real dbus-daemon on a socket of the test's own.
func messageBus(t *testing.T) bus {
	t.Helper()
	exe, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("needs dbus-daemon: the conversation is held on a real bus")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "bus.conf")
	err = os.WriteFile(config, fmt.Appendf(nil, `<busconfig>
<type>session</type><listen>unix:path=%s/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>`, dir), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "--nofork", "--print-address", "--config-file="+config)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read address of the bus: %v", err)
	}
	return bus{name: "the test's bus", address: strings.TrimSpace(address)}
}

// systemd plays the manager: no systemd runs where these tests do. It does what
// the real one does for a scope, as far as the engine can see: it makes the
// cgroup, moves the process, and signals the end of the job.
type systemd struct {
	conn   *dbus.Conn
	mount  string
	result string      // of the job; empty is no signal
	refuse *dbus.Error // the answer
	asked  chan request
}

type request struct {
	name, mode string
	properties map[string]any
}

type property struct {
	Name  string
	Value dbus.Variant
}

type auxiliary struct {
	Name       string
	Properties []property
}

func (s *systemd) StartTransientUnit(name, mode string, properties []property, _ []auxiliary) (dbus.ObjectPath, *dbus.Error) {
	r := request{name, mode, map[string]any{}}
	for _, p := range properties {
		r.properties[p.Name] = p.Value.Value()
	}
	s.asked <- r
	if s.refuse != nil {
		return "", s.refuse
	}
	if s.mount != "" {
		if err := s.move(r); err != nil {
			return "", dbus.MakeFailedError(err)
		}
	}
	const job = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	if s.result != "" {
		// Another's job ends first; and this one's before its caller knows its name.
		for path, result := range map[dbus.ObjectPath]string{"/org/freedesktop/systemd1/job/6": "failed", job: s.result} {
			if err := s.conn.Emit(systemdPath, systemdManager+".JobRemoved", uint32(7), path, name, result); err != nil {
				return "", dbus.MakeFailedError(err)
			}
		}
	}
	return job, nil
}

func (s *systemd) move(r request) error {
	slice, _ := r.properties["Slice"].(string)
	pids, _ := r.properties["PIDs"].([]uint32)
	dir := filepath.Join(s.mount, slice, r.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, pid := range pids {
		if err := pidfd.Write(dir, "cgroup.procs", strconv.Itoa(int(pid))); err != nil {
			return err
		}
	}
	return nil
}

// serve puts the manager on the bus.
func (s *systemd) serve(t *testing.T, b bus) {
	t.Helper()
	conn, err := dbus.Connect(b.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s.conn, s.asked = conn, make(chan request, 8)
	if err := conn.Export(s, systemdPath, systemdManager); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName(systemdName, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("own the name of systemd: %v, %v", reply, err)
	}
}

// sleeper is a process that is not the test's own.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// TestScopeOutlivesDaemon walks a scope's life: asked for by a daemon, which is
// then in a group below it, used for a sandbox, left by the daemon's death, found
// by the next daemon.
func TestScopeOutlivesDaemon(t *testing.T) {
	mount := unifiedMount(t)
	b := messageBus(t)
	manager := &systemd{mount: mount.Path, result: "done"}
	manager.serve(t, b)
	daemon := sleeper(t)
	slice := api.NewID("cloche-test-") + ".slice"
	d := delegation{
		pid: daemon.Process.Pid, layout: testLayout("cloche-test"), slice: slice, timeout: 10 * time.Second,
		buses: []bus{{"an absent bus", "unix:path=" + t.TempDir() + "/none"}, b},
	}
	dir, name, err := d.scope(t.Context(), mount)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{filepath.Join(dir, "cloche-test"), filepath.Join(dir, daemonGroup), dir, filepath.Dir(dir)} {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left: %v", err)
			}
		}
	})
	asked := <-manager.asked
	if asked.name != name || asked.mode != "fail" || asked.properties["Delegate"] != true || asked.properties["Slice"] != slice {
		t.Errorf("systemd was asked for %+v", asked)
	}
	if !strings.HasPrefix(name, "cloche-test-") || !strings.HasSuffix(name, ".scope") {
		t.Errorf("the scope is called %s", name)
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", daemon.Process.Pid))
	if want := "0::/" + slice + "/" + name + "/" + daemonGroup + "\n"; err != nil || !strings.Contains(string(own), want) {
		t.Errorf("the daemon is in %s, %v", own, err)
	}

	m := In(testLayout("cloche-test"), Hierarchy{Mount: mount, Root: filepath.Join(dir, "cloche-test")})
	g, err := m.Make("owner", "id")
	if err != nil {
		t.Fatal(err)
	}
	sandbox := sleeper(t)
	if err := pidfd.Write(g.Parts[0].Dir, "cgroup.procs", strconv.Itoa(sandbox.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()

	next := Maker{layout: testLayout("cloche-test"), mounts: []Mount{mount}, scopes: filepath.Join(filepath.Dir(dir), "cloche-test-*.scope")}
	found := next.Orphans("owner")
	if len(found) != 1 || len(found["id"]) != 1 {
		t.Fatalf("the next daemon finds %+v", found)
	}
	if others := next.Orphans("another"); len(others) != 0 {
		t.Errorf("another owner finds %+v", others)
	}
	if err := next.Open(found["id"]).Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sandbox.Wait(); err == nil {
		t.Error("the sandbox's process was not killed")
	}
}

// TestScopeRefused: every way in which systemd may fail is told and takes no
// longer than it may.
func TestScopeRefused(t *testing.T) {
	hung, err := net.Listen("unix", filepath.Join(t.TempDir(), "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	tests := []struct {
		name    string
		bus     *bus // nil is a real one
		manager *systemd
		timeout time.Duration
		want    string
	}{
		{"no socket", &bus{"b", "unix:path=/nonexistent/bus"}, nil, 10 * time.Second, "b: no such file or directory"},
		{"no address", &bus{"b", "tcp:host=localhost,port=1"}, nil, 10 * time.Second, "no Unix socket"},
		{"silence", &bus{"b", "unix:path=" + hung.Addr().String()}, nil, 50 * time.Millisecond, "no answer in time"},
		{"no systemd", nil, nil, 10 * time.Second, "ServiceUnknown"},
		{"refused", nil, &systemd{refuse: dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"not you\x1b"})}, 10 * time.Second, "AccessDenied: not you "},
		{"job failed", nil, &systemd{result: "failed"}, 10 * time.Second, `ended as "failed"`},
		{"job never ends", nil, &systemd{}, 500 * time.Millisecond, "no answer in time"},
		{"not moved", nil, &systemd{result: "done"}, 10 * time.Second, "not in it"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := test.bus
			if b == nil {
				real := messageBus(t)
				b = &real
			}
			if test.manager != nil {
				test.manager.serve(t, *b)
			}
			d := delegation{pid: os.Getpid(), layout: testLayout("cloche-test"), slice: "app.slice", timeout: test.timeout, buses: []bus{*b}}
			mounts := []Mount{{Path: hierarchyDir(t, "cpu memory\n"), Version: 2}}
			m := d.maker(mounts, None("nothing was delegated"))
			if len(m.All) != 0 || !strings.Contains(m.Reason, test.want) {
				t.Errorf("the reason is %q, want %q", m.Reason, test.want)
			}
			if !strings.HasPrefix(m.Reason, "nothing was delegated; systemd was asked") || !strings.Contains(m.Reason, "systemctl --user status") {
				t.Errorf("the reason does not tell what was tried and how to mend it: %q", m.Reason)
			}
			if e := m.Enforcement()["memory_bytes"]; e.OK || e.Reason != m.Reason {
				t.Errorf("memory: %+v", e)
			}
		})
	}
}

// TestNothingToAskFor: systemd is left alone where it has no controller to give.
func TestNothingToAskFor(t *testing.T) {
	b := messageBus(t)
	manager := &systemd{result: "done"}
	manager.serve(t, b)
	d := delegation{pid: os.Getpid(), layout: testLayout("cloche-test"), timeout: 10 * time.Second, buses: []bus{b}}
	m := d.maker([]Mount{{Path: hierarchyDir(t, "\n"), Version: 2}}, None("none"))
	if len(m.All) != 0 || !strings.Contains(m.Reason, "neither the memory nor the cpu controller") {
		t.Errorf("the reason is %q", m.Reason)
	}
	if len(manager.asked) != 0 {
		t.Error("systemd was asked")
	}
}

// TestDelegatedControllers: what was handed to the user is used, and what is
// missing is named with its fix.
func TestDelegatedControllers(t *testing.T) {
	d := delegation{layout: testLayout("cloche")}
	dir := hierarchyDir(t, "memory pids\n")
	m := d.below(dir, Mount{Path: filepath.Dir(dir), Version: 2})
	e := m.Enforcement()
	if !e["memory_bytes"].OK || e["cpus"].OK {
		t.Errorf("enforces %+v", e)
	}
	for _, want := range []string{"not delegated: cpu;", "Delegate=cpu memory pids", "user@.service.d/delegate.conf"} {
		if !strings.Contains(e["cpus"].Reason, want) || !strings.Contains(m.Describe(), want) {
			t.Errorf("%q is not in the reason %q", want, e["cpus"].Reason)
		}
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); string(got) != "+memory" {
		t.Errorf("handed down: %q", got)
	}
	if m.All[0].Root != filepath.Join(dir, "cloche") {
		t.Errorf("groups are made in %s", m.All[0].Root)
	}
}

// TestVacate: a process alone in a group makes room; with others it does not.
func TestVacate(t *testing.T) {
	mount := unifiedMount(t)
	dir := filepath.Join(mount.Path, api.NewID("cloche-test-"))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	first, second := sleeper(t), sleeper(t)
	t.Cleanup(func() {
		for _, p := range []*exec.Cmd{first, second} {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
		for _, dir := range []string{filepath.Join(dir, daemonGroup), dir} {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	for _, p := range []*exec.Cmd{first, second} {
		if err := pidfd.Write(dir, "cgroup.procs", strconv.Itoa(p.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := vacate(dir, first.Process.Pid); !errors.Is(err, errShared) {
		t.Errorf("beside another process: %v", err)
	}
	if err := pidfd.Write(mount.Path, "cgroup.procs", strconv.Itoa(second.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if err := vacate(dir, first.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if got := readInt(filepath.Join(dir, daemonGroup), "cgroup.procs"); got != int64(first.Process.Pid) {
		t.Errorf("in the group below is %d", got)
	}
}

func TestFindBuses(t *testing.T) {
	uid := strconv.Itoa(os.Geteuid())
	tests := []struct {
		name string
		root bool
		env  map[string]string
		want []string
	}{
		{"user without environment", false, nil, []string{"/run/user/" + uid + "/bus"}},
		{"user after login", false, map[string]string{"XDG_RUNTIME_DIR": "/run/user/" + uid, "DBUS_SESSION_BUS_ADDRESS": "unix:abstract=/tmp/x,guid=1"},
			[]string{"/run/user/" + uid + "/bus", "@/tmp/x"}},
		{"odd directory", false, map[string]string{"XDG_RUNTIME_DIR": "/a;b,c d%"}, []string{"/a;b,c d%/bus", "/run/user/" + uid + "/bus"}},
		{"root", true, map[string]string{"XDG_RUNTIME_DIR": "/run/user/0"}, []string{"/run/dbus/system_bus_socket"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, b := range findBuses(test.root, func(k string) string { return test.env[k] }) {
				got = append(got, sockets(b.address)...)
			}
			if strings.Join(got, " ") != strings.Join(test.want, " ") {
				t.Errorf("sockets are %q, want %q", got, test.want)
			}
		})
	}
}

func FuzzSockets(f *testing.F) {
	f.Add("unix:path=/run/user/1000/bus")
	f.Add("unix:abstract=/tmp/dbus-x,guid=00;tcp:host=x;unix:path=%2Ftmp%2fa%3B")
	f.Add("unix:path=%zz;unix:;unix:path=relative;")
	f.Fuzz(func(t *testing.T, address string) {
		for _, s := range sockets(address) {
			if len(s) < 1 || s[0] != '/' && s[0] != '@' || strings.ContainsRune(s, 0) {
				t.Errorf("%q is no socket", s)
			}
		}
	})
}
