package enginetest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// quiesce is how long the suite looks at something that must not move.
const quiesce = 300 * time.Millisecond

// pauser skips a test when the engine does not pause.
func (s *suite) pauser(i engine.Instance) engine.Pauser {
	s.Helper()
	p, ok := i.(engine.Pauser)
	if !ok {
		s.Skip("needs an engine that pauses: this one does not say that it can")
	}
	if err := p.Resume(s.ctx); api.CodeOf(err) == api.CodeUnsupported {
		s.Skipf("needs an instance that pauses: %v", err)
	}
	return p
}

// pauses skips a test when instances do not pause here.
func (s *suite) pauses() {
	s.Helper()
	i, _ := s.create(nil)
	s.pauser(i)
}

func (s *suite) pause(p engine.Pauser) {
	s.Helper()
	if err := p.Pause(s.ctx); err != nil {
		s.Fatalf("pause: %v (%v)", err, errors.Unwrap(err))
	}
}

func (s *suite) resume(p engine.Pauser) {
	s.Helper()
	if err := p.Resume(s.ctx); err != nil {
		s.Fatalf("resume: %v (%v)", err, errors.Unwrap(err))
	}
}

// counter is a program that counts in a file of the host. change mounts the directory of that, and read returns how far the
// program has come.
func (s *suite) counter() (program, path string, change func(*engine.Plan), read func() int) {
	s.Helper()
	dir := s.TempDir()
	file := filepath.Join(dir, "count")
	program, path = s.Images.Program, file
	if s.Isolates {
		program, path = Inside, "/srv/job/count"
	}
	change = func(p *engine.Plan) {
		if s.Isolates {
			p.Mounts = []engine.Mount{{Source: dir, Target: "/srv/job"}}
		}
	}
	read = func() int {
		b, err := os.ReadFile(file)
		if err != nil {
			return 0
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return n
	}
	return program, path, change, read
}

// counting makes an instance in which one program counts and another takes all
// of a processor, and returns how to read how far the first has come.
func (s *suite) counting() (engine.Instance, func() int) {
	s.Helper()
	program, path, change, read := s.counter()
	i, _ := s.create(change)
	s.pauser(i)
	for _, argv := range [][]string{{program, "count", path}, {program, "spin", "20s"}} {
		ctx, cancel := context.WithCancel(s.ctx)
		over := make(chan struct{})
		go func() {
			defer close(over)
			// It ends with the instance.
			if o, err := Exec(ctx, i, argv...); ctx.Err() == nil {
				s.Logf("%v ended: %+v, %v", argv, o, err)
			}
		}()
		s.Cleanup(func() { cancel(); <-over })
	}
	s.eventually("the program counts", func() bool { return read() > 3 })
	return i, read
}

// still checks that nothing in the instance changes.
func (s *suite) still(i engine.Instance, read func() int) {
	s.Helper()
	used := func() time.Duration {
		if st, ok := i.(engine.Statter); ok {
			if v, err := st.Stat(s.ctx); err == nil {
				return v.CPU
			}
		}
		return 0
	}
	n, cpu := read(), used()
	<-time.After(quiesce)
	if m := read(); m != n {
		s.Errorf("paused, and the program has counted from %d to %d", n, m)
	}
	if more := used() - cpu; more > quiesce/10 {
		s.Errorf("paused, and it took %v of processor time in %v", more, quiesce)
	}
}

func (s *suite) moves(read func() int) {
	s.Helper()
	n := read()
	s.eventually("the program counts again", func() bool { return read() > n+3 })
}

// open opens a stream that echoes.
func (s *suite) open(i engine.Instance) (net.Conn, *bufio.Reader) {
	s.Helper()
	conn, err := i.Dial(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	r := bufio.NewReader(conn)
	if _, err := io.WriteString(conn, `{"echo":true}`+"\nbefore\n"); err != nil {
		s.Fatal(err)
	}
	if line, err := r.ReadString('\n'); err != nil || line != "before\n" {
		s.Fatalf("the stream says %q, %v", line, err)
	}
	return conn, r
}

// testCloseOfStopped closes instances whose agent is stopped by a signal. The agent no longer
// answers. The programs that it started continue, or are paused as well.
func testCloseOfStopped(s *suite) {
	for _, paused := range []bool{false, true} {
		i, p := s.create(nil)
		if paused {
			s.pause(s.pauser(i))
		} else {
			begun := make(chan struct{})
			go func() {
				close(begun)
				_, _ = Exec(s.ctx, i, Inside, "sleep", "1000s")
			}()
			<-begun
		}
		agents := processes(p)
		if s.PID != nil {
			agents = []int{s.PID(i.State())}
		}
		if len(agents) == 0 {
			s.Fatal("the instance has no process")
		}
		for _, pid := range agents {
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				s.Fatal(err)
			}
		}
		s.close(i)
		if s.runs(p, i.State()) {
			s.Errorf("a paused agent outlives Close (paused: %v)", paused)
		}
	}
}

func testPause(s *suite) {
	i, read := s.counting()
	p := s.pauser(i)
	s.resume(p) // was not paused
	s.moves(read)
	conn, answers := s.open(i)
	s.pause(p)
	s.still(i, read)
	s.pause(p) // is paused already
	s.still(i, read)
	_, err := i.Dial(s.ctx)
	s.code("dial of a paused instance", err, api.CodeState)
	if _, err := io.WriteString(conn, "meanwhile\n"); err != nil {
		s.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(quiesce))
	if line, err := answers.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		s.Errorf("a paused instance answered %q, %v", line, err)
	}
	select {
	case <-i.Done():
		s.Fatal("Done is closed by a pause")
	default:
	}
	// Another engine finds it as it is.
	r, err := s.New(s, s.stateDir).Recover(s.ctx, i.State())
	if err != nil {
		s.Fatalf("recover: %v", err)
	}
	_, err = r.Dial(s.ctx)
	s.code("dial of a paused instance that was recovered", err, api.CodeState)
	s.pause(s.pauser(r))
	s.still(i, read)
	s.resume(s.pauser(r))
	s.moves(read)
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if line, err := answers.ReadString('\n'); err != nil || line != "meanwhile\n" {
		s.Errorf("the stream says %q, %v", line, err)
	}
	for _, p := range []engine.Pauser{p, s.pauser(r), p} {
		s.resume(p)
	}
	s.alive(i)
	for range 20 {
		s.pause(p)
		s.resume(p)
	}
	s.moves(read)
	s.alive(i)
}

