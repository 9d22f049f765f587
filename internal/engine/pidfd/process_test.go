//go:build linux

package pidfd_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// TestMain plays the process that the tests start.
func TestMain(m *testing.M) {
	if os.Getenv("HOSTPROC_TEST_WAITS") != "" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(3)
	}
	if os.Getenv(firstVar) != "" {
		os.Exit(spawnFromFirst())
	}
	os.Exit(m.Run())
}

// start starts a child that ends with exit code 3 when stdin ends.
func start(t *testing.T) (*pidfd.Process, func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"HOSTPROC_TEST_WAITS=1"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := pidfd.New(cmd.Process.Pid, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		<-p.Done()
		p.Close()
	})
	return p, func() { stdin.Close() }
}

func TestProcessEnds(t *testing.T) {
	for want, end := range map[string]func(*pidfd.Process, func()){
		"ended with exit code 3":    func(_ *pidfd.Process, eof func()) { eof() },
		"was killed by signal KILL": func(p *pidfd.Process, _ func()) { p.Kill() },
	} {
		t.Run(want, func(t *testing.T) {
			p, eof := start(t)
			if p.Dead() {
				t.Fatal("it is dead already")
			}
			end(p, eof)
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if how := p.How(); how != want || !p.Dead() {
				t.Errorf("it %q, and is dead: %v", how, p.Dead())
			}
			if _, err := pidfd.Find(p.ID); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("a dead process is found: %v", err)
			}
		})
	}
}

// TestStopped: a process that a signal has stopped is seen to be.
func TestStopped(t *testing.T) {
	p, _ := start(t)
	is := func(want bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); p.Stopped() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it is not seen that stopped is %t", want)
			}
		}
	}
	is(false)
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := syscall.Kill(p.ID.PID, sig); err != nil {
			t.Fatal(err)
		}
		is(sig == syscall.SIGSTOP)
	}
	p.Kill()
	<-p.Done()
	is(false)
}

// TestFind: the number alone is not the process.
func TestFind(t *testing.T) {
	p, _ := start(t)
	again, err := pidfd.Find(p.ID)
	if err != nil {
		t.Fatal(err)
	}
	again.Abandon()
	for _, id := range []pidfd.ID{{}, {PID: p.ID.PID}, {PID: p.ID.PID, Start: p.ID.Start + "1"}, {PID: -1, Start: "1"}, {PID: 1 << 30, Start: "1"}} {
		if _, err := pidfd.Find(id); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%+v is found: %v", id, err)
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	p, _ := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("waited: %v", err)
	}
}

func TestSpawnerCloses(t *testing.T) {
	s := pidfd.NewSpawner()
	ran := false
	if err := s.Do(t.Context(), func() error { ran = true; return nil }); err != nil || !ran {
		t.Fatalf("ran: %v, %v", ran, err)
	}
	s.Close()
	s.Close()
	if err := s.Do(t.Context(), func() error { return nil }); !errors.Is(err, pidfd.ErrClosed) {
		t.Errorf("a closed one does: %v", err)
	}
	pidfd.NewSpawner().Close() // one that was never used
}

func TestMemoryOfChildren(t *testing.T) {
	none := exec.Command("sleep", "600")
	parent := exec.Command("sh", "-c", "sleep 600 & sleep 600 & wait")
	parent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, c := range []*exec.Cmd{none, parent} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			if c == parent {
				_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
			}
			_ = c.Wait()
		})
	}
	if got := pidfd.ChildMemory(none.Process.Pid); got != 0 {
		t.Errorf("a process without children: %d bytes, want 0", got)
	}
	if got := pidfd.Memory(none.Process.Pid); got < 4096 {
		t.Errorf("a process has %d bytes", got)
	}
	for range 500 {
		if pidfd.ChildMemory(parent.Process.Pid) > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the children of a shell have no memory")
}
