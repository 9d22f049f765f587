package enginetest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// suspends skips a test when the engine does not save memory. Such an engine must refuse a plan that has one.
func (s *suite) suspends() {
	s.Helper()
	if s.engine.Probe(s.ctx).Suspends {
		return
	}
	p := s.plan()
	p.Memory = &engine.Memory{Dir: s.TempDir(), Note: []byte(`{}`)}
	i, err := s.engine.Create(s.ctx, p)
	if err == nil {
		s.close(i)
	}
	s.code("create with a saved memory", err, api.CodeUnsupported)
	s.nothingLeft(p)
	s.Skip("needs an engine that saves memory: this one does not say that it can, and refuses one")
}

// sleeper makes an instance in which a program counts, without a connection. It returns how to read what the program has
// counted.
func (s *suite) sleeper() (engine.Instance, engine.Plan, func() int) {
	s.Helper()
	program, path, change, read := s.counter()
	i, p := s.create(change)
	if o, err := execRequest(s.ctx, i, map[string]any{"start": true, "argv": []string{program, "count", path}}); err != nil || o.Error != "" {
		s.Fatalf("start a program: %+v, %v", o, err)
	}
	s.eventually("the program counts", func() bool { return read() > 3 })
	return i, p, read
}

// Suspend saves the memory of an instance of the suite, whose agent first closes every connection.
func Suspend(t testing.TB, i engine.Instance) engine.Memory {
	t.Helper()
	closeConnections(t, i)
	complete, err := i.(engine.Suspender).Suspend(t.Context(), t.TempDir())
	if err != nil {
		t.Fatalf("suspend: %v (%v)", err, errors.Unwrap(err))
	}
	m, err := complete(t.Context())
	if err != nil {
		t.Fatalf("complete a saved memory: %v", err)
	}
	return m
}

