//go:build linux

package network

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/egress/fdstore"
)

// BenchmarkIdleNetworks makes 1,000 whole networks, each of which was asked for a name once,
// and says what they take here and in the fd store.
func BenchmarkIdleNetworks(b *testing.B) {
	const n = 1000
	for b.Loop() {
		dir := b.TempDir()
		before := held()
		ws := New(b.Context(), Options{Store: fdstore.NewClient(fdstore.Options{Dir: dir})})
		networks := make([]*Network, n)
		ends := make([]int, n)
		for i := range networks {
			w, err := ws.Open(b.Context(), Place{ID: fmt.Sprintf("sb-%d", i), Dir: filepath.Join(dir, strconv.Itoa(i)), Grant: grant(b, "a.example", "b.example:22")})
			if err != nil {
				b.Fatal(err)
			}
			raw, err := w.guest.SyscallConn() // the engine's duplicate
			if err == nil {
				err = raw.Control(func(fd uintptr) { ends[i], _ = unix.Dup(int(fd)) })
			}
			if err != nil {
				b.Fatal(err)
			}
			if err := w.Handed(b.Context()); err != nil {
				b.Fatal(err)
			}
			ask(b, w, "a.example")
			networks[i] = w
		}
		b.ReportMetric(held()-before, "MB-here")
		b.ReportMetric(resident(b, storeOf(b)), "MB-holder")
		for i, w := range networks {
			_ = unix.Close(ends[i])
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
		}
		if err := ws.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// storeOf is the number of the fd store that this test has started.
func storeOf(b *testing.B) string {
	b.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, name := range all {
		s, _ := os.ReadFile(name)
		cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		if string(cmd) == fdstore.Argv0+"\x00" && strings.Contains(string(s), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) {
			return filepath.Base(filepath.Dir(name))
		}
	}
	b.Fatal("there is no holder")
	return ""
}

// held is what this process holds of memory, in MiB, with nothing to give back.
func held() float64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Sys-m.HeapReleased) / (1 << 20)
}

// resident is the memory that a process has for itself, in MiB.
func resident(b *testing.B, pid string) float64 {
	b.Helper()
	s, err := os.ReadFile(filepath.Join("/proc", pid, "smaps_rollup"))
	if err != nil {
		b.Fatal(err)
	}
	for line := range bytes.Lines(s) {
		if rest, ok := bytes.CutPrefix(line, []byte("Private_Dirty:")); ok {
			kib, err := strconv.ParseFloat(string(bytes.Fields(rest)[0]), 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib / 1024
		}
	}
	b.Fatal("no such line")
	return 0
}
