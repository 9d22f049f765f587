//go:build linux

package gvisor_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// holds reports whether the memory of a process, or a file name that it has open, contains a text.
func holds(t *testing.T, pid int, text string) bool {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	maps, err := os.Open(dir + "/maps")
	if err != nil {
		return false // it has ended
	}
	defer maps.Close()
	mem, err := os.Open(dir + "/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	pages, err := os.Open(dir + "/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var from, to uint64
		var perms string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &perms); err != nil || perms[0] != 'r' || to-from > 1<<34 {
			continue
		}
		if strings.Contains(lines.Text(), text) || inPages(mem, pages, from, to, text) {
			return true
		}
	}
	fds, _ := filepath.Glob(dir + "/fd/*")
	for _, fd := range fds {
		if name, err := os.Readlink(fd); err == nil && strings.Contains(name, text) {
			return true
		}
	}
	return false
}

// inPages searches the pages of a mapping that exist. A text that lies on two that are not next to each other is not found.
func inPages(mem, pages *os.File, from, to uint64, text string) bool {
	const size = 4096
	table := make([]byte, (to-from)/size*8)
	if _, err := pages.ReadAt(table, int64(from/size*8)); err != nil {
		return false
	}
	var last, page []byte
	for at := from; at < to; at += size {
		const there = 3 << 62 // present or swapped
		if binary.LittleEndian.Uint64(table[(at-from)/size*8:])&there == 0 {
			last = nil
			continue
		}
		page = make([]byte, size)
		if _, err := mem.ReadAt(page, int64(at)); err != nil {
			last = nil
			continue
		}
		if bytes.Contains(append(last, page...), []byte(text)) {
			return true
		}
		last = bytes.Clone(page[size-len(text):])
	}
	return false
}

// TestMembersHoldNothing: no process of a sandbox that is kept ready has anything of the requests that its kind was
// asked for by, in its memory or among its files; a sandbox that was taken has.
func TestMembersHoldNothing(t *testing.T) {
	usable(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: it reads the memory of other processes")
	}
	im := enginetest.BuildImages(t, t.TempDir())
	dir := t.TempDir()
	e, err := gvisor.New(gvisor.Options{StateDir: dir, Warm: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	canary := api.NewID("canary-") // not a constant: the sentry is this very program
	source := filepath.Join(t.TempDir(), canary+"-source")
	if err := os.MkdirAll(filepath.Join(source, canary+"-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := func(p *engine.Plan) {
		p.Hostname = canary + "-host"
		p.Mounts = []engine.Mount{{Source: source, Target: "/srv/" + canary, Pinned: true}}
		p.Rules = []engine.PathRule{{Target: "/srv/" + canary, Path: canary + "-dir", Access: api.AccessNone}}
		p.Pool = engine.Pool{User: canary + "-user", Floor: 2, Ceiling: 2}
	}
	create(t, e, im, asked)
	for round := range 2 {
		eventually(t, "two sandboxes are ready", func() bool { return e.PoolCounts().Ready == 2 && len(members(t, dir)) == 2 })
		for _, sentry := range members(t, dir) {
			for _, pid := range pidfd.Tree(sentry) {
				if holds(t, pid, canary) {
					t.Errorf("round %d: process %d of a sandbox that is ready has something of a request", round, pid)
				}
			}
		}
		for _, gofer := range memberGofers(t, dir) {
			if holds(t, gofer, canary) {
				t.Errorf("round %d: the gofer %d of a sandbox that is ready has something of a request", round, gofer)
			}
		}
		i := create(t, e, im, asked)
		if !strings.Contains(string(i.State()), `"container":"booted-`) {
			t.Fatal("the sandbox was made without the pool")
		}
		if pid, _ := sentryOf(t, i); !holds(t, pid, canary) {
			t.Error("a sandbox that was taken has nothing of its request: the search finds nothing")
		}
	}
}
