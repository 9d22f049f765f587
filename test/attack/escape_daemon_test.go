//go:build linux

package attack_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/testnet"
)

func forgedLines(t *testing.T, w *testnet.Network) {
	w.Must("create", "--name", "forger", "--allow", "allowed.test")
	w.Attack("forger", `
fake = b'{"seq":999,"kind":"opened","name":"bank.test"}'
for label in (b'a\n' + fake, b'a\r\n' + fake, b'\x1b[2J\x1b]0;x\x07', b'\xc2\x9b2J', b'\xe2\x80\xae', b'"' + fake[:40], b'\0' * 20):
    print(ask([label, b'evil', b'test'], 1))
for target in (b'/\xe2\x80\xaegnp.exe', b'/\xc2\x9b2J', b'/"},' + fake, b'/' + b'x' * 5000):
    print(talk(b'GET ' + target + b' HTTP/1.1\r\nHost: evil.test\r\n\r\n')[:12])
for method in (b'GET\x1b[2J', b'A' * 31):
    print(talk(method + b' / HTTP/1.1\r\nHost: evil.test\r\n\r\n')[:12])
`)
	shown, raw := w.Must("egress", "log", "forger"), w.Must("egress", "log", "--json", "forger")
	if n := strings.Count(shown, "\n"); n < 8 || n != strings.Count(raw, "\n") {
		t.Errorf("%d lines for people, %d of JSON", n, strings.Count(raw, "\n"))
	}
	if i := strings.IndexFunc(shown, func(r rune) bool {
		return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r)
	}); i >= 0 {
		t.Errorf("acts on a terminal: %q", shown[max(i-40, 0):min(i+40, len(shown))])
	}
	for line := range strings.Lines(raw) {
		var rec struct {
			Seq        int
			Kind, Name string
		}
		if err := json.Unmarshal([]byte(line), &rec); err != nil || rec.Seq >= 999 || rec.Name == "bank.test" {
			t.Errorf("%q: %v", line, err)
		}
	}
	w.Must("rm", "-f", "forger")
	nothingSent(w, asksResolver, toAllowed80)
}

func rulesCut(t *testing.T, w *testnet.Network) {
	w.Must("create", "--name", "cut", "--allow", "db.test:5432")
	cmd := w.Command("exec", "--timeout", "20s", "cut", "--", "python3", "-c", `
import socket, time
s = socket.create_connection(('db.test', 5432), 5)
print(s.recv(10), flush=True)
try:
    while True:
        s.sendall(b'x')
        time.sleep(0.02)
except OSError as e:
    print('cut', type(e).__name__)
try:
    s = socket.create_connection(('198.18.0.1', 5432), 5)
    s.sendall(b'x')
    print('again', s.recv(10))
except OSError as e:
    print('again', type(e).__name__)
`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := out.Read(b); err != nil || !strings.Contains(string(b[:n]), "ready") {
		t.Fatalf("no flow: %q, %v", b[:n], err)
	}
	w.Must("egress", "remove", "cut", "db.test:5432")
	var rest strings.Builder
	for {
		n, err := out.Read(b)
		rest.Write(b[:n])
		if err != nil {
			break
		}
	}
	_ = cmd.Wait()
	if !strings.Contains(rest.String(), "cut ") || !strings.Contains(rest.String(), "again ") || strings.Contains(rest.String(), "ready") {
		t.Errorf("inside: %s", rest.String())
	}
	w.Must("rm", "-f", "cut")
	nothingSent(w, asksResolver, toDatabase)
}

func daemonDies(t *testing.T, w *testnet.Network) {
	w.Must("start", "--name", "beat", "box", "--", "python3", "-c", `
import socket, time
socket.setdefaulttimeout(1)
web, db = socket.gethostbyname('allowed.test'), socket.gethostbyname('db.test')
while True:
    for host, port in ((web, 80), (db, 5432), ('93.184.215.66', 80), ('8.8.8.8', 53)):
        try:
            s = socket.create_connection((host, port), 0.3)
            s.sendall(b'GET /beat HTTP/1.1\r\nHost: allowed.test\r\n\r\n')
            s.close()
        except OSError:
            pass
    time.sleep(0.05)
`)
	beats := func() int {
		_, requests := w.Heard()
		return len(requests)
	}
	if !fixture.Poll(func() bool { return beats() > 0 }) {
		t.Fatal("nothing came")
	}
	w.Kill9()
	w.Packets()
	beats()
	<-time.After(1500 * time.Millisecond) // the time in which something would leave
	nothingSent(w)
	// The next daemon lets out what is allowed, and nothing else.
	w.Inside(w.Begin)
	if !fixture.Poll(func() bool { return beats() > 0 }) {
		t.Error("nothing came under the next daemon")
	}
	nothingSent(w, asksResolver, toAllowed80, toDatabase)
	// Without what holds its link the sandbox has no network any more, and says so.
	w.Kill9()
	killHolder(w)
	w.Packets()
	beats()
	<-time.After(500 * time.Millisecond)
	nothingSent(w)
	w.Inside(w.Begin)
	if out := w.Must("inspect", "box"); !strings.Contains(out, "network is closed") {
		t.Errorf("not degraded:\n%s", out)
	}
	<-time.After(time.Second)
	nothingSent(w)
}

// killHolder kills what holds links for a home's daemons.
func killHolder(w *testnet.Network) {
	w.T.Helper()
	killed := false
	for _, p := range w.Processes() {
		line, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.PID), "cmdline"))
		if err == nil && strings.Contains(string(line), "holder") {
			killed = syscall.Kill(p.PID, syscall.SIGKILL) == nil
		}
	}
	if !killed {
		w.T.Fatal("no process holds the links")
	}
}

