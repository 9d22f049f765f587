//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// TestReattach: the input and the output of a streamed exec are complete, however often its connection is closed for a save.
func TestReattach(t *testing.T) {
	in := boot(t, nil)
	ctx := within(t, 2*time.Minute)
	want := make([]byte, 8<<20)
	for i := range want {
		want[i] = byte(rand.N(256))
	}
	st, err := in.Stream(ctx, shell("cat; seq 1 50000 >&2; exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	client := in.Client
	connected, fed := make(chan *agent.Client), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer close(fed)
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 1+rand.N(200<<10))
			if _, err := st.Write(rest[:n]); err != nil {
				t.Errorf("write with %d left: %v", len(rest), err)
				return
			}
			rest = rest[n:]
		}
		if err := st.CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	stop := make(chan struct{})
	wg.Go(func() {
		for saved := 0; ; saved++ {
			select {
			case <-time.After(time.Duration(rand.N(10)) * time.Millisecond):
			case <-stop:
				if saved < 3 {
					t.Errorf("it was interrupted %d times", saved)
				}
				return
			}
			if err := client.Suspend(ctx, true); err != nil {
				t.Error(err)
				return
			}
			client = in.connect(t)
			select {
			case connected <- client:
			case <-stop:
				return
			}
		}
	})
	var got [2]bytes.Buffer
	defer close(stop)
	for seq := uint64(0); ; seq++ {
		ev, err := st.Recv()
		for errors.Is(err, agent.ErrSaving) {
			if err := st.Reattach(ctx, <-connected); err != nil && !errors.Is(err, agent.ErrSaving) {
				t.Fatal(err)
			}
			ev, err = st.Recv()
		}
		switch {
		case err != nil:
			t.Fatal(err)
		case ev.Exit != nil:
			<-fed
			if ev.Exit.ExitStatus() != 7 || !bytes.Equal(got[0].Bytes(), want) || strings.Count(got[1].String(), "\n") != 50000 {
				t.Errorf("exit %d, %d bytes of %d, %d lines", ev.Exit.ExitStatus(), got[0].Len(), len(want), strings.Count(got[1].String(), "\n"))
			}
			return
		case ev.Seq != seq:
			t.Fatalf("event %d has the number %d", seq, ev.Seq)
		case ev.Stream == api.Stderr:
			got[1].Write(ev.Data)
		default:
			got[0].Write(ev.Data)
		}
	}
}

// saved closes the connections of the host for a save, and returns a new one.
func (in *inside) saved(t *testing.T, reattach bool) *agent.Client {
	t.Helper()
	if err := in.Suspend(within(t, time.Minute), reattach); err != nil {
		t.Fatal(err)
	}
	in.Client = in.connect(t)
	return in.Client
}

// received reads from a stream until it has read so much, or the exit.
func received(t *testing.T, st *agent.Stream, n int) (string, *api.Result) {
	t.Helper()
	var got []byte
	for len(got) < n {
		ev, err := st.Recv()
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		if ev.Exit != nil {
			return string(got), ev.Exit
		}
		got = append(got, ev.Data...)
	}
	return string(got), nil
}

const terminalProgram = `
import os, signal, sys, threading
os.system('stty -echo')
said = {signal.SIGHUP: 'hup', signal.SIGINT: 'interrupted', signal.SIGWINCH: 'resized'}
signal.pthread_sigmask(signal.SIG_BLOCK, said)
def listen():
    while True:
        print(said[signal.sigwait(said)])
threading.Thread(target=listen, daemon=True).start()
print('ready')
for line in sys.stdin:
    print('got', line.strip())
print('end')
`

