//go:build linux

package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/freeport"
	"github.com/cloche-dev/cloche/test/longtest"
)

// switches counts how often threads of the processes that this one has started were
// put on a processor: what does nothing is put on none.
func switches(t *testing.T) (n int64, processes int) {
	t.Helper()
	lists, _ := filepath.Glob("/proc/self/task/[0-9]*/children")
	for _, list := range lists {
		children, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that ended
		}
		for child := range strings.FieldsSeq(string(children)) {
			processes++
			states, _ := filepath.Glob("/proc/" + child + "/task/[0-9]*/status")
			for _, status := range states {
				text, err := os.ReadFile(status)
				if err != nil {
					continue
				}
				for line := range strings.Lines(string(text)) {
					if key, value, _ := strings.Cut(line, ":"); strings.HasSuffix(key, "voluntary_ctxt_switches") {
						one, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
						if err != nil {
							t.Fatal(err)
						}
						n += one
					}
				}
			}
		}
	}
	return n, processes
}

// TestEndpointIdle: the agents of sandboxes with unused endpoints do nothing at
// all, for as long as the test looks. What a poll would do it does within that time.
func TestEndpointIdle(t *testing.T) {
	longtest.Skip(t, "it watches an idle agent for seconds")
	w := newFixture(t)
	m := w.manager(false)
	for i := range 3 {
		var both []api.Endpoint
		for j := range 2 {
			e := endpointTo("http://127.0.0.1:1", freeport.Free(t))
			e.Name = fmt.Sprintf("e%d", j)
			both = append(both, e)
		}
		if _, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: fmt.Sprintf("box%d", i), Endpoints: both}), nil); err != nil {
			t.Fatal(err)
		}
	}
	// What the start of a program still has to do comes to its end first.
	const look = 3 * time.Second
	end := time.Now().Add(90 * time.Second)
	for {
		before, n := switches(t)
		if n < 3 {
			t.Fatalf("%d agents are there", n)
		}
		<-time.After(look)
		after, _ := switches(t)
		if after == before {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the agents were put on a processor %d times in %s, without anything to do", after-before, look)
		}
	}
}
