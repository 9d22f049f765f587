//go:build linux

package e2e_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// attackedEngine is an engine that is attacked where it can run.
type attackedEngine struct {
	name string
	// missing says why it cannot; nil is never.
	missing func() string
}

// attackedEngines are those that need no other daemon. All but the first
// have the host's kernel.
func attackedEngines() []attackedEngine {
	needRoot := func() string {
		if os.Geteuid() != 0 {
			return "needs root: another user has not all limits on this engine"
		}
		return ""
	}
	return []attackedEngine{
		{name: "gvisor"},
		{"native", needRoot},
		{"nsjail", func() string {
			if ok, err := condition("nsjail"); !ok || err != nil {
				return "needs nsjail: in PATH, or where " + nsjailVar + " says"
			}
			return needRoot()
		}},
		{"oci", func() string {
			if _, err := exec.LookPath("runc"); err != nil {
				return "needs the runtime runc"
			}
			return needRoot()
		}},
	}
}

// run runs a test for the engine where it can run.
func (e attackedEngine) run(t *testing.T, f func(*testing.T)) {
	t.Run(e.name, func(t *testing.T) {
		if e.missing != nil {
			if why := e.missing(); why != "" {
				t.Skip(why)
			}
		}
		f(t)
	})
}

// nsjailHere tells daemons that are started from here on where nsjail is.
func nsjailHere(t *testing.T) {
	t.Helper()
	t.Setenv("CLOCHE__NSJAIL__PATH", nsjailProgram())
}

// TestAttackEngines attacks each engine that runs here by all of it. The neighbour of
// each attacker must not notice, and the attacker's own agent must live.
func TestAttackEngines(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64, whose numbers of system calls the attacks have")
	}
	nsjailHere(t)
	h := newFixture(t)
	for _, e := range attackedEngines() {
		e.run(t, func(t *testing.T) {
			// A subtest may end by h.t's FailNow, which must be its own.
			within := func(name string, f func()) {
				t.Run(name, func(t *testing.T) {
					h.t = t
					h.revive()
					f()
				})
				h.t = t
			}
			h.t = t
			h.must("create", "--engine", e.name, "--name", "neighbour")
			h.must("create", "--engine", e.name, "--name", "attacker")
			for _, a := range attacks {
				if a.hostKernel && e.name == "gvisor" {
					continue
				}
				within(a.name, func() { h.attackEngine(e.name, a) })
			}
			within("A04 a flood of output", h.floodOutput)
			within("A05 a flood of execs", h.floodExecs)
			within("A14 archives that become large", func() { h.fillByArchives(e.name) })
			h.alive("attacker")
			h.alive("neighbour")
			h.must("rm", "-f", "attacker", "neighbour")
			h.left()
		})
	}
	h.t = t
}

// alive asserts that a sandbox answers.
func (h *fixture) alive(sandbox string) {
	h.t.Helper()
	if got := h.must("exec", sandbox, "--", "echo", "here"); got != "here\n" {
		h.t.Errorf("%s says %q", sandbox, got)
	}
}

// attackEngine makes one attack, in the common sandbox or in one of its own.
func (h *fixture) attackEngine(engine string, a attack) {
	h.t.Helper()
	if slices.Contains(a.flags, "--memory") {
		h.needs(engine, "memory_bytes")
	}
	at, alone := "attacker", a.alone || len(a.flags) > 0
	if alone {
		at = "loner"
		h.must(append([]string{"create", "--engine", engine, "--name", at}, a.flags...)...)
	}
	cmd := h.command("exec", "--timeout", "60s", at, "--", "python3", "-")
	cmd.Stdin = strings.NewReader("ENGINE = '" + engine + "'\n" + enginePrelude + a.program)
	b, _ := cmd.CombinedOutput()
	out, status := string(b), cmd.ProcessState.ExitCode()
	if strings.Contains(out, "ESCAPED") {
		h.t.Errorf("%s", out)
	}
	if status != 0 && !a.ends {
		h.t.Errorf("the attack came to nothing: status %d\n%s", status, out)
	}
	if alone {
		h.alive("neighbour")
		if !a.ends {
			h.alive(at)
		}
		h.must("rm", "-f", at)
	}
}

