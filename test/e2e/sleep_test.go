//go:build linux

package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

const (
	// sleepRounds of what is done to sandboxes that sleep, at sleepBoxes of them.
	sleepRounds, sleepBoxes = 40, 3
	sleepTime               = 8 * time.Minute
	// sleepSeed in the environment is where chance begins.
	sleepSeed = "CLOCHE_SLEEP_SEED"
)

// sleepProgram counts lines, in memory, in an open SQLite database of the workspace, in a file of the root and by requests
// over one connection to a server of its own. It says all four, with its PID.
const sleepProgram = `
import http.client, http.server, os, sqlite3, sys, threading
requests = 0
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        global requests
        requests += 1
        body = str(requests).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
threading.Thread(target=server.serve_forever, daemon=True).start()
kept = http.client.HTTPConnection("127.0.0.1", server.server_port)
kept.connect()
sock = kept.sock
db = sqlite3.connect("/workspace/state.db")
db.execute("create table t(n integer primary key)")
log = open("/opt/log", "a+")
lines = 0
for line in sys.stdin:
    lines += 1
    db.execute("insert into t values(?)", (lines,)); db.commit()
    log.write("line\n"); log.flush(); log.seek(0)
    kept.request("GET", "/")
    served = kept.getresponse().read().decode()
    assert kept.sock is sock, "the connection broke"
    print("at", lines, db.execute("select count(*) from t").fetchone()[0], len(log.readlines()), served, os.getpid(), flush=True)
`

// sleepBox is a sandbox that sleeps, and what the test knows of it.
type sleepBox struct {
	*client.Sandbox
	program string
	offset  int64 // of its input
	lines   int
	pid     string
}

// clientOf returns a client of a daemon that runs.
func clientOf(t *testing.T, f *fixture.Fixture) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{Host: "unix://" + f.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestSleepUnderKills suspends sandboxes by request and by their idle time and wakes them by uses, while the daemon is killed
// at any moment. Every line of input is counted once, by one program that never starts again.
func TestSleepUnderKills(t *testing.T) {
	longtest.Skip(t, "it takes minutes")
	f := fixture.NotStarted(t)
	f.Start()
	c := clientOf(t, f)
	t.Cleanup(func() {
		if log, _ := os.ReadFile(f.Log()); t.Failed() {
			t.Logf("the daemon's log ends with\n%s", log[max(0, len(log)-8000):])
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), sleepTime)
	defer cancel()
	seed, err := strconv.ParseUint(os.Getenv(sleepSeed), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%s=%d", sleepSeed, seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var boxes []*sleepBox
	for n := range sleepBoxes {
		sb, err := c.Create(ctx, api.SandboxSpec{
			Name: "box" + strconv.Itoa(n), Engine: "gvisor", OnExpiry: api.ExpirySuspend, AutoResume: true, Limits: api.Limits{IdleMS: 1000},
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := sb.StartProcess(ctx, api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"python3", "-c", sleepProgram}}, OpenStdin: true})
		if err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, &sleepBox{Sandbox: sb, program: p.ExecID})
	}
	woken, kills := 0, 0
	for round := range sleepRounds {
		box := boxes[rng.IntN(len(boxes))]
		if sb, err := c.Get(ctx, box.ID); err == nil && sb.State == api.StateSuspended {
			woken++
		}
		act, what := box.send, "a line"
		switch rng.IntN(4) {
		case 0:
			act, what = box.Suspend, "a suspend"
		case 1:
			act, what = box.exec, "an exec"
		case 2:
			time.Sleep(time.Duration(rng.IntN(1800)) * time.Millisecond) // an idle time may end meanwhile
		}
		if rng.IntN(4) > 0 {
			if err := act(ctx); err != nil {
				t.Fatalf("round %d, %s: %v", round, what, err)
			}
			continue
		}
		kills++
		done := make(chan error, 1)
		go func() { done <- act(ctx) }()
		time.Sleep(time.Duration(rng.IntN(350)) * time.Millisecond)
		f.Kill9()
		f.Revive()
		if err := <-done; err != nil && api.CodeOf(err) != api.CodeUnavailable {
			t.Logf("round %d, %s while the daemon was killed: %v", round, what, err)
		}
		if err := box.send(ctx); err != nil {
			t.Fatalf("round %d, after %s while the daemon was killed: %v", round, what, err)
		}
	}
	if woken == 0 || kills == 0 {
		t.Errorf("%d sandboxes were suspended when they were used, and %d daemons killed", woken, kills)
	}
	t.Logf("%d rounds: %d sandboxes were suspended when they were used, %d daemons killed", sleepRounds, woken, kills)
	for _, box := range boxes {
		if err := box.send(ctx); err != nil {
			t.Errorf("the end: %v", err)
		}
		if err := box.Remove(ctx); err != nil {
			t.Error(err)
		}
	}
}

// exec runs a program that sees what the other wrote.
func (b *sleepBox) exec(ctx context.Context) error {
	res, err := b.Exec(ctx, "sh", "-c", "wc -l < /opt/log; cat /proc/sys/kernel/hostname")
	if err == nil && !strings.Contains(res.Output(), b.Name) {
		err = fmt.Errorf("an exec printed %q and %q", res.Output(), res.Stderr)
	}
	return err
}

// send writes one line to the program, once, and checks what it answers.
func (b *sleepBox) send(ctx context.Context) error {
	const line = "go\n"
	ack, err := b.WriteStdin(ctx, b.program, &b.offset, strings.NewReader(line), false)
	if err != nil {
		return err
	}
	if ack.Offset != b.offset+int64(len(line)) {
		return fmt.Errorf("the input is at %d, want %d", ack.Offset, b.offset+int64(len(line)))
	}
	b.offset = ack.Offset
	b.lines++
	want := fmt.Sprintf("at %d %d %d %d ", b.lines, b.lines, b.lines, b.lines)
	var last string
	if !fixture.Poll(func() bool {
		var out strings.Builder
		err = b.LogsWith(ctx, api.LogOptions{ExecID: b.program}, func(e api.LogEntry) error {
			out.Write(e.Data)
			return nil
		})
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		last = lines[len(lines)-1]
		return err == nil && strings.HasPrefix(last, want)
	}) {
		return fmt.Errorf("the program says %q, want %q; %w", last, want, err)
	}
	pid := strings.TrimPrefix(last, want)
	if b.pid == "" {
		b.pid = pid
	}
	if pid != b.pid {
		return fmt.Errorf("the program is process %s, and was %s", pid, b.pid)
	}
	return nil
}
