package process

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r retry
		begun := time.Now()
		var last time.Duration
		for range 10 {
			before := time.Now()
			if !r.pause(t.Context(), nil) {
				t.Fatal("it gave up")
			}
			if last = time.Since(before); last < minRetry || last > maxRetry*5/4 {
				t.Errorf("a wait of %s", last)
			}
		}
		if last < maxRetry || time.Since(begun) > 30*time.Second {
			t.Errorf("the last wait is %s, all are %s", last, time.Since(begun))
		}
		r.reset()
		before := time.Now()
		r.pause(t.Context(), nil)
		if first := time.Since(before); first > 2*minRetry {
			t.Errorf("after a success the wait is %s", first)
		}
		ended := make(chan struct{})
		close(ended)
		if r.pause(t.Context(), ended) {
			t.Error("it goes on with what has ended")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r.pause(ctx, nil) {
			t.Error("it goes on after its context has ended")
		}
	})
}

// Whatever an agent says of the end of a process, the record never becomes one of an end that was
// not observed.
func TestTakeOver(t *testing.T) {
	for _, c := range []struct {
		said, want api.Process
	}{
		{api.Process{State: api.ProcessExited}, api.Process{State: api.ProcessUnknown}},
		{api.Process{State: api.ProcessExited, ExitCode: new(0)}, api.Process{State: api.ProcessExited}},
		{api.Process{State: api.ProcessExited, Signal: "KILL"}, api.Process{State: api.ProcessExited}},
		{api.Process{State: api.ProcessExited, TimedOut: true}, api.Process{State: api.ProcessExited}},
		{api.Process{State: "splendid"}, api.Process{State: api.ProcessUnknown}},
		{api.Process{State: ""}, api.Process{State: api.ProcessUnknown}},
		{api.Process{State: api.ProcessRunning, EndedAt: new(time.Now()), PID: -4}, api.Process{State: api.ProcessRunning}},
	} {
		rec := api.Process{ExecID: "mine", Argv: []string{"mine"}, Name: "mine"}
		c.said.ExecID, c.said.Argv, c.said.Name, c.said.OOM = "x", []string{"x"}, "x", true
		takeOver(&rec, c.said)
		if rec.State != c.want.State || rec.State.Ended() != (rec.EndedAt != nil) || rec.PID < 0 {
			t.Errorf("said %+v: %+v, want %s", c.said, rec, c.want.State)
		}
		if rec.ExecID != "mine" || rec.Argv[0] != "mine" || rec.Name != "mine" || rec.OOM {
			t.Errorf("said %+v: %+v takes over what the agent may not say", c.said, rec)
		}
	}
}

func TestLogBytes(t *testing.T) {
	table := Table{byID: map[string]*process{}}
	var all int64
	for i := range maxLiving + maxEnded {
		n := table.logBytes()
		if tail := tailBytes(n); n < 1<<20 || int64(tail) > n || tail < 4<<10 {
			t.Errorf("process %d: %d bytes on disk, %d in memory", i, n, tail)
		}
		table.byID[strconv.Itoa(i)] = &process{logBytes: n}
		all += n
	}
	if all > 4<<30 {
		t.Errorf("a sandbox can take %d bytes of disk for logs", all)
	}
	// What one gives up, the next one gets.
	table.byID["0"] = &process{logBytes: 1 << 20}
	if n := table.logBytes(); n != 64<<20 {
		t.Errorf("after one with a long log has gone, the next may keep %d bytes", n)
	}
}

// A power cut can leave the first record of a process under its temporary name: that
// process was never acknowledged, and nothing of it is kept.
func TestHasNoFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, processLogDir), 0o700); err != nil {
		t.Fatal(err)
	}
	write(processRecordFile + ".new")
	if !hostfile.HasNoFiles(dir) {
		t.Error("a record that is not in its place counts as a file")
	}
	write(filepath.Join(processLogDir, "segment"))
	if hostfile.HasNoFiles(dir) {
		t.Error("output does not count as a file")
	}
	if err := os.Remove(filepath.Join(dir, processLogDir, "segment")); err != nil {
		t.Fatal(err)
	}
	write(processRecordFile)
	if hostfile.HasNoFiles(dir) {
		t.Error("a record does not count as a file")
	}
}

// An attach and a detach are changes of a process, since its record counts the readers.
func TestAttachIsAChange(t *testing.T) {
	p := newProcess(t.TempDir(), processRecord{Process: api.Process{ExecID: "x", State: api.ProcessRunning}})
	a := &Attachment{}
	for _, c := range []struct {
		name   string
		do     func()
		want   int
		writer bool
	}{
		{"attach", func() { _, _ = p.join(a, true) }, 1, true},
		{"detach", func() { p.detach(a) }, 0, false},
	} {
		_, changed := p.snapshot()
		c.do()
		select {
		case <-changed:
		default:
			t.Errorf("%s: no change", c.name)
		}
		if rec, _ := p.snapshot(); rec.Readers != c.want || rec.Writer != c.writer {
			t.Errorf("%s: %d readers, writer %t", c.name, rec.Readers, rec.Writer)
		}
	}
}