// TestReattachTerminal: a terminal has no hang-up, and its caller can do with it what it could before.
func TestReattachTerminal(t *testing.T) {
	in := boot(t, nil)
	ctx := within(t, time.Minute)
	s := start("python3", "-u", "-c", terminalProgram)
	s.TTY, s.Rows, s.Cols = true, 24, 80
	st, err := in.Stream(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	received(t, st, len("ready\r\n"))
	for _, c := range []struct {
		do   func() error
		want string
	}{
		{func() error { _, err := st.Write([]byte("a line\n")); return err }, "got a line\r\n"},
		{func() error { return st.Resize(50, 100) }, "resized\r\n"},
		{func() error { return st.Signal(2) }, "interrupted\r\n"},
		{st.CloseWrite, "end\r\n"},
	} {
		client := in.saved(t, true)
		done := make(chan error, 1)
		go func() { done <- c.do() }() // it waits
		if _, err := st.Recv(); !errors.Is(err, agent.ErrSaving) {
			t.Fatalf("got %v", err)
		}
		if err := st.Reattach(ctx, client); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got, _ := received(t, st, len(c.want)); got != c.want {
			t.Fatalf("got %q, want %q", got, c.want)
		}
	}
	if _, exit := received(t, st, 1); exit == nil || exit.ExitStatus() != 0 {
		t.Errorf("got %+v", exit)
	}
}

// TestReattachRefused: only a caller whose connection was closed for a save can reattach, and only as long as it is expected.
func TestReattachRefused(t *testing.T) {
	in := boot(t, nil)
	ctx := within(t, time.Minute)
	stream := func() *agent.Stream {
		st, err := in.Stream(ctx, shell("cat; echo end"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.Close() })
		return st
	}
	refused := func(what string, st *agent.Stream, code api.Code) {
		t.Helper()
		if ev, err := st.Recv(); !errors.Is(err, agent.ErrSaving) {
			t.Fatalf("%s: got %+v, %v", what, ev, err)
		}
		if err := st.Reattach(ctx, in.Client); api.CodeOf(err) != code {
			t.Errorf("%s: got %v", what, err)
		}
	}
	st := stream()
	in.saved(t, false)
	refused("a save without a reattach", st, api.CodeState)

	st = stream()
	client := in.saved(t, true)
	if err := client.Renew(ctx, agent.NewToken(), ""); err != nil { // as in a copy of the memory
		t.Fatal(err)
	}
	refused("a copy", st, api.CodeState)
	for { // its program got the end of its input
		ps, err := in.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !ps[len(ps)-1].Running {
			break
		}
	}
}

// TestReattachEnded: the exit is reported of a program that ended while the caller was away.
func TestReattachEnded(t *testing.T) {
	in := boot(t, nil)
	ctx, block := within(t, time.Minute), fifo(t)
	st, err := in.Stream(ctx, shell("read line < "+block.Name()+"; exit 5"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	client := in.saved(t, true)
	if _, err := block.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	for running := true; running; {
		ps, err := client.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		running = ps[len(ps)-1].Running
	}
	if _, err := st.Recv(); !errors.Is(err, agent.ErrSaving) {
		t.Fatalf("got %v", err)
	}
	if err := st.Reattach(ctx, client); err != nil {
		t.Fatal(err)
	}
	if _, exit := received(t, st, 1); exit == nil || exit.ExitStatus() != 5 {
		t.Errorf("got %+v", exit)
	}
}

// TestExecOverSave: a collected exec runs once, and its result is asked for on another connection.
func TestExecOverSave(t *testing.T) {
	in := boot(t, nil)
	ctx, started, block := within(t, time.Minute), fifo(t), fifo(t)
	runs := filepath.Join(t.TempDir(), "runs")
	s := shell("echo run >> " + runs + "; echo > " + started.Name() + "; read line < " + block.Name() + "; echo \"$line\"")
	s.Repeatable, s.Brief = true, true
	begun, ended := in.Client, make(chan error, 1)
	go func() {
		_, err := begun.Exec(ctx, s)
		ended <- err
	}()
	if _, err := started.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	client := in.saved(t, true)
	if err := <-ended; !errors.Is(err, agent.ErrSaving) || api.CodeOf(err) != api.CodeUnavailable {
		t.Fatalf("got %v", err)
	}
	if _, err := block.WriteString("answer\n"); err != nil {
		t.Fatal(err)
	}
	res, err := client.Exec(ctx, s)
	if data, _ := os.ReadFile(runs); err != nil || string(res.Stdout) != "answer\n" || string(data) != "run\n" {
		t.Errorf("got %q, %v, runs %q", res.Stdout, err, data)
	}
	s.ExecID, s.Argv = api.NewID("x-"), []string{"true"}
	if res, err := client.Exec(ctx, s); err != nil || !res.OK() {
		t.Errorf("got %+v, %v", res, err)
	}
	// It is forgotten right after it was sent, and not after the ten seconds of a save.
	for end := time.Now().Add(5 * time.Second); ; {
		if _, err := client.Exec(ctx, s); api.CodeOf(err) == api.CodeExists {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a brief result without a save is kept: %v", err)
		}
	}
	if _, err := begun.Exec(ctx, s); !errors.Is(err, agent.ErrSaving) {
		t.Errorf("a call on the old connection: %v", err)
	}
}

// TestStreamAgain: a program whose start was not confirmed before a save is started once.
func TestStreamAgain(t *testing.T) {
	in := boot(t, nil)
	ctx := within(t, time.Minute)
	for _, started := range []bool{false, true} {
		runs := filepath.Join(t.TempDir(), "runs")
		s := shell("echo run >> " + runs + "; cat")
		if started {
			if _, err := in.Stream(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		st, err := in.saved(t, true).StreamAgain(ctx, s)
		if err != nil {
			t.Fatalf("started %v: %v", started, err)
		}
		defer st.Close()
		if _, err := st.Write([]byte("more\n")); err != nil {
			t.Fatal(err)
		}
		got, _ := received(t, st, len("more\n"))
		if data, _ := os.ReadFile(runs); got != "more\n" || string(data) != "run\n" {
			t.Errorf("started %v: got %q, runs %q", started, got, data)
		}
	}
}

// TestSuspendLeavesNoConnections: the connections that were closed for a save are not in the memory that is saved, in a state in
// which they wait for late packets.
func TestSuspendLeavesNoConnections(t *testing.T) {
	in := boot(t, nil)
	in.connect(t)
	in.saved(t, true)
	data, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const timeWait = "06"
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", in.port)) && fields[3] == timeWait {
			t.Errorf("a connection is left: %s", line)
		}
	}
}

// TestSuspendLetsCallsEnd: a call on a file that is in progress ends before the connections are closed, if that takes no second.
func TestSuspendLetsCallsEnd(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	for name, c := range map[string]struct {
		after time.Duration
		ends  bool
	}{"soon": {20 * time.Millisecond, true}, "late": {time.Minute, false}} {
		client := in.Client
		here, there := io.Pipe()
		wrote := make(chan error, 1)
		go func() {
			_, err := client.WriteFile(within(t, time.Minute), filepath.Join(dir, name), agent.WriteOptions{}, here)
			wrote <- err
		}()
		if _, err := there.Write([]byte("begun, ")); err != nil { // the call is in progress
			t.Fatal(err)
		}
		timer := time.AfterFunc(c.after, func() {
			_, _ = there.Write([]byte("ended"))
			there.Close()
		})
		in.saved(t, true)
		if !timer.Stop() != c.ends {
			t.Errorf("%s: the content was given: %v", name, !c.ends)
		}
		there.Close()
		if err := <-wrote; c.ends != (err == nil) || !c.ends && !errors.Is(err, agent.ErrSaving) {
			t.Errorf("%s: %v", name, err)
		}
		if data, _ := os.ReadFile(filepath.Join(dir, name)); c.ends && string(data) != "begun, ended" {
			t.Errorf("%s: %q", name, data)
		}
	}
}