// closeConnections has the agent close every connection, which is its part of a suspend.
func closeConnections(t testing.TB, i engine.Instance) {
	t.Helper()
	conn, err := i.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, `{"suspend":true}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil { // until it has closed this one too
		t.Fatal(err)
	}
}

// awake makes an instance that continues from a memory, by the engine that a later daemon has.
func (s *suite) awake(p engine.Plan, m engine.Memory) engine.Instance {
	s.Helper()
	p.Dir, p.Memory = s.TempDir(), &m
	i, err := s.New(s, s.stateDir).Create(s.ctx, p)
	if err != nil {
		s.Fatalf("create with a saved memory: %v (%v)", err, errors.Unwrap(err))
	}
	s.Cleanup(func() {
		s.close(i)
		s.nothingLeft(p)
	})
	return i
}

// testSuspend suspends an instance twice. Between the two it continues in another one.
func testSuspend(s *suite) {
	s.suspends()
	i, p, read := s.sleeper()
	if s.Isolates {
		s.exec(i, Inside, "write", "/note", "before")
	}
	for range 2 {
		m := Suspend(s, i)
		s.still(i, read)
		_, err := i.Dial(s.ctx)
		s.code("dial of a suspended instance", err, api.CodeState)
		_, err = i.(engine.Suspender).Suspend(s.ctx, s.TempDir())
		s.code("suspend of a suspended instance", err, api.CodeState)
		if m.Bytes <= 0 || len(m.Note) == 0 {
			s.Errorf("the memory has %d bytes and a note of %d", m.Bytes, len(m.Note))
		}
		s.close(i)
		s.nothingLeft(p)
		n := read()
		i = s.awake(p, m)
		s.moves(read)
		if now := read(); now <= n {
			s.Errorf("the program counted to %d before, and to %d after", n, now)
		}
		s.alive(i)
		if s.Isolates {
			if got := s.exec(i, Inside, "cat", "/note"); got != "before" {
				s.Errorf("the root contains %q", got)
			}
		}
	}
}

// testSuspendRunsOn resumes an instance whose memory was saved, before the save is complete. The memory is of the moment of
// the save.
func testSuspendRunsOn(s *suite) {
	s.suspends()
	i, p, read := s.sleeper()
	pauser := s.pauser(i)
	closeConnections(s, i)
	complete, err := i.(engine.Suspender).Suspend(s.ctx, s.TempDir())
	if err != nil {
		s.Fatalf("suspend: %v (%v)", err, errors.Unwrap(err))
	}
	s.still(i, read)
	s.resume(pauser)
	s.moves(read)
	s.alive(i)
	m, err := complete(s.ctx)
	if err != nil || m.Bytes <= 0 || len(m.Note) == 0 {
		s.Fatalf("the memory has %d bytes and a note of %d: %v", m.Bytes, len(m.Note), err)
	}
	s.moves(read)
	s.close(i)
	s.nothingLeft(p)
	if s.Isolates { // the process of a pretended one ended with it
		s.alive(s.awake(p, m))
		s.moves(read)
	}
}

// testSuspendRefused: an instance continues after a save that failed, and a memory that was changed is refused.
func testSuspendRefused(s *suite) {
	s.suspends()
	i, p, read := s.sleeper()
	closeConnections(s, i)
	if _, err := i.(engine.Suspender).Suspend(s.ctx, filepath.Join(s.TempDir(), "absent")); err == nil {
		s.Fatal("the memory was saved to a directory that does not exist")
	}
	s.moves(read)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := i.(engine.Suspender).Suspend(ctx, s.TempDir()); !errors.Is(err, context.Canceled) {
		s.Errorf("canceled: %v", err)
	}
	s.moves(read)
	s.alive(i)
	m := Suspend(s, i)
	s.close(i)
	files, err := filepath.Glob(filepath.Join(m.Dir, "*"))
	if err != nil || len(files) == 0 {
		s.Fatalf("the files of the memory: %v, %v", files, err)
	}
	for _, name := range files {
		restore := s.damage(name)
		q := p
		q.Dir, q.Memory = s.TempDir(), &engine.Memory{Dir: m.Dir, Bytes: m.Bytes, Note: m.Note}
		if i, err := s.engine.Create(s.ctx, q); !errors.Is(err, engine.ErrMemoryRefused) {
			s.Errorf("with a change in %s: %v", filepath.Base(name), err)
			if err == nil {
				s.close(i)
			}
		}
		s.nothingLeft(q)
		restore()
	}
	s.awake(p, m)
	s.moves(read)
}

// damage changes a byte in the middle of a file, until restore is called.
func (s *suite) damage(name string) (restore func()) {
	s.Helper()
	before, err := os.ReadFile(name)
	if err != nil || len(before) == 0 {
		s.Fatalf("read %d bytes of the memory: %v", len(before), err)
	}
	put := func(change byte) {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			s.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte{before[len(before)/2] ^ change}, int64(len(before)/2)); err != nil {
			s.Fatal(err)
		}
	}
	put(1)
	return func() { put(0) }
}

// testCloseWhileSuspending: nothing is left, whichever of the two ends first.
func testCloseWhileSuspending(s *suite) {
	s.suspends()
	rounds := 6
	if s.Slow {
		rounds = 2
	}
	for n := range rounds {
		i, p := s.create(nil)
		closeConnections(s, i)
		var wg sync.WaitGroup
		wg.Go(func() {
			complete, err := i.(engine.Suspender).Suspend(s.ctx, s.TempDir())
			if err == nil {
				_, err = complete(s.ctx) // whether it is closed by now or not
			} else {
				s.code("suspend beside a close", err, api.CodeSandboxLost)
				return
			}
			if err != nil {
				s.Errorf("complete a saved memory beside a close: %v", err)
			}
		})
		<-time.After(time.Duration(n) * 5 * time.Millisecond)
		s.close(i)
		wg.Wait()
		s.nothingLeft(p)
		_, err := i.(engine.Suspender).Suspend(s.ctx, s.TempDir())
		s.code("suspend of a closed instance", err, api.CodeSandboxLost)
	}
}