// testCloseOfPaused also proves that a closed instance is not paused any more.
func testCloseOfPaused(s *suite) {
	i, plan := s.create(nil)
	p := s.pauser(i)
	s.pause(p)
	s.close(i)
	s.done(i)
	s.nothingLeft(plan)
	s.code("pause of a closed instance", p.Pause(s.ctx), api.CodeSandboxLost)
	s.code("resume of a closed instance", p.Resume(s.ctx), api.CodeSandboxLost)
	s.nothingLeft(plan)
}

// testCloseWhilePausing: nothing is left, whichever of the two ends first.
func testCloseWhilePausing(s *suite) {
	rounds := 6
	if s.Slow {
		rounds = 2
	}
	for n := range rounds {
		i, plan := s.create(nil)
		p := s.pauser(i)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for range 3 {
					for _, err := range []error{p.Pause(s.ctx), p.Resume(s.ctx)} {
						if err != nil {
							s.code("pause or resume beside a close", err, api.CodeSandboxLost)
						}
					}
				}
			})
		}
		wg.Go(func() {
			<-time.After(time.Duration(2*n) * time.Millisecond)
			s.close(i)
		})
		wg.Wait()
		s.done(i)
		s.nothingLeft(plan)
	}
}

func testSweepOfPaused(s *suite) {
	i, plan := s.create(func(p *engine.Plan) { p.Owner = "sweep-paused" })
	s.pause(s.pauser(i))
	if err := s.New(s, s.stateDir).Sweep(s.ctx, plan.Owner, nil); err != nil {
		s.Fatalf("sweep: %v", err)
	}
	s.done(i)
	s.nothingLeft(plan)
}

// testPausedInLaterProcess: what a daemon paused before it died is still paused
// and can go on.
func testPausedInLaterProcess(s *suite) {
	s.pauses()
	p := s.plan()
	i, err := s.engine.Recover(s.ctx, s.obey(orders{StateDir: s.stateDir, Plan: p, Pause: true}))
	if err != nil {
		s.Fatalf("recover: %v", err)
	}
	s.Cleanup(func() {
		s.close(i)
		s.nothingLeft(p)
	})
	_, err = i.Dial(s.ctx)
	s.code("dial of a paused instance", err, api.CodeState)
	s.resume(s.pauser(i))
	s.alive(i)
}

func testPausedDiesWithParent(s *suite) {
	s.pauses()
	p := s.plan()
	p.DieWithParent = true
	state := s.obey(orders{StateDir: s.stateDir, Plan: p, Pause: true})
	s.eventually("the instance's processes are gone", func() bool { return !s.runs(p, state) })
	_, err := s.engine.Recover(s.ctx, state)
	s.code("recover", err, api.CodeNotFound)
	s.nothingLeft(p)
}
