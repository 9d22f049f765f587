package enginetest

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// testTables takes in one sandbox all that there is of each table that the kernel keeps for
// a user or for the whole machine. The host and another sandbox still get what they need.
func testTables(s *suite) {
	h, ok := s.engine.(engine.Host)
	if !ok {
		s.Skip("needs a sandbox on the host's own kernel: this one has tables of its own")
	}
	// What is shared is told of each sandbox, and nothing else is.
	shares := h.Terms().SingleUser || s.Daemon || s.SharedTables != ""
	if told := s.engine.Probe(s.ctx).Enforces[api.EnforcesKernelTables]; told.OK == shares || shares && told.Reason == "" {
		s.Errorf("the engine says of the kernel's tables %+v, and that they are shared is %t", told, shares)
	}
	users := 3
	if h.Terms().SingleUser {
		users = 1
	}
	for _, table := range []struct {
		name string
		// needs is how many entries the host and other sandboxes need.
		needs int
		// most is how many one sandbox may have at most; 0 is what the host's user has.
		most int
		// byUser says that the kernel counts them by user.
		byUser bool
	}{
		{"inotify", 16, 0, true},
		{"watches", 16, 0, true},
		{"terminals", 16, 64, false},
		{"timers", 16, 0, true},
		{"queues", 1, 0, true},
		{"pipes", 4, 0, true},
		{"segments", 4, 0, false},
	} {
		s.Run(table.name, func(t *testing.T) {
			s := &suite{T: t, Setup: s.Setup, ctx: s.ctx, stateDir: s.stateDir, engine: s.engine}
			limited := s.Daemon && (table.name == "timers" || table.name == "queues")
			if s.SharedTables != "" && table.byUser && !limited {
				s.Skip("needs a user namespace of the sandbox's own: " + s.SharedTables)
			}
			if h.Terms().SingleUser && table.name == "pipes" {
				s.Skip("needs users of the sandbox's own: the kernel counts what pipes hold by user, in all of its namespaces")
			}
			if s.Daemon && table.name == "terminals" {
				s.Skip("needs terminals that are limited: no daemon of containers takes an option for them")
			}
			greedy, _ := s.create(nil)
			taken := s.take(greedy, table.name, users)
			t.Logf("one sandbox took %d", taken)
			if taken == 0 || table.most > 0 && taken > table.most {
				s.Errorf("one sandbox took %d, and may have %d", taken, table.most)
			}
			want := strconv.Itoa(table.needs)
			if !limited { // by a part of root's that all containers share
				peer, _ := s.create(nil)
				if got := strings.TrimSpace(s.exec(peer, Inside, "take-some", table.name, want)); got != want {
					s.Errorf("another sandbox got %s of %s", got, want)
				}
			}
			out, err := exec.CommandContext(s.ctx, s.Images.Program, "take-some", table.name, want).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != want {
				s.Errorf("the host got %s of %s, %v", got, want, err)
			}
		})
	}
}

// testCountedTable takes epoll watches, which the kernel bounds almost only by the
// memory that it counts as the sandbox's.
func testCountedTable(s *suite) {
	if _, ok := s.engine.(engine.Host); !ok {
		s.Skip("needs a sandbox on the host's own kernel: this one has tables of its own")
	}
	s.need("memory_bytes")
	const table, most = "epoll", 1 << 20 // of 200 bytes
	greedy, _ := s.create(func(p *engine.Plan) { p.Limits.MemoryBytes = 64 << 20 })
	o, err := Exec(s.ctx, greedy, Inside, "take-some", table, strconv.Itoa(most))
	s.Logf("one sandbox took %q and ended with %d, %v", o.Output, o.Code, err)
	if err == nil && o.Code == 0 && strings.TrimSpace(string(o.Output)) == strconv.Itoa(most) {
		s.Errorf("a sandbox of 64 MiB took %d", most)
	}
	if err != nil {
		// The agent of this suite is as likely to be killed as what it started.
		s.done(greedy)
	}
	peer, _ := s.create(nil)
	if got := strings.TrimSpace(s.exec(peer, Inside, "take-some", table, "16")); got != "16" {
		s.Errorf("another sandbox got %s of 16", got)
	}
	out, err := exec.CommandContext(s.ctx, s.Images.Program, "take-some", table, "16").CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "16" {
		s.Errorf("the host got %s of 16, %v", got, err)
	}
}

// take has a sandbox take a table, and returns when it has all that it gets.
func (s *suite) take(i engine.Instance, table string, users int) int {
	s.Helper()
	const file = "/tmp/taken"
	failed := make(chan string, 1)
	go func() {
		// It ends with the instance.
		o, err := Exec(s.ctx, i, Inside, "take", table, strconv.Itoa(users), file)
		if err == nil {
			failed <- string(o.Output)
		}
	}()
	taken := -1
	s.eventually("the table is taken", func() bool {
		select {
		case out := <-failed:
			s.Fatalf("it took nothing: %s", out)
		default:
		}
		o, err := Exec(s.ctx, i, Inside, "cat", file)
		if err != nil || o.Code != 0 {
			return false
		}
		n, err := strconv.Atoi(string(o.Output))
		taken = n
		return err == nil
	})
	return taken
}
