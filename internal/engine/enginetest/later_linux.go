package enginetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// parentEnv holds the orders of a process that plays a daemon which dies.
const parentEnv = "ENGINETEST_PARENT"

type orders struct {
	StateDir string
	Plan     engine.Plan
	Pause    bool
}

// Parent plays the daemon that dies, when this process was started for that,
// and does not return then. A TestMain calls it before it runs the tests.
func Parent(create func(stateDir string) (engine.Engine, error)) {
	text := os.Getenv(parentEnv)
	if text == "" {
		return
	}
	var o orders
	err := json.Unmarshal([]byte(text), &o)
	var e engine.Engine
	if err == nil {
		e, err = create(o.StateDir)
	}
	var i engine.Instance
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		i, err = e.Create(ctx, o.Plan)
	}
	if err == nil && o.Pause {
		err = i.(engine.Pauser).Pause(context.Background())
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("state", string(i.State()))
	<-i.Done() // or the death of this process
}

// parent starts a process that creates p, kills it and returns the state.
func (s *suite) parent(p engine.Plan) []byte {
	s.Helper()
	return s.obey(orders{StateDir: s.stateDir, Plan: p})
}

func (s *suite) obey(o orders) []byte {
	s.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.ctx, os.Args[0])
	cmd.Env = append(os.Environ(), parentEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	state, ok := strings.CutPrefix(strings.TrimSpace(line), "state ")
	if err != nil || !ok {
		s.Fatalf("the other process said %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		s.Fatal(err)
	}
	_ = cmd.Wait() // killed
	return []byte(state)
}

func testRecoverAlive(s *suite) {
	i, p := s.create(nil)
	other := s.New(s, s.stateDir)
	r, err := other.Recover(s.ctx, i.State())
	if err != nil {
		s.Fatalf("recover: %v", err)
	}
	s.alive(r)
	s.alive(i)
	s.close(r)
	s.done(i)
	s.nothingLeft(p)
}

func testRecoverDead(s *suite) {
	i, p := s.create(nil)
	s.Kill(s, i.State())
	s.done(i)
	_, err := s.engine.Recover(s.ctx, i.State())
	s.code("recover", err, api.CodeNotFound)
	s.nothingLeft(p)
	_, err = s.engine.Recover(s.ctx, i.State())
	s.code("recover again", err, api.CodeNotFound)
}

func testRecoverInLaterProcess(s *suite) {
	p := s.plan()
	state := s.parent(p)
	i, err := s.engine.Recover(s.ctx, state)
	if err != nil {
		s.Fatalf("recover: %v", err)
	}
	s.alive(i)
	if string(i.State()) != string(state) {
		s.Error("state has changed by recover")
	}
	s.Kill(s, state)
	s.done(i)
	s.close(i)
	s.nothingLeft(p)
}

func testDieWithParent(s *suite) {
	p := s.plan()
	p.DieWithParent = true
	if s.Isolates {
		p.Mounts = []engine.Mount{{Source: s.TempDir(), Target: "/srv/job"}}
	}
	state := s.parent(p)
	s.eventually("the instance's processes are gone", func() bool { return !s.runs(p, state) })
	_, err := s.engine.Recover(s.ctx, state)
	s.code("recover", err, api.CodeNotFound)
	s.nothingLeft(p)
}

func testSweep(s *suite) {
	mine := func(p *engine.Plan) { p.Owner = "sweep-mine" }
	keep, kept := s.create(mine)
	gone, removed := s.create(mine)
	other, _ := s.create(func(p *engine.Plan) { p.Owner = "sweep-other" })
	later := s.New(s, s.stateDir)
	if err := later.Sweep(s.ctx, "sweep-mine", func(id string) bool { return id == kept.ID }); err != nil {
		s.Fatalf("sweep: %v", err)
	}
	s.done(gone)
	s.nothingLeft(removed)
	s.alive(keep)
	s.alive(other)
	if err := later.Sweep(s.ctx, "sweep-nobody", nil); err != nil {
		s.Errorf("sweep of an owner that has nothing: %v", err)
	}
	if err := later.Sweep(s.ctx, "sweep-mine", nil); err != nil {
		s.Fatalf("sweep: %v", err)
	}
	s.done(keep)
	s.alive(other)
}

func testSweepAfterSuddenDeath(s *suite) {
	p := s.plan()
	if state := s.parent(p); !s.runs(p, state) {
		s.Fatal("the instance died with its daemon")
	}
	if err := s.engine.Sweep(s.ctx, p.Owner, nil); err != nil {
		s.Fatalf("sweep: %v", err)
	}
	s.nothingLeft(p)
}
