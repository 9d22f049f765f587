//go:build linux

package e2e_test

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

// suspendTimes is how often each program is suspended while it works.
const suspendTimes = 4

// working are programs that work for a few seconds, with the last line that they print.
var working = []struct{ name, program, want string }{
	{"node", `cat > /tmp/p.js <<'END'
const http = require('http'), agent = new http.Agent({keepAlive: true, maxSockets: 1})
let connections = 0, served = 0
const server = http.createServer((q, r) => { served++; r.end('x'.repeat(5000)) })
server.keepAliveTimeout = 3600e3
server.on('connection', () => connections++)
server.listen(0, '127.0.0.1', async () => {
  const port = server.address().port
  for (let i = 0; i < 400; i++) {
    await new Promise((ok, no) => http.get({port, agent}, r => { r.resume(); r.on('end', ok) }).on('error', no))
    await new Promise(ok => setTimeout(ok, 5))
  }
  console.log(served + ' requests over ' + connections + ' connection')
  process.exit(0)
})
END
exec node /tmp/p.js`, "400 requests over 1 connection"},
	{"git", `set -e
git init -q -b main /tmp/repo; cd /tmp/repo; git config user.email a@b.c; git config user.name n
for i in $(seq 400); do echo $i > f$i; done; git add .; git commit -qm one
git checkout -q -b other; for i in $(seq 400); do echo other $i > f$i; done; git commit -qam two
for i in $(seq 8); do git checkout -q main; git checkout -q other; done
git clone -q /tmp/repo /tmp/clone; git gc -q; git fsck --full 2>/dev/null
test -z "$(git status --porcelain)"; cat f400`, "other 400"},
	{"gcc", `set -e
mkdir /tmp/b; cd /tmp/b
for i in $(seq 30); do echo "int f$i(void){return $i;}" > f$i.c; done
{ for i in $(seq 30); do echo "int f$i(void);"; done; echo '#include <stdio.h>'; echo 'int main(void){int s=0;'; for i in $(seq 30); do echo "s+=f$i();"; done; echo 'printf("%d",s);puts("");return 0;}'; } > main.c
printf 'OBJS=$(patsubst %%.c,%%.o,$(wildcard *.c))\nprog: $(OBJS)\n\tcc -o $@ $(OBJS)\n' > Makefile
make -s -j2 > /dev/null; ./prog`, "465"},
	{"sqlite3", `set -e
cd /workspace; sqlite3 s.db 'create table t(n integer primary key, text)'
for i in $(seq 400); do echo "begin; insert into t values($i, hex(randomblob(2000))); commit;"; done | sqlite3 s.db
sqlite3 s.db 'pragma integrity_check; select count(*) from t'`, "400"},
	{"python3", `cat > /tmp/p.py <<'END'
import hashlib, multiprocessing, os, threading, time
heap = bytearray(os.urandom(1 << 20) * 128)
before = hashlib.sha256(heap).hexdigest()
def square(n):
    time.sleep(0.01)
    return n * n
ticks = []
def tick():
    while len(ticks) < 100: ticks.append(time.monotonic()); time.sleep(0.02)
thread = threading.Thread(target=tick); thread.start()
with multiprocessing.Pool(3) as pool: total = sum(pool.imap_unordered(square, range(400)))
thread.join()
assert ticks == sorted(ticks), "the monotonic clock went back"
assert hashlib.sha256(heap).hexdigest() == before, "the heap has changed"
print(total)
END
exec python3 /tmp/p.py`, "21253400"},
	{"python3 with a GiB", `cat > /tmp/p.py <<'END'
import hashlib, os, time
heap = bytearray(b"".join(os.urandom(1 << 16) * 16 for _ in range(1024)))
before = hashlib.sha1(heap).hexdigest()
for n in range(60): time.sleep(0.05); heap[n << 24] ^= 255
for n in range(60): heap[n << 24] ^= 255
print(len(heap), hashlib.sha1(heap).hexdigest() == before)
END
exec python3 /tmp/p.py`, "1073741824 True"},
	{"chromium", `cat > /tmp/p.py <<'END'
import http.server, subprocess, sys
page = b"""<script>
let n = 0
async function tick() { const r = await fetch('/tick?' + n, {method: 'POST'}); if (await r.text() == 'go') { n++; setTimeout(tick, 50) } }
tick()
</script>"""
seen = []
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body):
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self): self.answer(page)
    def do_POST(self):
        seen.append(int(self.path.partition("?")[2])); self.answer(b"go")
        if len(seen) == 100: print(seen == list(range(100)), flush=True); browser.kill(); import os; os._exit(0)
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
browser = subprocess.Popen(["/usr/lib/chromium/chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
    "--user-data-dir=/tmp/chromium", "http://127.0.0.1:%d/" % server.server_port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
server.serve_forever()
END
exec python3 /tmp/p.py`, "True"},
}

