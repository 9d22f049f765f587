//go:build linux

package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/freeport"
)

// manifest is what packaging/kubernetes says of the daemon's container.
type manifest struct {
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Args           []string
					StartupProbe   probe `yaml:"startupProbe"`
					ReadinessProbe probe `yaml:"readinessProbe"`
					LivenessProbe  probe `yaml:"livenessProbe"`
				}
			}
		}
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// TestNamesOfTheDaemon starts a daemon as the manifest for Kubernetes has it, on a machine
// whose file of hosts has its names, and calls it by each, with the command and with the
// client for Python. Network, host name and file are of namespaces of their own.
func TestNamesOfTheDaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes namespaces with a host name and a file of hosts of their own")
	}
	for _, program := range []string{"unshare", "nsenter", "ip", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	text, err := os.ReadFile("packaging/kubernetes/cloche.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set, service, _ := bytes.Cut(text, []byte("\n---\n"))
	var m manifest
	if err := yaml.Unmarshal(set, &m); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(service), "name: cloche\n") || len(m.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("the manifest has other names now: %+v\n%s", m, service)
	}
	pod := m.Spec.Template.Spec.Containers[0]
	b := newNamed(t, pod.Args)

	for _, name := range []string{
		"box", "BOX.example.org", "door.example.net", "127.0.0.1", "10.9.8.7",
		"cloche", "cloche.default", "cloche.default.svc", "cloche.default.svc.cluster.local",
	} {
		if out, err := b.inside(nil, b.bin, "ls", "--host", "tcp://"+name+":7070"); err != nil {
			t.Errorf("by the name %s: %v\n%s", name, err, out)
		}
	}
	out, err := b.inside(nil, b.bin, "ls", "--host", "tcp://stranger.example:7070")
	if err == nil || !strings.Contains(out, `not known by the host name "stranger.example"`) || !strings.Contains(out, "--host-name") {
		t.Errorf("by a name that is not its own: %v\n%s", err, out)
	}
	for _, p := range []probe{pod.StartupProbe, pod.ReadinessProbe, pod.LivenessProbe} {
		// As a kubelet does: by the Pod's address, without a token.
		ask := "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read())"
		if out, err := b.inside([]string{"CLOCHE_TOKEN="}, "python3", "-c", ask, "http://10.9.8.7:7070"+p.HTTPGet.Path); err != nil || p.HTTPGet.Path == "" || p.HTTPGet.Port != "api" {
			t.Errorf("probe %+v: %v\n%s", p, err, out)
		}
	}
	t.Run("python", func(t *testing.T) {
		pypi := os.Getenv(pypiVar)
		if _, err := os.Stat(filepath.Join(pypi, "httpx")); pypi == "" || err != nil {
			t.Skipf("needs the package httpx: set %s to a directory into which pip installed it", pypiVar)
		}
		here, err := filepath.Abs("sdk/python")
		if err != nil {
			t.Fatal(err)
		}
		calls := `
import cloche
with cloche.SandboxClient("tcp://box:7070") as client:
    print(client.list(), client.version())
try:
    cloche.SandboxClient("tcp://stranger.example:7070").list()
except cloche.ClocheError as e:
    assert "stranger.example" in str(e), e
else:
    raise SystemExit("a stranger's name is taken")
try:
    cloche.SandboxClient("tcp://missing.example:7070").list()
except cloche.SandboxUnavailable as e:
    assert "the name of the daemon" in str(e), e
`
		if out, err := b.inside([]string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" + here + ":" + pypi}, "python3", "-c", calls); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// namedDaemon is a daemon on a machine of its own, as far as names go.
type namedDaemon struct {
	t    *testing.T
	bin  string
	home string
	cmd  *exec.Cmd
}

const namesToken = "right-token-0123456789abcdef0123456789abcdef"

func newNamed(t *testing.T, args []string) *namedDaemon {
	t.Helper()
	b := &namedDaemon{t: t, bin: fixture.Binary(t)}
	var err error
	if b.home, err = os.MkdirTemp("", "cl-"); err != nil { // a unix socket's path is short
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(b.home) })
	hosts := filepath.Join(t.TempDir(), "hosts")
	names := "127.0.0.1 localhost\n10.9.8.7 box.example.org box\n127.0.0.1 stranger.example door.example.net\n" +
		"127.0.0.1 cloche cloche.default cloche.default.svc cloche.default.svc.cluster.local\n"
	if err := os.WriteFile(hosts, []byte(names), 0o644); err != nil {
		t.Fatal(err)
	}
	const begin = `set -e
echo box > /proc/sys/kernel/hostname
mount --bind "$1" /etc/hosts
ip link set lo up
ip address add 10.9.8.7/32 dev lo
shift
exec "$@"`
	run := []string{"--mount", "--uts", "--net", "--propagation", "private", "sh", "-c", begin, "sh", hosts, b.bin}
	for _, a := range args {
		run = append(run, strings.ReplaceAll(a, "$(POD_NAMESPACE)", "default"))
	}
	// A name in an address is one of the daemon's own.
	b.cmd = exec.Command("unshare", append(run, "--listen", "tcp://door.example.net:7171")...)
	b.cmd.Env = append(os.Environ(), "CLOCHE_HOME="+b.home, "CLOCHE_TOKEN="+namesToken)
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var log bytes.Buffer
	b.cmd.Stdout, b.cmd.Stderr = &log, &log
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.cmd.Process.Signal(syscall.SIGTERM)
		if err := b.cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the daemon ended with %v\n%s", err, log.String())
		}
	})
	// It serves all of its addresses at once.
	if !fixture.Poll(func() bool { return fixture.Answers("unix", filepath.Join(b.home, "cloche.sock")) }) {
		t.Fatal("the daemon does not answer")
	}
	return b
}

