//go:build linux

package attack_test

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
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

// TestAttackEngines attacks each engine that runs here by all of it. The neighbour of
// each attacker must not notice, and the attacker's own agent must live.
func TestAttackEngines(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64, whose numbers of system calls the attacks have")
	}
	fixture.NsjailHere(t)
	h := fixture.New(t)
	for _, e := range fixture.Engines() {
		e.Run(t, func(t *testing.T) {
			// A subtest may end by h.t's FailNow, which must be its own.
			within := func(name string, f func()) {
				t.Run(name, func(t *testing.T) {
					h.T = t
					h.Revive()
					f()
				})
				h.T = t
			}
			h.T = t
			h.Must("create", "--engine", e.Name, "--name", "neighbour")
			h.Must("create", "--engine", e.Name, "--name", "attacker")
			for _, a := range attacks {
				if a.hostKernel && e.Name == "gvisor" {
					continue
				}
				within(a.name, func() { attackEngine(h, e.Name, a) })
			}
			within("A04 a flood of output", func() { floodOutput(h) })
			within("A05 a flood of execs", func() { floodExecs(h) })
			within("A14 archives that become large", func() { fillByArchives(h, e.Name) })
			alive(h, "attacker")
			alive(h, "neighbour")
			h.Must("rm", "-f", "attacker", "neighbour")
			h.Left()
		})
	}
	h.T = t
}

// alive asserts that a sandbox answers.
func alive(h *fixture.Fixture, sandbox string) {
	h.T.Helper()
	if got := h.Must("exec", sandbox, "--", "echo", "here"); got != "here\n" {
		h.T.Errorf("%s says %q", sandbox, got)
	}
}

// attackEngine makes one attack, in the common sandbox or in one of its own.
func attackEngine(h *fixture.Fixture, engine string, a attack) {
	h.T.Helper()
	if slices.Contains(a.flags, "--memory") {
		h.Needs(engine, "memory_bytes")
	}
	at, alone := "attacker", a.alone || len(a.flags) > 0
	if alone {
		at = "loner"
		h.Must(append([]string{"create", "--engine", engine, "--name", at}, a.flags...)...)
	}
	cmd := h.Command("exec", "--timeout", "60s", at, "--", "python3", "-")
	cmd.Stdin = strings.NewReader("ENGINE = '" + engine + "'\n" + enginePrelude + a.program)
	b, _ := cmd.CombinedOutput()
	out, status := string(b), cmd.ProcessState.ExitCode()
	if strings.Contains(out, "ESCAPED") {
		h.T.Errorf("%s", out)
	}
	if status != 0 && !a.ends {
		h.T.Errorf("the attack came to nothing: status %d\n%s", status, out)
	}
	if alone {
		alive(h, "neighbour")
		if !a.ends {
			alive(h, at)
		}
		h.Must("rm", "-f", at)
	}
}

// floodOutput writes what no terminal, no line and no memory should see. What is kept
// has a bound, dropped output is counted, and the daemon does not grow.
func floodOutput(h *fixture.Fixture) {
	h.T.Helper()
	before := peakMemory(h)
	out, status := h.Try("exec", "--json", "attacker", "--", "python3", "-c", `
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
		h.T.Fatalf("status %d, %v: %.300q", status, err, out)
	}
	want := counts{1 << 20, 127 << 20}
	if !r.Truncated || r.StdoutBytes != want || r.StderrBytes != want {
		h.T.Errorf("%+v, want %+v of each stream", r, want)
	}
	if grown := peakMemory(h) - before; grown > 64<<20 {
		h.T.Errorf("the daemon has grown by %d MiB", grown>>20)
	}
}

// peakMemory is the memory of the daemon, at its highest since the last call.
func peakMemory(h *fixture.Fixture) int64 {
	h.T.Helper()
	dir := fmt.Sprintf("/proc/%d/", h.Daemon.Process.Pid)
	b, err := os.ReadFile(dir + "status")
	if err != nil {
		h.T.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		h.T.Fatal(err)
	}
	if err := os.WriteFile(dir+"clear_refs", []byte("5"), 0); err != nil {
		h.T.Fatal(err)
	}
	return kib << 10
}

// floodExecs asks for more than may be under way at once. Those that are too many are
// refused, in words that a program understands, and the others are not disturbed.
func floodExecs(h *fixture.Fixture) {
	h.T.Helper()
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
		c, err := h.Post("/v1/sandboxes/attacker/exec", `{"argv":["sleep","1000"]}`)
		if err != nil {
			h.T.Fatal(err)
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
	all := fixture.Poll(func() bool { return refused.Load() >= asked-most || len(failed) > 0 })
	alive(h, "neighbour")
	hangUp()
	wg.Wait()
	close(failed)
	for err := range failed {
		h.T.Errorf("an answer: %v", err)
	}
	if n := refused.Load(); !all || n != asked-most {
		h.T.Errorf("%d of %d execs were refused, want %d", n, asked, asked-most)
	}
	// Those whose callers have gone end.
	if !fixture.Poll(func() bool { _, status := h.Try("exec", "attacker", "--", "true"); return status == 0 }) {
		h.T.Error("there is no room again")
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
func fillByArchives(h *fixture.Fixture, engine string) {
	h.T.Helper()
	h.Must("create", "--engine", engine, "--name", "small", "--disk", "64MiB")
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
			h.T.Fatal(err)
		}
		cmd := h.Command("cp", "--json", "-", "small:/var/bomb")
		cmd.Stdin = io.MultiReader(&head, io.LimitReader(fixture.Letters{}, c.header.Size))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), `"`+c.code+`"`) {
			h.T.Errorf("%s: %v, %s", c.what, err, out)
		}
	}
	h.Must("exec", "small", "--", "sh", "-c", "rm -rf /var/bomb && head -c 1000000 /dev/zero > /var/again")
	h.Must("rm", "-f", "small")
}