// TestSuspendWorkingPrograms suspends real programs at any moment of their work. They do not notice.
func TestSuspendWorkingPrograms(t *testing.T) {
	longtest.Skip(t, "it takes half a minute")
	f := fixture.NotStarted(t)
	f.Start()
	c := clientOf(t, f)
	for _, w := range working {
		t.Run(w.name, func(t *testing.T) {
			command, _, _ := strings.Cut(w.name, " ")
			if _, err := exec.LookPath(command); err != nil {
				t.Skipf("needs %s", command)
			}
			sb := suspendable(t, c)
			p, err := sb.StartProcess(t.Context(), api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"sh", "-c", w.program}}})
			if err != nil {
				t.Fatal(err)
			}
			suspended := 0
			for n := range suspendTimes {
				time.Sleep(time.Duration(100+rand.IntN(150+250*n)) * time.Millisecond) // on a fast machine it is done soon
				if now, err := sb.Process(t.Context(), p.ExecID); err != nil || now.State.Ended() {
					break
				}
				suspendAndResume(t, sb)
				suspended++
			}
			end, err := sb.WaitProcess(t.Context(), p.ExecID, api.WaitRequest{TimeoutMS: 120_000})
			out := outputOf(t, sb, p.ExecID)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if last := lines[len(lines)-1]; err != nil || end.ExitCode == nil || *end.ExitCode != 0 || last != w.want {
				t.Errorf("suspended %d times: %+v, %v, it wrote %q", suspended, end, err, out)
			}
			if suspended == 0 {
				t.Error("it was never suspended: it ended too soon")
			}
		})
	}
}

// TestSuspendEditor suspends an editor in a terminal in the middle of a line.
func TestSuspendEditor(t *testing.T) {
	longtest.Skip(t, "it starts a sandbox")
	if _, err := exec.LookPath("vim"); err != nil {
		t.Skip("needs vim")
	}
	f := fixture.NotStarted(t)
	f.Start()
	c := clientOf(t, f)
	sb := suspendable(t, c)
	p, err := sb.StartProcess(t.Context(), api.ProcessSpec{ExecRequest: api.ExecRequest{
		Argv: []string{"vim", "-u", "NONE", "-N", "-n", "/workspace/text"}, Env: map[string]string{"TERM": "vt100"}, TTY: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range []string{"i", "hello ", "suspended ", "world", "\x1b", ":wq\r"} {
		if _, err := sb.WriteStdin(t.Context(), p.ExecID, nil, strings.NewReader(keys), false); err != nil {
			t.Fatalf("%q: %v", keys, err)
		}
		if keys == ":wq\r" {
			break
		}
		suspendAndResume(t, sb)
	}
	if end, err := sb.WaitProcess(t.Context(), p.ExecID, api.WaitRequest{TimeoutMS: 60_000}); err != nil || end.ExitCode == nil || *end.ExitCode != 0 {
		t.Errorf("%+v, %v", end, err)
	}
	if text, err := sb.ReadFile(t.Context(), "/workspace/text"); err != nil || string(text) != "hello suspended world\n" {
		t.Errorf("it wrote %q, %v", text, err)
	}
}

// suspendable is a sandbox that can be suspended, until the end of the test.
func suspendable(t *testing.T, c *client.Client) *client.Sandbox {
	t.Helper()
	sb, err := c.Create(t.Context(), api.SandboxSpec{Engine: "gvisor"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func suspendAndResume(t *testing.T, sb *client.Sandbox) {
	t.Helper()
	for _, do := range []func(context.Context) error{sb.Suspend, sb.Resume} {
		if err := do(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// outputOf returns what a process wrote.
func outputOf(t *testing.T, sb *client.Sandbox, id string) string {
	t.Helper()
	var out []byte
	if err := sb.LogsWith(t.Context(), api.LogOptions{ExecID: id}, func(e api.LogEntry) error {
		out = slices.Concat(out, e.Data)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return string(out)
}
