//go:build linux

package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/test/freeport"
)

const (
	initArgv0 = "cloche-agent-test-init"
	// onlyVersion1 in the environment makes the agent one of the release before.
	onlyVersion1 = "CLOCHE_TEST_ONLY_VERSION_1"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case agent.Argv0:
		if os.Getenv(onlyVersion1) != "" {
			os.Exit(serveAs([]int{1}))
		}
		os.Exit(Main())
	case initArgv0:
		os.Exit(becomeInit())
	}
	os.Exit(m.Run())
}

// becomeInit gives the first process of a new pid namespace its own /proc and
// executes the agent.
func becomeInit() int {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", 0, "")
	}
	if err == nil {
		err = syscall.Exec("/proc/self/exe", []string{agent.Argv0}, os.Environ())
	}
	fmt.Fprintln(os.NewFile(readyFD, "ready"), err)
	return 1
}

// inside is an agent that runs as the first process of a pid namespace.
type inside struct {
	*agent.Client
	cmd   *exec.Cmd
	addr  string
	port  int
	token []byte
}

// boot starts an agent and connects to it.
func boot(t testing.TB, tune func(*agent.Config, *exec.Cmd)) *inside {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a pid namespace and checks capabilities")
	}
	cfg := agent.Config{Token: agent.NewToken(), Port: freeport.Free(t), NoCgroup: true, KernelGuardsInit: true}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{initArgv0}
	cmd.Env = []string{}
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if tune != nil {
		tune(&cfg, cmd)
	}
	data, err := cfg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	cr, cw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	rr, rw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = append([]*os.File{cr, rw}, cmd.ExtraFiles...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	cr.Close()
	rw.Close()
	if _, err := cw.Write(data); err != nil {
		t.Fatal(err)
	}
	cw.Close()
	said, err := io.ReadAll(rr)
	rr.Close()
	if err != nil || len(said) != 1 {
		t.Fatalf("agent is not ready: %q, %v", said, err)
	}
	in := &inside{cmd: cmd, addr: "127.0.0.1:" + strconv.Itoa(cfg.Port), port: cfg.Port, token: cfg.Token}
	in.Client = in.connect(t)
	return in
}

func (in *inside) connect(t testing.TB) *agent.Client {
	t.Helper()
	conn, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := agent.Connect(t.Context(), conn, in.token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var environment = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "LANG=C.UTF-8"}

// start is a program with the defaults of these tests.
func start(argv ...string) agent.Start {
	return agent.Start{ExecID: api.NewID("x-"), Argv: argv, Env: environment, Cwd: "/", Timeout: 30 * time.Second}
}

func shell(script string) agent.Start { return start("/bin/sh", "-c", script) }

// run executes a script that must succeed and returns its output.
func (in *inside) run(t testing.TB, script string) string {
	t.Helper()
	r, err := in.Exec(t.Context(), shell(script))
	if err != nil {
		t.Fatalf("exec %q: %v", script, err)
	}
	if !r.OK() {
		t.Fatalf("exec %q: exit %v, signal %q, stdout %q, stderr %q", script, r.ExitStatus(), r.Signal, r.Stdout, r.Stderr)
	}
	return string(bytes.TrimSpace(r.Stdout))
}

// fifo is a named pipe by which a program and a test wait for each other.
func fifo(t testing.TB) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // to open it for one direction waits for the other
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// within is a context for what must not hang.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

type execCmd = exec.Cmd

// withBudget bounds what all logs together keep.
func withBudget(n int64) func(*agent.Config, *exec.Cmd) {
	return func(c *agent.Config, _ *exec.Cmd) { c.LogBytes = n }
}

// withGroups puts the agent into a cgroup of its own on the host's cgroup2
// hierarchy, which is then the root of the one that it sees.
func withGroups(t *testing.T) func(*agent.Config, *exec.Cmd) {
	t.Helper()
	return func(c *agent.Config, cmd *exec.Cmd) {
		root := ""
		for _, p := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
			var st unix.Statfs_t
			if unix.Statfs(p, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
				root = p
				break
			}
		}
		if root == "" {
			t.Skip("needs a cgroup2 hierarchy: none is mounted")
		}
		dir := root + "/" + api.NewID("cloche-test-")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("needs a writable cgroup2 hierarchy: %v", err)
		}
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			d.Close()
			_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
			removeGroups(t, dir)
		})
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.Fd())
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWCGROUP
		c.NoCgroup = false
	}
}

// removeGroups removes a cgroup and those in it once they are empty.
func removeGroups(t *testing.T, dir string) {
	for end := time.Now().Add(time.Minute); ; {
		for _, p := range []string{dir + "/job/*", dir + "/*", dir} {
			found, _ := filepath.Glob(p)
			for _, f := range found {
				_ = unix.Rmdir(f)
			}
		}
		if _, err := os.Stat(dir); err != nil {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s cannot be removed", dir)
			return
		}
	}
}