// TestFloodsOfFlows: what a sandbox leaves unread or half open is held in bounds, by
// the daemon that all sandboxes share, and others go on.
func TestFloodsOfFlows(t *testing.T) {
	w := testnet.New(t, "version: 1\nmin_tier: namespace\n", "")
	for _, engine := range []string{"gvisor", "native"} { // the others have the links of native
		t.Run(engine, func(t *testing.T) {
			w.T = t
			w.Revive()
			floodFlows(w, engine)
		})
	}
	w.T = t
}

func floodFlows(w *testnet.Network, engine string) {
	w.T.Helper()
	w.Must("create", "--engine", engine, "--name", "flood", "--allow", "db.test:5433", "--allow", "db.test:5434", "--allow", "allowed.test")
	w.Must("create", "--engine", engine, "--name", "other", "--allow", "allowed.test")
	ask := func() {
		w.T.Helper()
		w.Must("exec", "other", "--", "curl", "-sS", "--max-time", "10", "http://allowed.test/")
	}
	ask()
	peakMemory(w.Fixture)
	before := peakMemory(w.Fixture)
	for _, c := range []struct{ what, program string }{
		{"half open", `
socks = []
for i in range(2000):
    s = socket.socket()
    s.setblocking(False)
    try:
        s.connect(('198.18.0.1', 443))
    except OSError:
        pass
    socks.append(s)
for s in socks[:300]:
    try:
        s.send(b'\x16\3\1\x20\0')
    except OSError:
        pass
time.sleep(2)
`},
		{"answers that are not read", `
socks = []
for i in range(250):
    try:
        socks.append(connect('db.test', 5433))
    except OSError as e:
        print(i, e)
        break
print(len(socks))
time.sleep(3)
`},
		{"bytes for a server that does not read", `
socks = []
for i in range(250):
    try:
        s = connect('db.test', 5434)
        s.setblocking(False)
        socks.append(s)
    except OSError as e:
        print(i, e)
        break
end = time.time() + 4
while time.time() < end:
    for s in socks:
        try:
            s.send(b'x' * 65536)
        except OSError:
            pass
print(len(socks))
`},
	} {
		w.Attack("flood", c.program)
		after := peakMemory(w.Fixture)
		w.T.Logf("%s: %d MiB before, %d MiB after", c.what, before>>20, after>>20)
		// The most that was at once, so that a late collector counts; what is sent
		// here without bounds would be gigabytes.
		if grown := after - before; grown > 256<<20 {
			w.T.Errorf("%s: the daemon has grown by %d MiB", c.what, grown>>20)
		}
		ask()
	}
	w.Must("rm", "-f", "flood", "other")
}