// floodOutput writes what no terminal, no line and no memory should see. What is kept
// has a bound, dropped output is counted, and the daemon does not grow.
func (h *fixture) floodOutput() {
	h.t.Helper()
	before := h.peak()
	out, status := h.try("exec", "--json", "attacker", "--", "python3", "-c", `
import os
data = (b"\x1b[2J\x1b]0;x\x07\xff\xfe\0" + os.urandom(4096)) * 256
for fd in (1, 2):
    for _ in range(128):
        left = memoryview(data)[:1 << 20]
        while left: left = left[os.write(fd, left):]
`)
	type counts struct{ Kept, Dropped int64 }
	var r struct {
		Truncated   bool
		StdoutBytes counts `json:"stdout_bytes"`
		StderrBytes counts `json:"stderr_bytes"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 {
		h.t.Fatalf("status %d, %v: %.300q", status, err, out)
	}
	want := counts{1 << 20, 127 << 20}
	if !r.Truncated || r.StdoutBytes != want || r.StderrBytes != want {
		h.t.Errorf("%+v, want %+v of each stream", r, want)
	}
	if grown := h.peak() - before; grown > 64<<20 {
		h.t.Errorf("the daemon has grown by %d MiB", grown>>20)
	}
}

// peak is the memory of the daemon, at its highest since the last call.
func (h *fixture) peak() int64 {
	h.t.Helper()
	dir := fmt.Sprintf("/proc/%d/", h.daemon.Process.Pid)
	b, err := os.ReadFile(dir + "status")
	if err != nil {
		h.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(dir+"clear_refs", []byte("5"), 0); err != nil {
		h.t.Fatal(err)
	}
	return kib << 10
}

// floodExecs asks for more than may be under way at once. Those that are too many are
// refused, in words that a program understands, and the others are not disturbed.
func (h *fixture) floodExecs() {
	h.t.Helper()
	const asked, most = 250, 192
	var mu sync.Mutex
	var held []net.Conn
	hangUp := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range held {
			c.Close()
		}
		held = nil
	}
	defer hangUp()
	var refused atomic.Int64
	failed := make(chan error, asked)
	var wg sync.WaitGroup
	for range asked {
		c, err := h.post("/v1/sandboxes/attacker/exec", `{"argv":["sleep","1000"]}`)
		if err != nil {
			h.t.Fatal(err)
		}
		mu.Lock()
		held = append(held, c)
		mu.Unlock()
		wg.Go(func() {
			if err := refusal(c); err == nil {
				refused.Add(1)
			} else if !errors.Is(err, net.ErrClosed) {
				failed <- err
			}
		})
	}
	// None of them ends by itself, so the others are all refused.
	all := poll(func() bool { return refused.Load() >= asked-most || len(failed) > 0 })
	h.alive("neighbour")
	hangUp()
	wg.Wait()
	close(failed)
	for err := range failed {
		h.t.Errorf("an answer: %v", err)
	}
	if n := refused.Load(); !all || n != asked-most {
		h.t.Errorf("%d of %d execs were refused, want %d", n, asked, asked-most)
	}
	// Those whose callers have gone end.
	if !poll(func() bool { _, status := h.try("exec", "attacker", "--", "true"); return status == 0 }) {
		h.t.Error("there is no room again")
	}
}

// refusal reads the answer to an exec, which must be no_capacity.
func refusal(c net.Conn) error {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var e struct{ Error struct{ Code string } }
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		return err
	}
	if r.StatusCode != http.StatusServiceUnavailable || e.Error.Code != "no_capacity" || r.Header.Get("Retry-After") == "" {
		return fmt.Errorf("%s, %s, Retry-After %q", r.Status, e.Error.Code, r.Header.Get("Retry-After"))
	}
	return nil
}

// fillByArchives sends archives that claim more than they have, and more than fits.
func (h *fixture) fillByArchives(engine string) {
	h.t.Helper()
	h.must("create", "--engine", engine, "--name", "small", "--disk", "64MiB")
	for _, c := range []struct {
		what   string
		header tar.Header
		code   string
	}{
		{"more than the disk", tar.Header{Name: "full", Typeflag: tar.TypeReg, Mode: 0o600, Size: 1 << 30}, "no_capacity"},
		{"a size that nothing has", tar.Header{Name: "huge", Typeflag: tar.TypeReg, Mode: 0o600, Size: 1 << 50, Format: tar.FormatGNU}, "too_large"},
		{"directories in each other", tar.Header{Name: strings.Repeat("d/", 2000), Typeflag: tar.TypeDir, Mode: 0o700}, "too_large"},
	} {
		var head bytes.Buffer
		if err := tar.NewWriter(&head).WriteHeader(&c.header); err != nil {
			h.t.Fatal(err)
		}
		cmd := h.command("cp", "--json", "-", "small:/var/bomb")
		cmd.Stdin = io.MultiReader(&head, io.LimitReader(letters{}, c.header.Size))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), `"`+c.code+`"`) {
			h.t.Errorf("%s: %v, %s", c.what, err, out)
		}
	}
	h.must("exec", "small", "--", "sh", "-c", "rm -rf /var/bomb && head -c 1000000 /dev/zero > /var/again")
	h.must("rm", "-f", "small")
}
