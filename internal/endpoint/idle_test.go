package endpoint_test

import (
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestManyIdle: two unused endpoints in each of a thousand sandboxes cost
// a goroutine that waits for connections and the memory of that. Nothing else is begun:
// no timer and no other goroutine.
func TestManyIdle(t *testing.T) {
	const sandboxes, each, most = 1000, 2, 60 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	running := runtime.NumGoroutine()
	all := make([]*inside, 0, sandboxes*each)
	listeners := make([]*pipes, 0, sandboxes*each)
	var wg sync.WaitGroup
	for range sandboxes * each {
		in := newInside(t, api.Endpoint{Name: "model", Target: "http://127.0.0.1:1", Listen: "127.0.0.1:13131"}, nil)
		ln := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		wg.Go(func() { in.Serve(ln) })
		all, listeners = append(all, in), append(listeners, ln)
	}
	until(t, func() bool {
		for _, in := range all {
			if in.State() != api.EndpointReady {
				return false
			}
		}
		return true
	})
	runtime.GC()
	runtime.ReadMemStats(&after)
	goroutines := runtime.NumGoroutine() - running
	held := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
	t.Logf("%d goroutines, %d KiB for each sandbox", goroutines, held/sandboxes>>10)
	// Nothing of other tests may be counted as theirs; a few of the runtime's own come.
	if goroutines > sandboxes*each+50 || held > most {
		t.Errorf("%d goroutines and %d bytes for %d endpoints", goroutines, held, len(all))
	}
	for i, in := range all {
		listeners[i].Close()
		in.Close(t.Context(), 0)
	}
	wg.Wait()
}