// inside runs a program where the daemon is, and returns what it says.
func (b *namedDaemon) inside(env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	enter := []string{"-t", strconv.Itoa(b.cmd.Process.Pid), "-m", "-u", "-n", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = append(append(os.Environ(), "CLOCHE_HOME=/nowhere", "CLOCHE_TOKEN="+namesToken, "HOME="+b.home), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%q: %w", args, err)
	}
	return string(out), err
}

// TestSocketInTheHome: it is there beside the addresses that are named, once, and a home
// that can hold none is no obstacle where there is another address.
func TestSocketInTheHome(t *testing.T) {
	bin, dir := fixture.Binary(t), t.TempDir()
	short, err := os.MkdirTemp("", "cl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	long := filepath.Join(dir, strings.Repeat("a-home-with-a-long-path", 6))
	for name, tc := range map[string]struct {
		home    string
		listen  []string
		answers []string
		says    string // in the log, and nothing where that is empty
	}{
		"alone":                 {filepath.Join(short, "1"), nil, []string{"1/cloche.sock"}, ""},
		"another":               {filepath.Join(short, "2"), []string{"other"}, []string{"2/cloche.sock", "other"}, ""},
		"by its name":           {filepath.Join(short, "3"), []string{"3/cloche.sock"}, []string{"3/cloche.sock"}, ""},
		"by another name":       {filepath.Join(short, "4"), []string{"./4/../4/cloche.sock"}, []string{"4/cloche.sock"}, ""},
		"a path too long":       {long, []string{"third"}, []string{"third"}, "there is no socket in the home"},
		"too long and no other": {long, nil, nil, "cannot listen"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"serve", "--home", tc.home}
			for _, l := range tc.listen {
				args = append(args, "--listen", "unix://"+short+"/"+l)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, bin, args...)
			var log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &log, &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, at := range tc.answers {
				if !fixture.Poll(func() bool { return fixture.Answers("unix", filepath.Join(short, at)) }) {
					t.Errorf("nothing answers at %s", at)
				}
			}
			if tc.answers != nil {
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
			if err := cmd.Wait(); (err == nil) != (tc.answers != nil) {
				t.Errorf("it ended with %v", err)
			}
			if tc.says != "" && !strings.Contains(log.String(), tc.says) || tc.says == "" && strings.Contains(log.String(), "no socket") || t.Failed() {
				t.Errorf("it says\n%s", log.String())
			}
		})
	}
}

// TestBehindNginx calls a daemon through the proxy of packaging/nginx, which keeps Host:
// by one request, by a WebSocket, and by one whose answer comes in pieces.
func TestBehindNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("needs nginx in PATH")
	}
	h := fixture.New(t)
	h.Kill9()
	token := strings.Repeat("k", 40)
	if err := os.WriteFile(filepath.Join(h.Dir, "settings.yaml"), []byte("hosts: [box.example.org]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := strings.TrimPrefix(startListening(h, token), "tcp://")
	dir := t.TempDir()
	cert, roots, err := siteCertificate([]string{"box.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	front := "127.0.0.1:" + strconv.Itoa(freeport.Free(t))
	conf, err := os.ReadFile("packaging/nginx/cloche.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("listen 443", "listen "+front, "/etc/ssl/box.example.org", dir, "127.0.0.1:7070", daemon).Replace(string(conf))
	whole := fmt.Sprintf("daemon off;\npid %[1]s/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\nclient_body_temp_path %[1]s/body;\nproxy_temp_path %[1]s/proxy;\n"+
		"fastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n%[2]s}\n", dir, text)
	for name, data := range map[string][]byte{
		"cert.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), "nginx.conf": []byte(whole),
		"key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), "roots.pem": roots,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	proxy := exec.Command(nginx, "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	var says bytes.Buffer
	proxy.Stderr = &says
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = proxy.Process.Signal(syscall.SIGTERM)
		if err := proxy.Wait(); err != nil || t.Failed() {
			t.Errorf("nginx ended with %v\n%s", err, says.String())
		}
	})
	if !fixture.Poll(func() bool { return fixture.Answers("tcp", front) }) {
		t.Fatal("nginx does not answer")
	}
	toFront := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", front)
	}
	// The proxy passes the caller's Host on, and the daemon judges it.
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	direct := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: toFront, TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	for host, want := range map[string]int{"box.example.org": 200, "other.example.org": 403} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://box.example.org/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := direct.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("by the name %s: HTTP %d, want %d", host, resp.StatusCode, want)
		}
	}
	c, err := client.New(client.Options{
		Host: "https://box.example.org", Token: token, CAFile: filepath.Join(dir, "roots.pem"), NoReconnect: true, Dial: toFront,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	sb, err := c.Create(ctx, api.SandboxSpec{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	// What is written comes back before the stream ends, so nothing keeps it.
	s, err := c.ExecStream(ctx, sb.ID, api.ExecRequest{Argv: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, word := range []string{"one", "two"} {
		if _, err := s.Write([]byte(word)); err != nil {
			t.Fatal(err)
		}
		if ev, err := s.Recv(); err != nil || string(ev.Data) != word {
			t.Fatalf("%q came back as %+v, %v", word, ev, err)
		}
	}
	// Nor does it keep lines that are followed.
	if _, err := c.StartProcess(ctx, sb.ID, api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"sh", "-c", "echo begun; exec sleep 1000"}}}); err != nil {
		t.Fatal(err)
	}
	seen := errors.New("seen")
	err = c.Logs(ctx, sb.ID, api.LogOptions{Follow: true}, func(e api.LogEntry) error {
		if strings.Contains(string(e.Data), "begun") {
			return seen
		}
		return nil
	})
	if !errors.Is(err, seen) {
		t.Errorf("follow: %v", err)
	}
	if _, err := c.Kill(ctx, sb.ID); err != nil {
		t.Error(err)
	}
}
